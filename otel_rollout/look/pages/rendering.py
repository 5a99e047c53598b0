"""Render templates as self-contained HTML pages; define the links of a page."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from otel_rollout.base.printable import printable
from otel_rollout.table.filters import NO_STEP, Step

if TYPE_CHECKING:
    import jinja2

_CODE: Final = Markup("<code>{}</code>")


class Links:
    """Addresses for the links of a page; with None as an address, the text is printed without a link.

    This class is for a page that stands alone. The server of ``otel-rollout view`` has a subclass.

    Attributes:
        places: text and address of the links in the line at the top; empty for no such line.
        status: when the page's data was read.
        problem: why newer data could not be read; empty without a problem.
        refresh_seconds: time after which a browser loads the page again; None for never.
        refresh_switch: text and address of the link that turns reloading on or off; None for no link.
    """

    places: Sequence[tuple[str, str]] = ()
    status = ""
    problem = ""
    refresh_seconds: int | None = None
    refresh_switch: tuple[str, str] | None = None

    def to(self, page: str, /, **parameters: str) -> str | None:
        """Return the address of a page of the run.

        Args:
            page: path of the page.
            parameters: names and values that say what the page shows.
        """
        return None

    def step(self, step: Step, validate: bool = False) -> str | None:
        """Return the address of a step's page."""
        return self.to("/step", **_of_step(step, validate))

    def timeline(self, step: Step, validate: bool = False) -> str | None:
        """Return the address of the page that shows a step's time."""
        return self.to("/timeline", **_of_step(step, validate))

    def health(self) -> str | None:
        """Return the address of the page with the run's checks."""
        return self.to("/health")

    def trajectories(self, filters: Mapping[str, str] | None = None) -> str | None:
        """Return the address of the list of trajectories.

        Args:
            filters: field of its form → text.
        """
        return self.to("/trajectories", **(filters or {}))

    def group(self, path: str) -> str | None:
        """Return the address of a group's page.

        Args:
            path: the group's name in the view ``groups``, such as ``1/29``.
        """
        return self.to("/group", name=path)

    def trajectory(self, reference: str) -> str | None:
        """Return the address of a trajectory's page.

        Args:
            reference: a name such as ``1/29/1``, or a trace id.
        """
        return self.to("/trajectory", name=reference)

    def comparison(self, left: str, right: str) -> str | None:
        """Return the address of the page that shows two trajectories side by side."""
        return self.to("/compare", left=left, right=right)

    def elsewhere(self, trace_id: str) -> list[tuple[str, str]]:
        """Return each other tool, such as MLflow, with the trajectory's address there."""
        return []


def _of_step(step: Step, validate: bool) -> dict[str, str]:
    return {"step": NO_STEP if step is None else str(step), **({"validate": "true"} if validate else {})}


def render(template: str, links: Links | None = None, **variables: Any) -> str:
    """Render a template to a page; every value is escaped.

    Args:
        template: name of a file in ``templates/``.
        links: addresses of other pages; by default the page stands alone.
        variables: variables of the template.
    """
    return _environment().get_template(template).render(links=links or Links(), **variables)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # here, since most commands make no page

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("otel_rollout.look.pages", "templates"),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["with_code"] = _with_code
    return made


def _with_code(text: str) -> Markup:
    """Return a text as HTML, with the parts between backticks as code."""
    parts = enumerate(printable(text).split("`"))
    return Markup().join(_CODE.format(part) if place % 2 else Markup.escape(part) for place, part in parts)


def _printable(value: Any) -> Any:
    """Make a value printable before the template escapes it."""
    return value if isinstance(value, Markup) else printable(str(value))
