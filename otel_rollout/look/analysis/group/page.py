"""Render a group's tree as an HTML page, and as JSON."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from otel_rollout.look.analysis.group import text as group_text
from otel_rollout.look.analysis.group.siblings import Sibling
from otel_rollout.look.analysis.group.tree import Branch, Contrast, GroupTree
from otel_rollout.look.conversation import excerpt, formatting
from otel_rollout.look.conversation.comparison import Divergence
from otel_rollout.look.conversation.page import Trail, way_to
from otel_rollout.look.conversation.summary import reward_columns
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.look.pages.rendering import Links, render

_MAX_TURNS: Final = 24
"""Turns of a branch that the page has."""
_MAX_LINE: Final = 240
"""Characters of a turn in the tree; the rest of the turn unfolds."""
_MAX_UNFOLDED: Final = 2_000
"""Characters of a text that unfolds."""
_CONTINUED: Final = 6
"""Turns of two branches that stand side by side."""
_MAX_TEXT: Final = 20_000
"""Characters of a text that stands beside another."""


def page_of_group(tree: GroupTree, links: Links | None = None) -> str:
    """Return the page of a group: what the good branch did differently, and the tree.

    Args:
        tree: the group.
        links: addresses of other pages; by default the page stands alone.
    """
    found = tree.contrast
    return render(
        "group.html",
        links,
        tree=tree,
        trail=Trail(way_to(tree.group.found[0].summary, links or Links()), f"group {tree.group.path}"),
        text=group_text,
        formatting=formatting,
        lines_of=partial(group_text.lines_of, limit=_MAX_TURNS, length=_MAX_LINE),
        shortened=partial(excerpt.shortened, characters=_MAX_UNFOLDED),
        best=group_text.best_of(tree),
        contrast=excerpt.beginning(found.comparison, _CONTINUED, _MAX_TEXT) if found else None,
    )


# --- JSON ---------------------------------------------------------------------------------------------------


def document_of(tree: GroupTree) -> dict[str, Any]:
    """Return a group as a JSON document. Turns, tokens and characters are counted from 1."""
    first = tree.group.found[0].summary
    return {
        "group": tree.group.path,
        "run": first.run or None,
        "project": first.project or None,
        "experiment": first.experiment or None,
        "number": tree.group.number,
        "siblings": [_sibling(each) for each in tree.group.found],
        "tree": _branch(tree.root),
        "contrast": None if tree.contrast is None else _contrast(tree.contrast),
    }


def _sibling(sibling: Sibling) -> dict[str, Any]:
    conversation, summary = sibling.conversation, sibling.summary
    return {
        "name": sibling.name,
        "reference": sibling.reference,
        "trace_id": summary.trace_id,
        "state": summary.state,
        "error": summary.error or None,
        **reward_columns(summary),
        "turns": len(conversation.turns),
        "model_calls": summary.turns,
        "tool_calls": summary.tool_calls,
        "output_tokens": summary.tokens.output,
        "seconds": summary.seconds,
    }


def _branch(branch: Branch) -> dict[str, Any]:
    return {
        "siblings": [each.reference for each in branch.siblings],
        "reward_mean": branch.reward_mean,
        "turns": [_turn(turn, number) for number, turn in enumerate(branch.turns, start=branch.start + 1)],
        "parts_at": None if branch.divergence is None else _point(branch.divergence),
        "branches": [_branch(part) for part in branch.parts],
    }


def _turn(turn: Turn, number: int) -> dict[str, Any]:
    shown = {
        "text": turn.text,
        "calls": [formatting.call(call) for call in turn.calls],
        "arguments": formatting.arguments(turn.arguments),
        "error": turn.error,
    }
    named = {"number": number, "role": turn.role, **({"name": turn.name} if turn.name else {})}
    return named | {name: value for name, value in shown.items() if value}


def _point(found: Divergence) -> dict[str, int | None]:
    """Return where branches part, counted from 1; the character has a meaning only if the texts differ."""
    return {
        "turn": found.turn + 1,
        "token": None if found.token is None else found.token + 1,
        "character": found.characters + 1,
    }


def _contrast(found: Contrast) -> dict[str, Any]:
    sides = {"better": (found.better, found.left), "worse": (found.worse, found.right)}
    return {
        "turn": found.better.start + 1,
        "difference": found.difference,
        **{
            name: {"siblings": [each.reference for each in branch.siblings], "example": example.reference}
            for name, (branch, example) in sides.items()
        },
        "sentence": formatting.divergence(found.comparison),
    }
