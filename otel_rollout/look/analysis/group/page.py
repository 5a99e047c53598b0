"""Render a group's tree as an HTML page."""

from __future__ import annotations

from functools import partial
from typing import Final

from otel_rollout.look.analysis.group import text as group_text
from otel_rollout.look.analysis.group.tree import Branch, GroupTree
from otel_rollout.look.conversation import excerpt, formatting
from otel_rollout.look.conversation.navigation import Trail, way_to
from otel_rollout.look.pages.links import Links
from otel_rollout.look.pages.rendering import render

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
        trail=_trail(tree, links or Links()),
        text=group_text,
        formatting=formatting,
        lines_of=_lines_of,
        shortened=partial(excerpt.shortened, characters=_MAX_UNFOLDED),
        best=group_text.best_of(tree),
        contrast=excerpt.beginning(found.comparison, _CONTINUED, _MAX_TEXT) if found else None,
    )


def _lines_of(branch: Branch, parted_at: int | None) -> list[group_text.TurnLine | group_text.Gap]:
    return group_text.lines_of(branch, parted_at, _MAX_TURNS, _MAX_LINE)


def _trail(tree: GroupTree, links: Links) -> Trail:
    summary = tree.group.found[0].summary
    return Trail(way_to(summary, links), f"group {tree.group.path}")
