"""Render trajectories as an HTML page that loads nothing and runs no script."""

from __future__ import annotations

import functools
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from otel_rollout.base.printable import printable
from otel_rollout.viewer import formatting
from otel_rollout.viewer.comparison import Comparison
from otel_rollout.viewer.conversation import Conversation

_CONVERSATION: Final = "conversation.html"
_COMPARISON: Final = "comparison.html"


def of_conversation(conversation: Conversation) -> str:
    """Return the page of a conversation, turn by turn."""
    return _rendered(_CONVERSATION, conversation=conversation)


def of_comparison(comparison: Comparison) -> str:
    """Return the page of two conversations side by side."""
    return _rendered(_COMPARISON, comparison=comparison)


def _rendered(template: str, **variables: Any) -> str:
    return _environment().get_template(template).render(formatting=formatting, **variables)


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("otel_rollout.viewer", "templates"),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: Any) -> Any:
    """Make a value printable before the template escapes it."""
    return value if isinstance(value, Markup) else printable(str(value))
