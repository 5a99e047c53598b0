"""Tools, weights and processes: bursts of errors, stale versions, slow workers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.look.analysis.report.changes import histories_of
from otel_rollout.look.analysis.report.report import report_of
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.query import Engine
from tests.analysis.health.answers import answer, answer_of, call, trace, trajectories
from tests.table.tables import row, written


def tool(number: int, step: int, name: str = "search", **columns: Any) -> dict[str, Any]:
    """Return a tool call in a trajectory."""
    short = trace(step * 1000 + number)
    ids = (f"d{step:03}{number:04}", "a" + short)
    return row(short, *ids, kind="TOOL", tool_name=name, name=f"execute_tool {name}", step=step, **columns)


def failing(broken: range, error: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield eight steps of 40 trajectories whose tool fails in some steps."""
    for step in range(1, 9):
        yield from trajectories(40, step)
        for number in range(40):
            fails = number == 7 or (step in broken and number % 2 == 0)
            yield tool(number, step, **({"status": "error", **error} if fails else {}))


def test_tool_that_starts_failing_is_a_burst(tmp_path: Path) -> None:
    """The message names tool, error, steps and the usual share."""
    finding = answer(tmp_path, "tool_error_burst", failing(range(6, 9), {"error_type": "TimeoutError"}))
    assert (finding.status, finding.steps) == ("unhealthy", (6, 7, 8))
    assert finding.message == (
        "Tool `search` failed with TimeoutError in 63 of the 120 trajectories with a call of it in steps 6–8 "
        "(52%). Earlier, it was 2.5%."
    )
    assert finding.evidence[:2] == ("6/0/0", "7/0/0")


def test_errors_without_a_class_are_told_apart_by_their_message(tmp_path: Path) -> None:
    """Numbers in it do not matter."""
    error = {"error_message": "port 8080 refused\nTraceback"}
    finding = answer(tmp_path, "tool_error_burst", failing(range(6, 9), error))
    assert "failed with port # refused in" in finding.message


def test_tool_that_fails_at_a_steady_rate_is_healthy(tmp_path: Path) -> None:
    """Half of all programs that a model writes may be wrong."""
    found = answer(tmp_path, "tool_error_burst", failing(range(1, 9), {"error_type": "NameError"}))
    assert found.status == "healthy"


RISING = {1: (13, 0), 2: (16, 3), 3: (18, 2), 4: (11, 7), 5: (14, 7), 6: (10, 5)}
"""Step → calls of a tool, and how many of them fail."""


def rising(steps: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield trajectories that call a tool once, which fails in some with one of two errors."""
    for step, (calls, errors) in steps.items():
        yield from trajectories(calls, step)
        for place, number in enumerate(sorted(range(calls), key=lambda number: number % 4)):  # of all groups
            error = {"status": "error", "error_type": ("TimeoutError", "OSError")[number % 2]}
            yield tool(number, step, **(error if place < errors else {}))


@pytest.mark.parametrize("errors", [(2, 4, 0, 0, 0, 3, 15), (0, 0, 0, 11, 0, 0), (1, 2, 0, 7, 3, 1, 15)])
def test_step_far_above_the_others_is_never_called_healthy(tmp_path: Path, errors: tuple[int, ...]) -> None:
    """Where `report` has a rise, too few groups for a verdict make it unobserved."""
    store = written(tmp_path / "table", rising({step: (16, number) for step, number in enumerate(errors, 1)}))
    assert answer_of(store, "tool_error_burst").status != "healthy"


def test_rise_too_small_for_a_verdict_is_told_since_the_step_of_report(tmp_path: Path) -> None:
    """The check does not call a tool healthy whose errors rise from 11% to 54%."""
    store = written(tmp_path / "table", rising(RISING))
    found = answer_of(store, "tool_error_burst")
    assert (found.status, found.steps) == ("unobserved", ())
    assert found.evidence
    assert found.message == (
        "Tool `search` failed in 19 of the 35 trajectories with a call of it in steps 4–6 (54%). "
        "Earlier, it was 11%. These are too few to be sure."
    )
    engine = Engine(store.open())
    (search,) = histories_of(report_of(engine, run_of(engine)).training)
    assert search.risen_at == "4"


def test_rise_that_chance_explains_is_healthy(tmp_path: Path) -> None:
    """One error of ten calls after none is nothing to look at."""
    steps = {step: (10, int(step == 6)) for step in range(1, 7)}
    assert answer(tmp_path, "tool_error_burst", rising(steps)).status == "healthy"


def test_calls_whose_end_is_unknown_are_left_out(tmp_path: Path) -> None:
    """A dump may not say how a call ended; if it marks failures alone, how often a tool fails is unknown."""
    failed, little = {"status": "error", "error_type": "TimeoutError"}, "of each tool call whether it failed."
    for name, known, expected in (
        (
            "some",
            {"status": "ok"},
            ("healthy", "No tool call failed. The outcome of 20 more calls is unknown."),
        ),
        ("none", {"status": None}, ("unobserved", f"A dump does not say {little}")),
        ("failures", failed, ("unobserved", f"A dump does not say {little}")),
    ):
        ends = (tool(number, 1, **({"status": None} if number % 2 else known)) for number in range(40))
        finding = answer(tmp_path / name, "tool_error_burst", [*trajectories(40), *ends])
        assert (finding.status, finding.message) == expected


def test_run_without_tools_is_unobserved(tmp_path: Path) -> None:
    """Neither errors nor parse failures are known."""
    rows = list(trajectories(8))
    for name in ("tool_error_burst", "tool_calls_unparsable"):
        assert answer(tmp_path / name, name, rows).status == "unobserved"


@pytest.mark.parametrize(
    "failure",
    [
        {"kind": "TOOL", "tool_name": "search", "error_message": "Invalid JSON in arguments for 'search'"},
        {"kind": "CHAIN", "name": "HermesToolParser.extract_tool_calls", "error_type": "ToolCallFormatError"},
        {"kind": "TOOL", "tool_name": "search", "error_type": "json.decoder.JSONDecodeError"},
    ],
)
def test_parse_error_in_a_span_is_found(tmp_path: Path, failure: dict[str, Any]) -> None:
    """verl's tools, a decorated parser and a tool that decodes its arguments."""
    rows = [*trajectories(8)]
    for number in range(8):
        short = trace(1000 + number)
        rows.append(row(short, f"d{number}", "a" + short, status="error", **failure))
    assert answer(tmp_path, "tool_calls_unparsable", rows).status == "unhealthy"


def test_calls_in_texts_and_in_spans_are_counted_together(tmp_path: Path) -> None:
    """TRL moves the calls that can be read out of the text; a broken call stays in it."""
    rows = list(trajectories(8))
    rows += [tool(number, 1) for number in range(7)]
    broken = {"kind": "LLM", "reply": '<tool_call>{"name": "search", </tool_call>'}
    rows.append(row(trace(1007), "e7", "a" + trace(1007), step=1, **broken))
    finding = answer(tmp_path, "tool_calls_unparsable", rows)
    assert (finding.status, "1 of the 8 trajectories" in finding.message) == ("healthy", True), finding


# --- weights -----------------------------------------------------------------------------------------------


def versions(*of_steps: int) -> list[dict[str, Any]]:
    """Return steps of eight trajectories from these versions of the weights."""
    return [
        each
        for step, version in enumerate(of_steps, 1)
        for each in trajectories(8, step, policy_version_min=version, policy_version_max=version)
    ]


@pytest.mark.parametrize(
    ("of_steps", "steps"),
    [
        ((0, 1, 2, 3, 4, 5), ()),
        ((0, 4, 8, 12, 16), ()),  # several updates per step
        ((0, 0, 0, 1, 1, 1, 2, 2, 2), ()),  # new weights every third step
        ((0, 1, 2, 3, 3, 3, 3), (5, 6, 7)),
        ((0, 0, 0, 0, 0, 0), (1, 2, 3, 4, 5, 6)),
        ((3, 3), ()),
    ],
)
def test_weights_that_stop_to_arrive_are_found(
    tmp_path: Path, of_steps: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    """A run whose versions rise now and then is healthy."""
    assert answer(tmp_path, "policy_lag", versions(*of_steps)).steps == steps


def test_lag_has_the_figures_of_the_report(tmp_path: Path) -> None:
    """The report subtracts the version from the step's number."""
    assert answer(tmp_path, "policy_lag", versions(0, 1, 2)).message == (
        "None of the 24 trajectories with a known version of the weights has weights more than 2 versions "
        "behind the newest of their step. Usual is a lag of 0; the greatest is 0. Counted from the step's "
        "number, as `report` does, the lag is 1 on average, at most 1."
    )


def test_weights_without_a_version_are_unobserved(tmp_path: Path) -> None:
    """Nobody knows their age."""
    assert answer(tmp_path, "policy_lag", trajectories(8)).status == "unobserved"


# --- processes ---------------------------------------------------------------------------------------------


def two_workers(slow_factor: float, tokens: int = 100) -> Iterator[dict[str, Any]]:
    """Yield three steps of two processes, of which one is slower and has other replies."""
    for step in range(1, 4):
        yield from trajectories(40, step)
        for number in range(40):
            is_second = number % 2
            seconds = (2.0 + number % 5 / 10) * (slow_factor * tokens / 100 if is_second else 1)
            yield call(number, step, tokens_out=tokens if is_second else 100) | {
                "duration_ns": int(seconds * 1e9),
                "resource": f'{{"rollout.segment.id":"{70 + is_second}-ab.00000{step}"}}',
            }


def test_slow_process_is_named(tmp_path: Path) -> None:
    """Its spans are in a file of their own each step."""
    finding = answer(tmp_path, "slow_worker", two_workers(2.0))
    assert (finding.status, finding.steps) == ("unhealthy", (1, 2, 3))
    assert (
        finding.message
        == "pid 71 takes 2.0 times as long as the other processes for `generate` in steps 1–3."
    )


def test_process_with_longer_replies_is_not_slow(tmp_path: Path) -> None:
    """Time counts per token."""
    assert answer(tmp_path, "slow_worker", two_workers(1.0, tokens=400)).status == "healthy"


def of_workers(step: int, *calls: tuple[str, int, float]) -> Iterator[dict[str, Any]]:
    """Yield a step in which processes make so many calls of so many seconds each."""
    yield from trajectories(40, step)
    numbers = itertools.count()
    for worker, number, seconds in calls:
        columns = {"resource": f'{{"service.instance.id":"{worker}"}}', "duration_ns": int(seconds * 1e9)}
        yield from (call(next(numbers), step) | columns for _ in range(number))


def test_process_is_compared_from_as_many_calls_as_in_timeline(tmp_path: Path) -> None:
    """Nine are enough for both."""
    rows = list(of_workers(1, ("w1", 9, 0.02), ("w2", 9, 0.06)))
    finding = answer(tmp_path, "slow_worker", rows)
    assert finding.message == "w2 takes 3.0 times as long as the other processes for `generate` in step 1."


def test_processes_that_cannot_be_compared_are_unobserved(tmp_path: Path) -> None:
    """Each has calls enough, but in a step of its own."""
    rows = [*of_workers(1, ("w1", 20, 0.02)), *of_workers(2, ("w2", 20, 0.06), ("w1", 3, 0.02))]
    finding = answer(tmp_path, "slow_worker", rows)
    assert finding.status == "unobserved"
    assert finding.message == "No two processes have 9 calls or more of one operation in a step."


def test_sentence_says_what_was_compared(tmp_path: Path) -> None:
    """Two of three processes, in one of two steps; one that is alone in a step is not called fast there."""
    rows = [*of_workers(1, ("w1", 9, 0.02), ("w2", 9, 0.02), ("w3", 3, 9.0)), *of_workers(2, ("w1", 9, 9.0))]
    finding = answer(tmp_path, "slow_worker", rows)
    assert (finding.status, finding.message) == (
        "healthy",
        "None of 2 processes is slower than the others in step 1: of 3, only those with 9 calls or more of "
        "one operation in a step are compared.",
    )


def test_step_in_which_a_process_is_alone_says_nothing_of_its_speed(tmp_path: Path) -> None:
    """It is slow in the only step in which it can be compared."""
    rows = [each for step in range(2, 6) for each in of_workers(step, ("w1", 20, 2.0))]
    rows += of_workers(1, ("w1", 20, 2.0), ("w2", 20, 1.0))
    assert answer(tmp_path, "slow_worker", rows).steps == (1,)


def test_single_process_is_unobserved(tmp_path: Path) -> None:
    """There is none to compare it with."""
    rows = [each | {"resource": '{"process.pid":7}'} for each in two_workers(1.0) if each["kind"] == "LLM"]
    assert answer(tmp_path, "slow_worker", [*trajectories(8), *rows]).status == "unobserved"


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ('{"rollout.segment.id":"5460-90516bf7b90a1a7f.000001"}', "pid 5460"),
        ('{"rollout.segment.id":"5460-90.000002","host.name":"n1"}', "pid 5460 on n1"),
        ('{"service.instance.id":"w3"}', "w3"),
        ('{"host.name":"n1","process.pid":7}', "pid 7 on n1"),
    ],
)
def test_process_has_the_name_that_timeline_gives(tmp_path: Path, resource: str, name: str) -> None:
    """Ours have the segment's file; spans of other systems say host, instance or process id."""
    rows = [
        {**each, "resource": resource if "71-ab" in (each.get("resource") or "") else each.get("resource")}
        for each in two_workers(2.0)
    ]
    assert answer(tmp_path, "slow_worker", rows).message.startswith(f"{name} takes 2.0 times")


def test_arguments_in_a_reply_that_are_no_json_are_unparsable_calls(tmp_path: Path) -> None:
    """The program need not trace the tool, nor its parser."""
    asked = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{bad"}}
    reply = json.dumps({"role": "assistant", "content": None, "tool_calls": [asked]})
    rows = [*trajectories(8), *(call(n, 1, output=reply) for n in range(8))]
    finding = answer(tmp_path, "tool_calls_unparsable", rows)
    assert finding.status == "unhealthy"
    assert finding.message.startswith("8 of the 8 trajectories with a tool call in step 1 (100%)")
