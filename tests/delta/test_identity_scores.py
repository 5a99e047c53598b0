"""Scores by identity from a trainer's process reach their trajectory in the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout import open_table, rollout_trace_attr, score
from tests.viewer.conftest import run

SIBLINGS = 3
GIVE = """
import sys, otel_rollout
score, value, rollout = sys.argv[1:]
otel_rollout.score(score, float(value), step=1, sample_index=3, rollout_n=int(rollout))
"""

ATTEMPT = """
import sys, otel_rollout
table, spool, reward = sys.argv[1:]
otel_rollout.configure({"delta": {"uri": table}}, spool_dir=spool, project_name="p", experiment_name="e")
with otel_rollout.rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
    pass
otel_rollout.score("reward", float(reward), step=1, sample_index=3, rollout_n=0)
report = otel_rollout.shutdown(200)
assert not report.undelivered, report.summary()
"""
"""A job that stops after one step."""


def give(name: str, value: float, rollout: int) -> None:
    """Score a trajectory of the group from a process of the run that knows no trace id."""
    subprocess.run([sys.executable, "-c", GIVE, name, str(value), str(rollout)], check=True, timeout=200)


def sibling(rollout: int, validate: bool = False) -> rollout_trace_attr:
    return rollout_trace_attr(step=1, sample_index=3, rollout_n=rollout, validate=validate)


@pytest.fixture
def begin(fresh_process: None, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that begins a run of the project, which delivers to the table."""
    monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "true")

    def configure() -> None:
        otel_rollout.configure(
            {"delta": {"uri": str(table)}},
            spool_dir=tmp_path / "spool",
            project_name="p",
            experiment_name="e",
        )

    return configure


def end() -> str:
    """End the run; return its id."""
    report = otel_rollout.shutdown(200)
    assert (report.undelivered, report.lost) == (0, 0), report.summary()
    assert not report.exporters["delta"].rejected
    return Path(report.directory).parent.name


def test_trainers_scores_reach_one_trajectory_of_one_run(begin: Any, table: Path, tmp_path: Path) -> None:
    """Given before, in and after the trajectories; neither siblings nor another run get them."""
    begin()
    give("reward", 0.1, 1)
    give("advantage", -1.0, 1)
    for rollout in range(SIBLINGS):
        with sibling(rollout):
            if rollout == 1:
                score("reward", 0.2)
            if rollout == 2:
                give("reward", 0.3, 2)
    with sibling(1, validate=True):
        pass
    give("trained_at", 4.0, 2)
    end()
    begin()
    for rollout in range(SIBLINGS):
        with sibling(rollout):
            pass
    score("reward", 0.9, step=1, sample_index=3, rollout_n=0)
    score("reward", 0.8, step=1, sample_index=3)
    end()
    begin()  # a judge: its run has no trajectory
    score("judged", 0.7, step=1, sample_index=3, rollout_n=1)
    score("judged", 0.6, step=1, sample_index=3, rollout_n=1, validate=True)
    score("judged", 0.5, step=7, sample_index=3, rollout_n=1)
    end()

    opened = open_table(str(table))
    first, second = opened.runs.sort("start_time").dicts()
    named = {first["run_id"]: 1, second["run_id"]: 2}
    found = {
        (named[each["run_id"]], each["validate"], each["rollout_n"], each["name"]): each["value"]
        for each in opened.scores.dicts()
    }
    assert found == {
        (1, False, 1, "reward"): 0.2,
        (1, False, 1, "advantage"): -1.0,
        (1, False, 2, "reward"): 0.3,
        (1, False, 2, "trained_at"): 4.0,
        (1, True, 1, "judged"): 0.6,
        (2, False, 0, "reward"): 0.9,
    }
    unresolved = opened.unresolved_scores.sort("value").dicts()
    assert [(each["value"], each["reason"], each["matches"]) for each in unresolved] == [
        (0.5, "unknown", 0),
        (0.7, "ambiguous", 2),
        (0.8, "ambiguous", 3),
    ]
    rewards = [(each["run_id"], each["reward"]) for each in opened.trajectories.dicts() if each["reward"]]
    assert sorted(rewards, key=lambda pair: pair[1]) == [
        (first["run_id"], 0.2),
        (first["run_id"], 0.3),
        (second["run_id"], 0.9),
    ]
    for source in (table, tmp_path / "spool"):
        assert "0.9" in run("show", "1/3/0", "--from", source)
        assert "advantage" not in run("show", "1/3/1", "--from", source)
        assert "0.6" in run("show", "validation/1/3/1", "--from", source)
        listed = run("list", "--from", source, "--reward", ">0", "--format", "csv")
        assert len(listed.splitlines()) == 4


def test_scores_of_a_step_stay_when_a_resumed_job_repeats_it(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under one run id, the first attempt keeps its scores; a score after both attempts is of neither."""
    monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "true")
    monkeypatch.setenv("OTEL_ROLLOUT_RUN_ID", "resumed")
    for reward in ("0.25", "0.75"):
        subprocess.run(
            [sys.executable, "-c", ATTEMPT, table, tmp_path / "spool", reward], check=True, timeout=200
        )
    opened = open_table(str(table))
    first, second = opened.trajectories.sort("start_time").dicts()
    assert (first["path"], first["reward"]) == ("1/3/0", 0.25)
    assert (second["path"], second["reward"]) == ("1/3/0", None)
    assert [each["reason"] for each in opened.unresolved_scores.dicts()] == ["ambiguous"]
    for source in (table, tmp_path / "spool"):
        assert "0.25" in run("show", first["trace_id"], "--from", source)
        assert "reward" not in run("show", second["trace_id"], "--from", source)
