"""Test the numbers of a run's steps, from which a tracker's curves are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_rollout.deliver.step_curves import StepNumbers, StepOfRun, numbers_of, spans_of_steps
from tests.table.tables import START_NS, root, row, score, written

SECOND = 1_000_000_000


def timed(number: int, seconds: float, **columns: Any) -> dict[str, Any]:
    """Return a root that begins with the others and lasts some seconds."""
    return root(
        str(number),
        rollout_n=number,
        start_ns=START_NS + number,
        duration_ns=int(seconds * SECOND),
        **columns,
    )


def test_numbers_of_a_step_are_those_of_its_trajectories(tmp_path: Path) -> None:
    """Quantiles, spread, cut replies and errors count; other runs and steps do not."""
    call = {"kind": "LLM", "tokens_in": 10, "tokens_out": 3, "finish_reason": "stop"}
    spans = [
        timed(1, 1.0),
        row("1", "b1", "a1", **call),
        row("1", "c1", "b1", **call),  # the engine's span of the same call
        row("1", "d1", "a1", kind="TOOL", status="error"),
        score("1", "e1", 0.5, rollout_n=1),
        timed(2, 2.0, status="error"),
        row("2", "b2", "a2", **{**call, "finish_reason": "stop, Length"}),
        row("2", "c2", "a2", **{**call, "finish_reason": "lengthy"}),
        score("2", "e2", 0.5, step=None, sample_index=None, rollout_n=None, validate=None),  # by id
        timed(3, 9.0, sample_index="8"),
        score("3", "e3", 1.0, rollout_n=3, sample_index="8"),
        row("4", "b4", "a4", sample_index="8", kind="TOOL"),  # runs
        root("5", run_id="run-2"),
        root("6", step=2),
        root("7", validate=True, start_ns=START_NS),
    ]
    table = written(tmp_path / "table", spans).open()
    training, validation = numbers_of(table, "run-1", [1])
    running_since = spans[-4]["start_ns"]
    assert (training.key, training.running) == (StepOfRun(1, False), 1)
    assert training.end_ms == max(START_NS + 3 + 9 * SECOND, running_since) // 1_000_000
    assert training.values == pytest.approx({
        "trajectories": 4,
        "failed": 1,
        "reward_mean": 2 / 3,
        "reward_std": 12**-0.5,
        "reward_min": 0.5,
        "reward_max": 1,
        "turns_mean": 3 / 4,
        "tool_calls": 2,
        "tool_errors": 1,
        "tokens_in": 30,
        "tokens_out": 9,
        "seconds_p50": 2,
        "seconds_p95": 8.3,
        "seconds_max": 9,
        "groups": 2,
        "groups_without_spread": 1,
        "replies_truncated": 1,
    })  # fmt: skip
    assert validation == StepNumbers(
        StepOfRun(1, True),
        START_NS // 1_000_000 + 1000,
        0,
        {
            "trajectories": 1,
            "failed": 0,
            "turns_mean": 0,
            "tool_calls": 0,
            "tool_errors": 0,
            "seconds_p50": 1,
            "seconds_p95": 1,
            "seconds_max": 1,
            "groups": 1,
            "groups_without_spread": 0,
            "replies_truncated": 0,
        },
    )


def test_rows_of_each_step_are_counted_from_a_step_on(tmp_path: Path) -> None:
    """Rows without a step, and those of other runs, are no step's."""
    spans = [root("1"), root("2", step=2), root("3", step=2, validate=True), root("4", step=None)]
    table = written(
        tmp_path / "table", [*spans, row("2", "b", "a2", step=2), root("5", run_id="it's")]
    ).open()
    assert spans_of_steps(table, "run-1", None) == {
        StepOfRun(1, False): 1,
        StepOfRun(2, False): 2,
        StepOfRun(2, True): 1,
    }
    assert spans_of_steps(table, "run-1", 2).keys() == {StepOfRun(2, False), StepOfRun(2, True)}
    assert spans_of_steps(table, "it's", None) == {StepOfRun(1, False): 1}


def test_numbers_leave_out_what_steps_leave_out(tmp_path: Path) -> None:
    """A reward that is NaN, and trajectories without a dataset row, which are no group."""
    nameless = {"sample_index": None, "rollout_n": None}
    spans = [
        *(timed(1, 1.0), score("1", "e1", 0.5, rollout_n=1)),
        *(timed(2, 1.0), score("2", "e2", float("nan"), rollout_n=2)),
        *(root("3", **nameless), root("4", **nameless)),
    ]
    (found,) = numbers_of(written(tmp_path / "table", spans).open(), "run-1", [1])
    assert (found.values["trajectories"], found.values["groups"], found.values["reward_mean"]) == (4, 1, 0.5)


def test_numbers_count_what_a_sub_trajectory_of_another_step_did(tmp_path: Path) -> None:
    """The calls below it belong to the trajectory's step, not to the step that it names."""
    inner = {"step": 9, "sample_index": "inner", "kind": "LLM", "tokens_in": 10, "tokens_out": 3}
    spans = [timed(1, 1.0), row("1", "b1", "a1", **inner), root("2", step=9)]
    table = written(tmp_path / "table", spans).open()
    (first,) = numbers_of(table, "run-1", [1])
    (ninth,) = numbers_of(table, "run-1", [9])
    assert (first.values["trajectories"], first.values["tokens_in"], first.values["turns_mean"]) == (1, 10, 1)
    assert (ninth.values["trajectories"], ninth.running, "tokens_in" in ninth.values) == (1, 0, False)
