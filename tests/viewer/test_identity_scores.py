"""Scores by identity belong to the one trajectory of a spool that fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, score
from tests.viewer.conftest import run

Record = Callable[..., None]


@pytest.fixture
def record(fresh_process: None, tmp_path: Path) -> Record:
    """Return a function that records trajectories and scores, as a run of its own."""

    def record_run(*actions: tuple[float | None, dict[str, object]], scores: bool = False) -> None:
        otel_rollout.configure("spool", spool_dir=tmp_path / "spool", project_name="p", experiment_name="e")
        for value, identity in actions:
            if identity.pop("given", scores):
                score("reward", value, **identity)
            else:
                with rollout_trace_attr(**identity):
                    if value is not None:
                        score("reward", value)
        otel_rollout.shutdown(30)

    return record_run


def path(step: int, sample: object, rollout: int | None = None, **more: object) -> dict[str, object]:
    """Return an identity as keyword arguments; ``given`` scores it from outside."""
    return {"step": step, "sample_index": sample, "rollout_n": rollout, **more}


def shown(tmp_path: Path, reference: str = "") -> dict[str, str]:
    """Map the paths that a list shows to their rewards."""
    listed = run("show", *filter(None, [reference]), "--from", tmp_path / "spool")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in listed.splitlines() if "│" in line]
    return {row[0]: row[2] for row in rows}


def test_newest_score_counts_whether_given_by_identity_or_inside(record: Record, tmp_path: Path) -> None:
    """The time of the call decides: before, or after the trajectory."""
    record(
        (0.1, path(1, 1, 0, given=True)),
        (0.2, path(1, 1, 0)),
        (0.3, path(1, 1, 1)),
        (0.4, path(1, 1, 1, given=True)),
        (None, path(1, "2")),
        (0.5, path(1, 2, given=True)),
        (0.6, path(1, 2, 0, given=True)),
        (None, path(1, 1, 0, validate=True)),
        (0.7, path(1, 1, 0, validate=True, given=True)),
        (0.8, path(9, 9, given=True)),
    )
    assert shown(tmp_path) == {"1/1/0": "0.2", "1/1/1": "0.4", "1/2/-": "0.5", "validation/1/1/0": "0.7"}
    assert shown(tmp_path, "1/1/") == {"1/1/0": "0.2", "1/1/1": "0.4"}
    assert "0.4" in run("show", "1/1/1", "--from", tmp_path / "spool")


def test_score_that_fits_several_trajectories_belongs_to_none(record: Record, tmp_path: Path) -> None:
    """A step that was tried again, and a row without its rollout, are ambiguous."""
    record((None, path(1, 1, 0)), (None, path(1, 1, 0)), (None, path(1, 2, 0)), (None, path(1, 2, 1)))
    record((0.125, path(1, 1, 0)), (0.2, path(1, 2)), (0.3, path(1, 2, 1)), scores=True)
    assert shown(tmp_path, "1/2/") == {"1/2/0": "", "1/2/1": "0.3"}
    assert "0.125" not in run("show", "1/1/", "--from", tmp_path / "spool")


@pytest.mark.parametrize("has_own", [True, False])
def test_run_with_trajectories_scores_its_own_alone(record: Record, tmp_path: Path, has_own: bool) -> None:
    """An earlier run's trajectory of the identity is scored by a run without trajectories."""
    record((0.1, path(1, 1, 0)), (None, path(1, 1, 1)))
    record((0.9, path(1, 1, 0, given=True)), *[(None, path(2, 1, 0))] * has_own)
    assert shown(tmp_path, "1/") == {"1/1/0": "0.1" if has_own else "0.9", "1/1/1": ""}
