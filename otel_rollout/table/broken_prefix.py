"""Join the first broken prefix of each trajectory to those who ask for it."""

from __future__ import annotations

import re
from typing import Final

CONDITION: Final = "broken_turns > 0"
"""Condition that a trajectory has a turn whose tokens are not the beginning of the next prompt."""
COLUMNS: Final = ("broken_turns", "break_turn", "break_token", "break_removed", "break_added", "break_kind")
"""Number of broken turns, and the first of them: column ``break_…`` is column ``…`` of ``prefix_breaks``."""
_NAMED: Final = re.compile(rf"\b({'|'.join(COLUMNS)})\b")


def is_named_in(*texts: str | None) -> bool:
    """Return whether a text names one of the columns."""
    return any(_NAMED.search(text) for text in texts if text)


def joined_to(source: str) -> str:
    """Return trajectories with the columns of their first break; the view without them is cheaper.

    Args:
        source: the view ``trajectories``, or a SELECT with its columns, in parentheses and named.
    """
    columns = ", ".join(f"{name.partition('_')[2]} AS {name}" for name in COLUMNS[1:])
    return (
        f"(SELECT listed.*, first_break.* EXCEPT (broken) FROM (SELECT * FROM {source}) AS listed LEFT JOIN "  # noqa: S608
        f"(SELECT trace_id AS broken, {columns} FROM prefix_breaks WHERE place = 1) AS first_break "
        "ON listed.trace_id = first_break.broken) AS with_breaks"
    )
