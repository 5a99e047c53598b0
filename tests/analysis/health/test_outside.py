"""Operations outside of trajectories: a broken chain, or a judge beside whole trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.analysis.health.answers import answer, call, given, trajectories
from tests.table.tables import row

STRAY: dict[str, Any] = dict.fromkeys(
    ("validate", "project", "experiment", "step", "sample_index", "rollout_n")
)
"""Columns of an operation outside of trajectories: it has no identity."""


def stray(number: int, kind: str = "LLM") -> dict[str, Any]:
    """Return an operation outside of trajectories, at the time of the trajectories."""
    return row(f"f{number:x}", f"f{number:x}", kind=kind, name="generate", **STRAY)


def test_operations_that_trajectories_lack_are_a_broken_chain(tmp_path: Path) -> None:
    """The message has both numbers; the steps are those of trajectories with scores alone."""
    rows = [*trajectories(8, 1), *trajectories(8, 2), *(stray(number) for number in range(9))]
    rows += [given(0, 1, 0.5), *(call(number, 2) for number in range(8))]
    finding = answer(tmp_path, "operations_outside", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert finding.message.startswith("8 of 8 trajectories are empty, and 9 operations outside of them")


def test_operations_beside_whole_trajectories_are_healthy(tmp_path: Path) -> None:
    """A few trajectories fail before their first call; a judge calls a model."""
    rows = [*trajectories(8), *(call(number, 1, kind="CHAIN") for number in range(5)), stray(1), stray(2)]
    assert answer(tmp_path, "operations_outside", rows).status == "healthy"


def test_operations_of_another_time_are_healthy(tmp_path: Path) -> None:
    """The trajectories of this program have nothing that is recorded; the warm-up has."""
    early = {**stray(1), "start_ns": 1, "duration_ns": 1}
    assert answer(tmp_path, "operations_outside", [*trajectories(8), early]).status == "healthy"
