"""Join columns of other views to the view ``trajectories`` if a query names them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

COLUMNS: Final = {
    "training": (
        "has_outcome", "trained", "reason", "trained_step", "trained_tokens", "advantage", "return_value",
        "trained_reward", "kl_penalty", "reward_difference", "lag", "lag_source", "mismatch", "mismatch_mean",
        "mismatch_share", "mismatch_token", "mismatch_turn", "importance_ratio", "not_finite",
    ),
    "first_breaks": ("break_turn", "break_token", "break_removed", "break_added", "break_kind"),
    "engine_time": (
        "requests", "calls_without_request", "queue_seconds", "prefill_seconds", "decode_seconds",
        "first_token_seconds",
    ),
}  # fmt: skip
"""View → its columns besides the identity."""
_NAMED_BY: Final = {"first_breaks": ("broken_turns",)}
"""View → columns of ``trajectories`` with which its columns are shown."""


def shown_with(view: str) -> tuple[str, ...]:
    """Return the columns that a listing shows for a view: its own, after some of ``trajectories``."""
    return (*_NAMED_BY.get(view, ()), *COLUMNS[view])


def trajectories_with(named: Iterable[str]) -> str:
    """Return SQL of the view ``trajectories``, joined with those other views whose columns are named.

    A view without a named column is not joined, because each join takes time.

    Args:
        named: texts of a query that may name columns: conditions, orders and columns.
    """
    words = set(re.findall(r"\w+", " ".join(named)))
    source = name = "trajectories"
    for view, columns in COLUMNS.items():
        if not words.isdisjoint(shown_with(view)):
            wanted = ", ".join(columns)
            joined = f"(SELECT trace_id, {wanted} FROM {view}) AS {view} USING (trace_id)"  # noqa: S608
            source = f"(SELECT {name}.*, {wanted} FROM {source} LEFT JOIN {joined}) AS with_{view}"  # noqa: S608
            name = f"with_{view}"
    return source
