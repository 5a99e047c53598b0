"""A comparison finds what changed, and says nothing of what moves anyway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.changes import Cause, RunComparison, Side, compare, sides_of_runs
from otel_rollout.look.analysis.report.page import page_of_changes
from otel_rollout.look.analysis.report.report import report_of
from otel_rollout.look.analysis.run_choice import run_of
from tests.analysis.report.runs_for_reports import engine_of, failing_tool, trajectory
from tests.table.tables import root
from tests.table.tables import row as row_of


def compared(tmp_path: Path, before: slice, after: slice, first_bad: int = 6) -> RunComparison:
    """Compare some steps of a run of eight."""
    engine = engine_of(tmp_path, *failing_tool(first_bad=first_bad))
    run = run_of(engine)
    steps = report_of(engine, run).training
    return compare(engine, Side(run, steps[before]), Side(run, steps[after]), [steps])


def test_failing_tool_is_found_with_its_error_and_its_trajectories(tmp_path: Path) -> None:
    """The tool has its error's type and evidence, the reward falls, and all tools together are not said."""
    changes = compared(tmp_path, slice(0, 5), slice(5, 8)).changes
    told = {change.name: change for change in changes}
    assert set(told) == {"tool_errors:browser", "reward_mean", "reward_std"}
    tool, reward = told["tool_errors:browser"], told["reward_mean"]
    assert (tool.before, tool.after, tool.is_worse) == (0.0, 0.5, True)
    assert tool.parts == (Cause("TimeoutError", 0.0, 0.5),)
    assert tool.examples == ("6/524/0", "6/525/0", "6/526/0")
    assert (reward.before, reward.after) == (pytest.approx(0.54), pytest.approx(0.27, abs=0.02))
    assert reward.examples == ("6/524/0", "6/525/0", "6/526/0")
    assert min(tool.surprise, reward.surprise) > 4


def test_causes_and_tools_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    """Of six classes of errors four have a line, and of 14 tools twelve have a row."""
    rows = list(failing_tool())
    failures = [row for row in rows if row.get("error_type")]
    for number, row in enumerate(failures):
        row["error_type"] = f"Error{number % 6}"
    calls = [row for row in rows if row.get("tool_name")]
    for number, row in enumerate(calls[:13]):
        row["tool_name"] = f"tool{number}"
    engine = engine_of(tmp_path, *rows)
    run = run_of(engine)
    steps = report_of(engine, run).training
    found = compare(engine, Side(run, steps[:5]), Side(run, steps[5:]), [steps])
    (tool,) = (change for change in found.changes if change.name == "tool_errors:browser")
    assert list(report_text.parts(tool))[3:] == ["Error3 0% → 8.3%", "and 2 more"]
    heading, names = report_text.tools(steps, 5)[0]
    assert (heading, len(names)) == ("tool (12 of 14)", 12)


def groups_of(step: int, right: int) -> Iterator[dict[str, Any]]:
    """Yield twenty groups of two, of which some have the reward 1; which ones changes from step to step."""
    for place in range(40):
        is_right = (place // 2 + 3 * step) % 20 < right
        yield from trajectory(step * 40 + place, reward=float(is_right), step=step, run_id="run-1")


def test_fall_of_the_reward_is_found_before_larger_falls(tmp_path: Path) -> None:
    """The groups tell the reward's noise: other falls do not hide this one, and a small one is none."""
    right = [15, 14, 15, 14, 15, 9, 8, 9, 3, 6, 0, 4]
    rows = [row for step, number in enumerate(right, start=1) for row in groups_of(step, number)]
    engine = engine_of(tmp_path, *rows)
    run = run_of(engine)
    steps = report_of(engine, run).training
    found = [
        [change.name for change in compare(engine, Side(run, before), Side(run, after), [steps]).changes]
        for before, after in ((steps[2:5], steps[5:8]), (steps[0:2], steps[2:5]), (steps[5:7], steps[7:8]))
    ]
    assert found == [["reward_mean"], [], []]


def test_run_that_only_moves_has_no_changes(tmp_path: Path) -> None:
    """Steps of a run whose rewards move from step to step do not differ."""
    found = compared(tmp_path, slice(0, 1), slice(4, 5), first_bad=99)
    assert found.changes == ()
    assert all(change.surprise < 3 for change in found.others)


def test_recovery_is_shown_by_trajectories_from_before(tmp_path: Path) -> None:
    """Errors that went away have their examples in the earlier steps, and are no harm."""
    changes = compared(tmp_path, slice(5, 8), slice(0, 5)).changes
    tool = next(change for change in changes if change.name == "tool_errors:browser")
    assert (tool.is_worse, tool.examples[0]) == (False, "6/524/0")


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        ("tool_seconds:browser", ("6/526/1", "6/524/0", "6/524/1")),
        ("tool_calls:browser", ("6/524/0", "6/524/1", "6/525/0")),
    ],
)
def test_tools_mean_that_fell_is_shown_by_the_lowest_after(
    tmp_path: Path, name: str, examples: tuple[str, ...]
) -> None:
    """A tool that is faster, or no longer called, has its examples in the later steps, as any mean has."""
    rows = []
    for row in failing_tool(first_bad=99):
        if row.get("tool_name") and row["step"] > 5:
            if name == "tool_calls:browser":
                continue
            row["duration_ns"] //= 3 if (row["sample_index"], row["rollout_n"]) == ("526", 1) else 2
        rows.append(row)
    engine = engine_of(tmp_path, *rows)
    run = run_of(engine)
    steps = report_of(engine, run).training
    changes = compare(engine, Side(run, steps[:5]), Side(run, steps[5:]), [steps]).changes
    assert next(change for change in changes if change.name == name).examples == examples


def test_run_of_two_steps_can_be_compared(tmp_path: Path) -> None:
    """Without any other step, the size of the sample is the noise."""
    engine = engine_of(tmp_path, *failing_tool(steps=2, first_bad=2))
    run = run_of(engine)
    steps = report_of(engine, run).training
    found = compare(engine, Side(run, steps[:1]), Side(run, steps[1:]), [steps])
    names = [change.name for change in (*found.changes, *found.others)]
    assert names[0] in ("tool_errors:browser", "tool_errors")


def test_two_runs_are_compared_by_their_common_steps(tmp_path: Path) -> None:
    """An older run's trajectories are named with their run, for `show` takes a path of the newest run."""
    rows = [*failing_tool("run-1", steps=5), *failing_tool("run-2", steps=3, first_bad=1)]
    engine = engine_of(tmp_path, *rows)
    newest, older = run_of(engine), run_of(engine, "run-1")
    steps = {run: report_of(engine, run).training for run in (newest, older)}
    before, after = sides_of_runs((older, steps[older]), (newest, steps[newest]))
    assert (newest.run_id, before.name, after.name) == ("run-2", "steps 1–3", "steps 1–3")
    forth = compare(engine, before, after, list(steps.values()))
    back = compare(engine, after, before, list(steps.values()))
    for found in (forth, back):
        tool = next(change for change in found.changes if change.name == "tool_errors:browser")
        assert tool.examples == ("1/1004/0", "1/1005/0", "1/1006/0")
    reward = next(change for change in back.changes if change.name == "reward_mean")
    assert [name.count("/") for name in reward.examples] == [2, 2, 2]
    assert (reward.run, tool.run) == ("run-1", None)


def test_steps_are_named_as_they_are_compared_and_count_by_their_trajectories(tmp_path: Path) -> None:
    """Step 2 lies between, and is not compared; a p95 is weighted by what it is of, as every figure."""
    seconds = {1: (1.0,), 2: (9.0,), 3: (3.0,) * 3}
    rows = [
        root(f"{step}{n}", step=step, rollout_n=n, duration_ns=int(each * 1e9))
        for step, some in seconds.items()
        for n, each in enumerate(some)
    ]
    engine = engine_of(tmp_path, *rows)
    run = run_of(engine)
    first, other, last = report_of(engine, run).training
    before, after = Side(run, (first, last)), Side(run, (other,))
    assert (before.name, after.name) == ("steps 1, 3", "step 2")
    found = compare(engine, before, after, [])
    p95 = next(each for each in (*found.changes, *found.others) if each.name == "seconds_p95")
    assert p95.before == pytest.approx((1 * 1 + 3 * 3) / 4)


@pytest.mark.parametrize(
    ("before", "after", "whole", "is_change"),
    [(160, 240, 1_000, False), (160, 290, 1_000, True), (160, 290, 100_000, False)],
)
def test_phase_changes_if_a_person_reads_it_and_it_is_a_part_of_the_duration(
    tmp_path: Path, before: int, after: int, whole: int, is_change: bool
) -> None:
    """Microseconds of a tool: 0.2 ms stays 0.2 ms, and 0.1 ms are nothing in a trajectory of 100 ms."""
    rows = []
    for step, long in enumerate((before,) * 5 + (after,), 1):
        for n in range(8):
            at = root(f"{step}{n}", step=step, rollout_n=n, duration_ns=whole * 1000)
            kept = {"start_ns": at["start_ns"], "duration_ns": long * 1000, "step": step, "rollout_n": n}
            rows += [
                at,
                row_of(f"{step}{n}", f"c{step}{n}", f"a{step}{n}", kind="TOOL", tool_name="t", **kept),
            ]
    engine = engine_of(tmp_path, *rows)
    run = run_of(engine)
    steps = report_of(engine, run).training
    found = compare(engine, Side(run, steps[:5]), Side(run, steps[5:]), [steps])
    assert ("seconds_tool" in {each.name for each in found.changes}) is is_change


def test_page_shows_the_changes(tmp_path: Path) -> None:
    """The page has each change with its cause, and the figures within the noise."""
    page = page_of_changes(compared(tmp_path, slice(0, 5), slice(5, 8)))
    assert "tool browser: errors 0% → 50%" in page
    assert "all TimeoutError" in page
    assert "<code>6/524/0</code>" in page
    assert "× the usual change" in page
