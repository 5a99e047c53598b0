"""Render trajectories as an HTML page that loads nothing and runs no script."""

from __future__ import annotations

from otel_rollout.pages.rendering import render
from otel_rollout.viewer import formatting
from otel_rollout.viewer.comparison import Comparison
from otel_rollout.viewer.conversation import Conversation


def of_conversation(conversation: Conversation) -> str:
    """Return the page of a conversation, turn by turn."""
    return render("conversation.html", formatting=formatting, conversation=conversation)


def of_comparison(comparison: Comparison) -> str:
    """Return the page of two conversations side by side."""
    return render("comparison.html", formatting=formatting, comparison=comparison)
