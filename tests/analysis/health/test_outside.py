"""Calls outside of trajectories: a broken chain, or a judge beside whole trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.analysis.health.answers import answer, call, trajectories
from tests.table.tables import row

STRAY: dict[str, Any] = {
    "parent_span_id": None,
    "is_root": True,
    "validate": None,
    "project": None,
    "experiment": None,
    "step": None,
    "sample_index": None,
    "rollout_n": None,
}
"""Columns of a span outside of trajectories."""


def stray(number: int, kind: str = "LLM") -> dict[str, Any]:
    """Return a call outside of trajectories, at the time of the trajectories."""
    return row(f"f{number:x}", f"f{number:x}", "0", kind=kind, name="generate", **STRAY)


def test_calls_that_trajectories_lack_are_a_broken_chain(tmp_path: Path) -> None:
    """The message has both numbers; the steps are those without calls of their own."""
    rows = [*trajectories(8, 1), *trajectories(8, 2), *(stray(number) for number in range(9))]
    rows += [call(number, 2) for number in range(8)]
    finding = answer(tmp_path, "calls_outside", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert finding.message.startswith(
        "8 of 8 trajectories have neither a model nor a tool call, and 9 such calls belong to no trajectory"
    )


def test_calls_beside_whole_trajectories_are_healthy(tmp_path: Path) -> None:
    """A few trajectories fail before their first call, and a judge calls a model."""
    rows = [*trajectories(8), *(call(number, 1) for number in range(5)), stray(1), stray(2, "TOOL")]
    assert answer(tmp_path, "calls_outside", rows).status == "healthy"


def test_calls_of_another_time_are_healthy(tmp_path: Path) -> None:
    """The trajectories of this program have no calls that are recorded; the warm-up has."""
    early = {**stray(1), "start_ns": 1, "duration_ns": 1}
    assert answer(tmp_path, "calls_outside", [*trajectories(8), early]).status == "healthy"
