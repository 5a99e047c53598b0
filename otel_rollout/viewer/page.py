"""Trajectories as a page for a browser: one file that needs nothing from elsewhere and runs nothing."""

from __future__ import annotations

import functools
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from otel_rollout.viewer import captions
from otel_rollout.viewer.comparison import Comparison
from otel_rollout.viewer.conversation import Conversation
from otel_rollout.viewer.printable import printable

_CONVERSATION: Final = "conversation.html"
_COMPARISON: Final = "comparison.html"


def of_conversation(conversation: Conversation) -> str:
    """A conversation, turn by turn."""
    return _rendered(_CONVERSATION, conversation=conversation)


def of_comparison(comparison: Comparison) -> str:
    """Two conversations side by side."""
    return _rendered(_COMPARISON, comparison=comparison)


def _rendered(template: str, **what: Any) -> str:
    return _environment().get_template(template).render(wording=captions, **what)


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("otel_rollout.viewer", "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """What is put into the page, before it is escaped."""
    return value if isinstance(value, Markup) else printable(str(value))
