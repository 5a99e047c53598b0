"""Render a template as an HTML page that loads nothing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from otel_rollout.base.printable import printable
from otel_rollout.look.pages.links import Links

if TYPE_CHECKING:
    import jinja2


def render(template: str, links: Links | None = None, **variables: Any) -> str:
    """Return a page. The template escapes every value.

    Args:
        template: name of a file in ``templates/``.
        links: addresses of other pages; by default the page stands alone.
        variables: what the template names.
    """
    return _environment().get_template(template).render(links=links or Links(), **variables)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # here, since most commands make no page

    return jinja2.Environment(
        loader=jinja2.PackageLoader("otel_rollout.look.pages", "templates"),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: Any) -> Any:
    """Make a value printable before the template escapes it."""
    return value if isinstance(value, Markup) else printable(str(value))
