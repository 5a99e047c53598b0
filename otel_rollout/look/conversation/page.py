"""Render trajectories as an HTML page that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_rollout.look.conversation import formatting, training
from otel_rollout.look.conversation.comparison import Comparison
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.navigation import trail_of_comparison, trail_of_conversation
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.pages.links import Links
from otel_rollout.look.pages.rendering import render


def of_conversation(
    conversation: Conversation,
    links: Links | None = None,
    siblings: Sequence[Summary] = (),
    time: Any = None,
) -> str:
    """Return the page of a conversation, turn by turn.

    Args:
        conversation: the trajectory.
        links: addresses of other pages; by default the page stands alone.
        siblings: the trajectories of its group in their order, with it, for links to them.
        time: what its time went into, as ``time_bar.html`` takes it; nothing by default.
    """
    trail = trail_of_conversation(conversation.summary, links or Links(), siblings)
    return render(
        "conversation.html", links, formatting=formatting, conversation=conversation, trail=trail, time=time,
        training=training.training_of(conversation), scores=training.others(conversation),
    )  # fmt: skip


def of_comparison(comparison: Comparison, links: Links | None = None) -> str:
    """Return the page of two conversations side by side.

    Args:
        comparison: the two trajectories.
        links: addresses of other pages; by default the page stands alone.
    """
    trail = trail_of_comparison(comparison, links or Links())
    return render("comparison.html", links, formatting=formatting, comparison=comparison, trail=trail)
