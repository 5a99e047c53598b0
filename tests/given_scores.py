"""Read the scores of a run's trajectories from the rollout table, as a user does."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from otel_rollout.rollout_table import open_table


class Given(NamedTuple):
    """A score: a number, a text or a bool, and its comment."""

    value: float | str | bool
    comment: str | None


def of_run(table: Path) -> dict[str, dict[str, Given]]:
    """Return the scores of each trajectory of a table: trace id → name → score."""
    found: dict[str, dict[str, Given]] = defaultdict(dict)
    for row in open_table(table).sql("SELECT trace_id, name, value, label, comment FROM scores"):
        value = {"True": True, "False": False}.get(row["label"], row["label"])
        found[row["trace_id"]][row["name"]] = Given(
            row["value"] if value is None else value, row["comment"] or None
        )
    return found
