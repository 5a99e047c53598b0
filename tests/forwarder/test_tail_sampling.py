"""Groups are delivered whole or not at all, by what came of them, and the account adds up."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

import otel_rollout
from otel_rollout import Report, StepKey, rollout_trace_attr, rollout_trace_op, runtime, score
from otel_rollout.account import node_report
from otel_rollout.account.ledger import Ledger, read_ledger
from otel_rollout.base import semconv
from otel_rollout.base.parsers import tail_rules
from otel_rollout.cli import forwarding
from otel_rollout.forwarder import tail_sampling
from otel_rollout.forwarder.tail_rules import Judge, Trajectory, Verdict
from otel_rollout.forwarder.tail_sampling import Selection
from otel_rollout.launch import launcher
from otel_rollout.otlp import evaluations
from otel_rollout.recording.sampling import Group
from otel_rollout.runs import directory, membership
from otel_rollout.settings import SettingsError
from otel_rollout.spool import layout
from tests.faults.forwarding import nobody_forwards
from tests.forwarder.test_delivery import node_directory, otel_rollout_command
from tests.waiting import wait_for

Begin = Callable[..., None]


@pytest.fixture
def begin(fresh_process: None, test_exporters: None, tmp_path: Path) -> Begin:
    """Switches tracing on, delivering to two files what these outcomes keep."""

    def configure(outcome_keep: str, **arguments: Any) -> None:
        targets = {name: {"path": str(tmp_path / name)} for name in ("test-file", "test-faulty")}
        otel_rollout.configure(
            targets, outcome_keep=outcome_keep, experiment_name="e", forwarder_linger=60, **arguments
        )

    return configure


@rollout_trace_op(kind="LLM")
def answer(fails: bool = False) -> None:
    if fails:
        raise ValueError("as the test wishes")


def sibling(row: Any, number: int, reward: float | None = None, step: int = 1, **extra: Any) -> str | None:
    """Record one trajectory: a root, an operation and, with a reward, a score; its id."""
    fails = extra.pop("fails", False)
    with rollout_trace_attr(step=step, sample_index=row, rollout_n=number, **extra) as trajectory:
        with contextlib.suppress(ValueError):
            answer(fails)
        if reward is not None:
            score("reward", reward)
    return trajectory.id


def group(row: Any, rewards: list[float], **extra: Any) -> None:
    for number, reward in enumerate(rewards):
        sibling(row, number, reward, group_size=len(rewards), **extra)


def arrived(target: Path) -> Counter[Any]:
    """Row → spans of it that arrived; asserts that none came twice."""
    lines = [json.loads(line) for line in target.read_text().splitlines()] if target.exists() else []
    assert len({span for span, _, _ in lines}) == len(lines)
    return Counter(attributes.get("rollout.sample_index") for _, _, attributes in lines)


def assert_adds_up(report: Report) -> None:
    assert report.lost == 0
    for count in report.exporters.values():
        done = count.delivered + count.rejected + count.left_out + count.pending
        assert done == report.recorded
        of_steps = [s.left_out for s in report.by_step.values()]
        assert sum(of_steps) == max(c.left_out for c in report.exporters.values())


def test_groups_are_delivered_whole_for_their_outcome(begin: Begin, tmp_path: Path) -> None:
    """Errors, a spread of rewards, only zeros: kept with all siblings; the rest is left out, and counted."""
    begin("errors,spread=0.5,zero")
    group("wide", [0.0, 1.0, 0.0])
    group("narrow", [0.5, 1.0, 0.75])
    group("zeros", [0.0, 0.0])
    for number in range(3):
        sibling("failed", number, 1.0, fails=number == 1)
    answer()  # outside any trajectory: of no group
    sibling(None, 0)
    report = otel_rollout.shutdown(30)
    expected = {"wide": 9, "zeros": 6, "failed": 9, None: 3}
    assert arrived(tmp_path / "test-file") == arrived(tmp_path / "test-faulty") == expected
    assert report.groups_kept == {"spread": 1, "zero": 1, "errors": 1}
    assert report.groups_left_out == {"ordinary": 1}
    assert {c.left_out for c in report.exporters.values()} == {9}
    assert_adds_up(report)
    assert "groups kept: " in report.summary()
    shown = otel_rollout_command("status", "--steps", "--spool", report.place)
    assert "groups delivered (spread): 1" in shown
    assert "groups left out (ordinary): 1" in shown


def test_a_group_is_decided_when_it_is_complete_and_its_scores_are_known(
    begin: Begin, tmp_path: Path
) -> None:
    """Undecided groups wait on disk; a late score decides, and one after that follows its trajectory."""
    begin("spread=0.5")
    first = sibling("slow", 0, 1.0, group_size=2)
    group("done", [0.0, 1.0])
    wait_for(lambda: otel_rollout.status().groups_kept == {"spread": 1}, what="the complete group's verdict")
    second = sibling("slow", 1, group_size=2)
    time.sleep(0.5)
    waiting = otel_rollout.status()
    assert waiting.groups_kept == {"spread": 1}
    assert all(count.pending for count in waiting.exporters.values())
    score("reward", 0.0, trajectory=second)
    wait_for(lambda: otel_rollout.status().groups_kept == {"spread": 2}, what="the verdict by a late score")
    score("advantage", 0.5, trajectory=first)
    report = otel_rollout.shutdown(30)
    assert report.exporters["test-file"].delivered == report.recorded
    assert_adds_up(report)


def test_a_late_score_of_a_group_that_is_left_out_is_counted(begin: Begin, tmp_path: Path) -> None:
    """It goes where its trajectory went: nowhere; so does a sibling that comes late."""
    begin("errors")
    scored = sibling("row", 0, 1.0, group_size=1)
    wait_for(lambda: otel_rollout.status().groups_left_out == {"ordinary": 1}, what="the verdict")
    score("advantage", 0.5, trajectory=scored)
    sibling("row", 1, 1.0, fails=True)
    report = otel_rollout.shutdown(30)
    assert arrived(tmp_path / "test-file") == {}
    assert report.exporters["test-file"].left_out == report.recorded == 7
    assert report.groups_left_out == {"ordinary": 1}
    assert_adds_up(report)


def test_the_deadline_decides_by_what_is_known(begin: Begin, tmp_path: Path) -> None:
    """A group that never completes holds up what lies behind it so long, and no longer."""
    begin("errors,spread=0.5", outcome_deadline=2)
    sibling("failed", 0, fails=True, group_size=8)
    sibling("unscored", 0, group_size=8)
    wait_for(lambda: sum(otel_rollout.status().groups_left_out.values()), what="the deadline")
    wait_for(lambda: otel_rollout.status().exporters["test-file"].pending == 0, what="delivery")
    report = otel_rollout.status()
    assert (report.groups_kept, report.groups_left_out) == ({"errors": 1}, {"unscored": 1})
    assert arrived(tmp_path / "test-file") == {"failed": 2}


def test_who_waits_for_delivery_does_not_wait_for_the_deadline(begin: Begin) -> None:
    """A drain decides what has ended by what is known, though other processes go on."""
    begin("spread=0.5", outcome_deadline=3600)
    membership.decide()
    fork = multiprocessing.get_context("fork")
    recorded, over = fork.Event(), fork.Event()

    def go_on() -> None:
        sibling("row", 0)
        active = runtime.current()
        assert active is not None
        active.writer.flush(10)
        recorded.set()
        over.wait()

    other = fork.Process(target=go_on)
    other.start()
    assert recorded.wait(60)
    report = otel_rollout.shutdown(30)
    over.set()
    other.join()
    assert report.groups_left_out == {"unscored": 1}
    assert {c.pending for c in report.exporters.values()} == {0}
    assert_adds_up(report)


def test_an_index_that_is_none_keeps_nobody_waiting(begin: Begin) -> None:
    """A list in place of an index, on a span of no trajectory: it is delivered, and groups are decided."""
    begin("errors")

    @rollout_trace_op
    def odd() -> None:
        trace.get_current_span().set_attribute(semconv.SAMPLE_INDEX, [1, 2])

    odd()
    group("row", [0.0, 1.0])
    report = otel_rollout.shutdown(30)
    assert report.groups_left_out == {"ordinary": 1}
    assert {count.pending for count in report.exporters.values()} == {0}
    assert {count.delivered for count in report.exporters.values()} == {1}
    assert_adds_up(report)


def test_a_group_that_does_not_say_its_size_waits_for_who_runs_and_a_while(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling that is still running may be the one that fails; and another may be about to begin."""
    monkeypatch.setattr(tail_sampling, "RUNNING_INTERVAL", 0)
    begin("errors")
    membership.decide()
    node_dir = directory.node_directory(membership.decide())
    layout.create_private(node_dir, membership.decide().spool_dir)

    def verdicts(quiet: float) -> dict[tuple[bool, str], int]:
        monkeypatch.setattr(tail_sampling, "QUIET", quiet)
        active = runtime.current()
        assert active is not None
        assert active.writer.flush(10)
        while deciding._look():
            pass
        return read_ledger(node_dir).groups

    with nobody_forwards(node_dir), contextlib.closing(Ledger(node_dir)) as ledger:
        deciding = Selection(node_dir, membership.decide(), lambda: True)
        deciding._ledger = ledger
        sibling("row", 0)
        assert verdicts(quiet=60) == {}
        with rollout_trace_attr(step=1, sample_index="row", rollout_n=1):
            sibling("other", 0)
            assert verdicts(quiet=0) == {}
            with pytest.raises(ValueError, match="as the test"):
                answer(True)
        assert verdicts(quiet=0) == {(True, "errors"): 1}


def test_a_step_gets_no_more_than_its_bytes_and_errors_first(begin: Begin, tmp_path: Path) -> None:
    """What is over a step's budget is left out and counted, whole; room is left for errors."""
    begin("errors,spread=0", outcome_bytes=100_000)
    for row in range(40):
        group(row, [0.0, 1.0])
    for row in range(40, 44):
        group(row, [0.0, 1.0], fails=True)
    group(0, [0.0, 1.0], step=2)
    report = otel_rollout.shutdown(30)
    assert report.groups_kept["errors"] == 4
    assert 3 <= report.groups_kept["spread"] < 30
    assert report.groups_left_out["budget"] == 41 - report.groups_kept["spread"]
    assert report.by_step[StepKey("2", False)].left_out == 0
    assert_adds_up(report)


def test_an_unfinished_trajectory_is_an_error(begin: Begin, tmp_path: Path) -> None:
    """Siblings whose process was killed keep their group."""
    begin("errors")
    membership.decide()

    def die() -> None:
        sibling("killed", 0)
        with rollout_trace_attr(step=1, sample_index="killed", rollout_n=1):
            answer()
            active = runtime.current()
            assert active is not None
            active.writer.flush(10)
            os.kill(os.getpid(), 9)

    child = multiprocessing.get_context("fork").Process(target=die)
    child.start()
    child.join()
    report = otel_rollout.shutdown(30)
    assert report.groups_kept == {"errors": 1}
    assert arrived(tmp_path / "test-file") == {"killed": 4}


def test_each_exporter_has_its_own_cursor_and_the_same_groups(begin: Begin, tmp_path: Path) -> None:
    """One is away while groups are decided: it gets the same ones later, by hand, and nothing twice."""
    begin("spread=0.5", shutdown_timeout=1)
    (tmp_path / "test-faulty.fault").write_text("refused")
    for row in range(30):
        group(row, [0.0, float(row % 2)])
    report = otel_rollout.shutdown(5)
    assert report.exporters["test-faulty"].pending
    wait_for(lambda: not launcher.forwarder_runs(node_directory(tmp_path)), what="the forwarder's end")
    first = arrived(tmp_path / "test-file")
    assert set(first) == {row for row in range(30) if row % 2}
    (tmp_path / "test-faulty.fault").unlink()
    configured = membership.decide()
    assert forwarding.forward_directory(Path(report.place), configured)
    final = node_report.report(Path(report.place), configured)
    assert arrived(tmp_path / "test-faulty") == first == arrived(tmp_path / "test-file")
    assert_adds_up(final)
    assert (final.groups_kept, final.groups_left_out) == ({"spread": 15}, {"ordinary": 15})


def test_what_was_left_out_can_be_replayed(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive of a run that keeps its segments holds everything, and replay delivers all of it."""
    begin("errors", keep=True)
    group("ordinary", [1.0, 1.0])
    report = otel_rollout.shutdown(30)
    assert report.exporters["test-file"].delivered == 0
    archive = node_directory(tmp_path) / layout.ARCHIVE
    wait_for(lambda: archive.is_dir() and list(archive.glob("*.zst")), what="the archive")
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "replayed"))
    monkeypatch.setenv("OTEL_ROLLOUT_OUTCOME_KEEP", "errors")
    otel_rollout_command("replay", str(archive), "--to", "test-file")
    assert arrived(tmp_path / "replayed") == {"ordinary": 6}


def test_wrong_outcomes_are_refused_in_code() -> None:
    """configure() says which part cannot be used."""
    with pytest.raises(SettingsError, match="has 'often', which is none of errors,"):
        otel_rollout.configure("spool", outcome_keep="often")


# --- the verdict, without processes ------------------------------------------------------------------------


def trajectory(**known: Any) -> Trajectory:
    made = Trajectory("reward")
    made.ended = True
    for name, value in known.items():
        setattr(made, name, value)
    return made


def line_of(attributes: dict[str, Any], start_ns: int, parent_id: str = "", end_ns: int = 100) -> bytes:
    """A line as the recorder writes it, of a span of the trace ``t``; the root's id is ``root``."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    encoded = [{"key": key, "value": {kinds[type(held)]: held}} for key, held in attributes.items()]
    span = {
        "traceId": "t",
        "spanId": f"s{start_ns}" if parent_id else "root",
        "parentSpanId": parent_id,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": encoded,
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def scored(value: Any, start_ns: int, origin: str | None = None, parent_id: str = "root") -> bytes:
    return line_of(evaluations.attributes_of("reward", value, None, origin), start_ns, parent_id)


def noted(*lines: bytes) -> Trajectory:
    made = Trajectory("reward")
    for line in lines:
        made.note(line)
    return made


def test_newest_score_decides_in_whatever_order_it_is_read() -> None:
    """By id while the trajectory ran, inside, or repeated by the root: the one given last counts."""
    root = line_of({"rollout.score.reward": 0.1, "rollout.score_time.reward": 10}, 0)
    lines = [scored(0.1, 10), scored(0.9, 20, "outside"), scored(0.5, 15, "process", "worker"), root]
    for order in itertools.permutations(lines):
        assert noted(*order).score == 0.9
    late = scored(0.2, 30, "process", "worker")
    for order in itertools.permutations([*lines, late]):
        assert noted(*order).score == 0.2


def test_score_of_a_sub_trajectory_is_not_the_trajectorys() -> None:
    """The opponent's reward, given last, does not stand for the debate's."""
    root = line_of({"rollout.score.reward": 1.0, "rollout.score_time.reward": 10}, 0)
    assert noted(scored(1.0, 10), scored(0.0, 20, parent_id="opponent"), root).score == 1.0


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [
        ([0.0, False, 0.0], (True, "zero")),
        ([0.0, "nan"], (False, "ordinary")),
        ([0.0, "timeout"], (False, "ordinary")),
        (["nan", "nan"], (False, "ordinary")),
        ([True, False], (True, "spread")),
        ([0.0, "inf"], (True, "spread")),
        (["-inf", 3.0], (True, "spread")),
        (["inf", "inf"], (False, "ordinary")),
        ([1.0, "nan", 0.0], (True, "spread")),
    ],
)
def test_rewards_of_every_kind_are_judged(rewards: list[Any], verdict: tuple[bool, str]) -> None:
    """A yes counts 1; infinity is further than anything; NaN and text are rewards that are not 0."""
    judge = Judge(tail_rules("zero,spread=0.5"), 0, "")
    siblings = [noted(scored(reward, 10), line_of({}, 0)) for reward in rewards]
    assert judge.judge(Group("e", 1, 1, False), siblings) == verdict


def test_what_is_unusually_slow_or_long_is_kept() -> None:
    """Beyond so many times the median of the latest; not while there are too few to tell."""
    judge = Judge(tail_rules("slow=3,long=4"), 0, "")
    name = Group("e", 1, 1, False)
    slow, long = trajectory(seconds=3.1, tokens=100), trajectory(seconds=1.0, tokens=401)
    assert judge.judge(name, [slow]) == (False, "ordinary")
    judge.learn(name, [trajectory(seconds=1.0, tokens=100) for _ in range(50)])
    assert judge.judge(name, [trajectory(seconds=1.0, tokens=100), slow]) == (True, "slow")
    assert judge.judge(name, [long]) == (True, "long")
    assert judge.judge(name, [trajectory(seconds=2.9, tokens=399)]) == (False, "ordinary")
    validation = name._replace(validate=True)
    assert judge.judge(validation, [slow]) == (False, "ordinary"), "validation has a measure of its own"


def test_a_base_rate_is_the_same_on_every_node() -> None:
    """It goes by the group's name, and has nothing to do with what was sampled before."""
    judge = Judge(tail_rules("rate=0.3"), 0, "seed")
    kept = {row for row in range(500) if judge.judge(Group("e", 1, row, False), [trajectory()]).kept}
    again = Judge(tail_rules("rate=0.3"), 0, "seed")
    assert kept == {row for row in range(500) if again.judge(Group("e", 1, row, False), [trajectory()]).kept}
    assert 110 < len(kept) < 190


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 100)), max_size=60),
    st.integers(1, 1000),
)
def test_a_budget_is_never_exceeded(groups: list[tuple[bool, int]], budget: int) -> None:
    """Whatever comes in whatever order; and groups without errors leave errors their share."""
    judge = Judge({}, budget, "")
    spent = Counter[bool]()
    for is_error, size in groups:
        verdict = judge.admit("step", Verdict(True, "errors" if is_error else "spread"), size)
        spent[is_error] += size * verdict.kept
    assert sum(spent.values()) <= budget
    assert spent[False] <= budget * (1 - Judge.FOR_ERRORS)


@given(st.binary(max_size=400))
def test_any_line_is_noted(line: bytes) -> None:
    """What cannot be read tells nothing, and stops nobody."""
    assert noted(line).size == len(line)
