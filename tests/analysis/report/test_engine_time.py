"""A report's figures of the requests in an inference engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.changes import RunComparison, Side, compare
from otel_rollout.look.analysis.report.page import page_of_report, page_of_step
from otel_rollout.look.analysis.report.report import RunReport, report_of
from otel_rollout.look.analysis.report.step import step_of
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.query import Engine
from tests.cli.test_table import run
from tests.engine_spans import Call, trajectory
from tests.table.test_engine_time import table_of

SIBLINGS = 4


def engine_of(path: Path, steps: Sequence[Sequence[Call]]) -> Engine:
    """Return a table with a step for each list of calls, which all its trajectories make."""
    lines = [
        line
        for step, calls in enumerate(steps, 1)
        for rollout in range(SIBLINGS)
        for line in trajectory(calls, step=step, rollout=rollout, trace=step * SIBLINGS + rollout)
    ]
    return Engine(table_of(path, *lines).open())


def report(engine: Engine) -> RunReport:
    return report_of(engine, run_of(engine))


def test_report_has_the_times_of_requests(tmp_path: Path) -> None:
    """Queue, prefill and decode of a trajectory, quantiles of a request, and calls without one."""
    engine = engine_of(tmp_path, [[Call(), Call()], [Call(queue=1.5), Call(requests=0)], [Call(requests=0)]])
    found = report(engine)
    assert [step.engine is not None for step in found.steps] == [True, True, False]
    first, second, third = map(report_text.engine, found.steps)
    assert first
    assert list(first.values())[:5] == ["8", "0", "240 ms", "160 ms", "2.40 s"]
    assert second
    assert list(second.values())[:3] == ["4", "4", "1.50 s"]
    assert list(second.values())[5:] == ["1.50 s", "1.50 s", "1.58 s", "1.58 s"]
    assert third is None
    assert dict(report_text.facts(found.steps[0]))["engine, queue"] == "240 ms"
    (one,) = report_of(engine, run_of(engine), "step = 2").steps
    assert one == found.steps[1]
    page = page_of_report(found)
    assert "Mean time of a trajectory in the engine" in page
    assert "First token of a request" in page
    assert "engine, queue p95" in page_of_step(step_of(engine, run_of(engine), 1))


def test_run_without_requests_has_no_such_figures(tmp_path: Path) -> None:
    """Nothing of an engine is shown where no engine sent spans."""
    found = report(engine_of(tmp_path, [[Call(requests=0)]]))
    assert found.steps[0].engine is None
    assert "the engine" not in page_of_report(found)
    assert not any(name.startswith("engine") for name, _ in report_text.facts(found.steps[0]))


def test_rise_of_queue_time_is_a_surprise(tmp_path: Path) -> None:
    """A comparison names it, with the trajectories that waited, and not what the engine computed."""
    engine = engine_of(
        tmp_path, [[Call(queue=0.1 + 0.002 * step)] for step in range(6)] + [[Call(queue=1.0)]] * 3
    )
    found = report(engine)
    sides = (Side(found.run, found.steps[:6]), Side(found.run, found.steps[6:]))
    changes = compared(engine, found, *sides)
    worst = next(change for change in changes.changes if change.name == "engine_queue")
    assert (worst.is_worse, worst.label) == (True, "waiting in the engine's queue")
    assert report_text.change(worst) == "waiting in the engine's queue 105 ms → 1.00 s"
    assert len(worst.examples) >= 1
    assert all(name.startswith(("7/", "8/", "9/")) for name in worst.examples)
    names = {change.name for change in changes.changes}
    assert {"first_token_p50", "first_token_p95"} <= names
    assert not names & {"engine_decode", "engine_prefill"}


def compared(engine: Engine, found: RunReport, before: Side, after: Side) -> RunComparison:
    return compare(engine, before, after, [found.steps])


def test_command_prints_the_table_of_the_engine(tmp_path: Path) -> None:
    """The terminal and the JSON have the figures."""
    engine_of(tmp_path, [[Call(), Call()], [Call()]])
    printed = run("report", "--from", tmp_path / "table").output
    assert report_text.ENGINE_TITLE in printed
    steps = json.loads(run("report", "--from", tmp_path / "table", "--json").output)["training"]
    assert [step["engine"]["requests"] for step in steps] == [8, 4]
    assert steps[1]["engine"]["queue_p95"] == pytest.approx(0.12)


def test_list_names_trajectories_that_waited(tmp_path: Path) -> None:
    """`--queue` filters by seconds in the queue, and `--sort -queue_seconds` puts the longest first."""
    engine_of(tmp_path, [[Call()], [Call(queue=1.0)], [Call(requests=0)]])
    rows = json.loads(run("list", "--from", tmp_path / "table", "--queue", ">0.5", "--format", "json").output)
    assert {row["path"] for row in rows} == {f"2/7/{number}" for number in range(SIBLINGS)}
    ordered = ("list", "--from", tmp_path / "table", "--sort=-queue_seconds", "--format", "json")
    seconds = [row["queue_seconds"] for row in json.loads(run(*ordered).output)]
    assert seconds == [1.0] * SIBLINGS + [0.12] * SIBLINGS + [None] * SIBLINGS
