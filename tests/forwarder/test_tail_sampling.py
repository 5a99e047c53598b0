"""Test tail sampling: groups are exported whole or not at all; counts add up."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

import otel_rollout
from otel_rollout import Report, StepKey, rollout_trace_attr, rollout_trace_op, score
from otel_rollout.account import node_report
from otel_rollout.account.ledger import Ledger
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.base import semconv
from otel_rollout.base.setting_parsers import tail_rules
from otel_rollout.cli import forwarding
from otel_rollout.deliver.delivery import Delivery
from otel_rollout.deliver.lines import LineCache
from otel_rollout.deliver.tail_rules import Decision, TailRules
from otel_rollout.deliver.tail_sampling import TailSampling, Undecided
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.groups import Group
from otel_rollout.otlp.outcome import TrajectoryOutcome
from otel_rollout.otlp.scan import trace_id_of
from otel_rollout.record import runtime
from otel_rollout.record.runs import founding, membership
from otel_rollout.settings import Settings, SettingsError
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName
from tests.faults.forwarding import nobody_forwards
from tests.forwarder.test_delivery import node_directory, otel_rollout_command
from tests.forwarder.tokens_support import line as recorded_line
from tests.forwarders import wait_for_end
from tests.waiting import wait_for
from tests.waits import set_waits

Begin = Callable[..., None]


@pytest.fixture
def begin(fresh_process: None, test_exporters: None, tmp_path: Path) -> Begin:
    """Return a function that switches tracing on, with two exporters and tail rules."""

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
    """Record a trajectory with an operation, and a score if given; return its id."""
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
    """Count the spans of each row that arrived; assert that none came twice."""
    lines = [json.loads(line) for line in target.read_text().splitlines()] if target.exists() else []
    assert len({span for span, _, _ in lines}) == len(lines)
    return Counter(attributes.get("rollout.sample_index") for _, _, attributes in lines)


def assert_adds_up(report: Report) -> None:
    assert report.lost == 0
    for count in report.exporters.values():
        done = count.delivered + count.rejected + count.sampled_out + count.pending
        assert done == report.recorded
        of_steps = [s.sampled_out for s in report.by_step.values()]
        assert sum(of_steps) == max(c.sampled_out for c in report.exporters.values())


def test_groups_are_kept_whole_for_their_outcome(begin: Begin, tmp_path: Path) -> None:
    """Groups with errors, a spread of scores or only zeros are kept; others are not."""
    begin("errors,spread=0.5,zero")
    group("wide", [0.0, 1.0, 0.0])
    group("narrow", [0.5, 1.0, 0.75])
    group("zeros", [0.0, 0.0])
    for number in range(3):
        sibling("failed", number, 1.0, fails=number == 1)
    answer()  # outside any trajectory, and so without group
    sibling(None, 0)
    report = otel_rollout.shutdown(30)
    expected = {"wide": 9, "zeros": 6, "failed": 9, None: 3}
    assert arrived(tmp_path / "test-file") == arrived(tmp_path / "test-faulty") == expected
    assert report.groups_kept == {"spread": 1, "zero": 1, "errors": 1}
    assert report.groups_sampled_out == {"ordinary": 1}
    assert {c.sampled_out for c in report.exporters.values()} == {9}
    assert_adds_up(report)
    assert "groups kept: " in report.summary()
    shown = otel_rollout_command("status", "--steps", "--spool", report.directory)
    assert "groups delivered (spread): 1" in shown
    assert "groups sampled out (ordinary): 1" in shown


def test_scores_by_identity_decide_their_group_and_share_its_decision(begin: Begin, tmp_path: Path) -> None:
    """They are no siblings; those of a group that is not delivered are counted as sampled out."""
    begin("spread=0.5")
    for row in ("wide", "narrow"):
        score("reward", 1.0, step=1, sample_index=row, rollout_n=0)
        for number in range(2):
            sibling(row, number, group_size=2)
    score("reward", 0.0, step=1, sample_index="wide", rollout_n=1)
    score("reward", 0.9, step=1, sample_index="narrow", rollout_n=1)
    decided = {"spread": 1}, {"ordinary": 1}
    wait_for(
        lambda: (otel_rollout.status().groups_kept, otel_rollout.status().groups_sampled_out) == decided,
        what="the decisions",
    )
    score("reward", 0.0, step=1, sample_index="narrow", rollout_n=1)
    score("reward", 0.0, step=1, sample_index="elsewhere")
    report = otel_rollout.shutdown(30)
    assert arrived(tmp_path / "test-file") == {"wide": 6, "elsewhere": 1}
    assert (report.groups_kept, report.groups_sampled_out) == decided
    assert {c.sampled_out for c in report.exporters.values()} == {7}
    assert_adds_up(report)


def test_group_is_decided_when_complete_and_scored(begin: Begin, tmp_path: Path) -> None:
    """Undecided groups wait on disk; a late score follows its trajectory's decision."""
    begin("spread=0.5")
    first = sibling("slow", 0, 1.0, group_size=2)
    group("done", [0.0, 1.0])
    wait_for(lambda: otel_rollout.status().groups_kept == {"spread": 1}, what="the complete group's verdict")
    second = sibling("slow", 1, group_size=2)
    group("done later", [0.0, 1.0])
    wait_for(lambda: otel_rollout.status().groups_kept == {"spread": 2}, what="a later group's verdict")
    assert all(count.pending for count in otel_rollout.status().exporters.values())
    score("reward", 0.0, trajectory=second)
    wait_for(lambda: otel_rollout.status().groups_kept == {"spread": 3}, what="the verdict by a late score")
    score("advantage", 0.5, trajectory=first)
    report = otel_rollout.shutdown(30)
    assert report.exporters["test-file"].delivered == report.recorded
    assert_adds_up(report)


def test_late_score_of_a_sampled_out_group_is_sampled_out(begin: Begin, tmp_path: Path) -> None:
    """A late sibling is sampled out too."""
    begin("errors")
    scored = sibling("row", 0, 1.0, group_size=1)
    wait_for(lambda: otel_rollout.status().groups_sampled_out == {"ordinary": 1}, what="the verdict")
    score("advantage", 0.5, trajectory=scored)
    sibling("row", 1, 1.0, fails=True)
    report = otel_rollout.shutdown(30)
    assert arrived(tmp_path / "test-file") == {}
    assert report.exporters["test-file"].sampled_out == report.recorded == 7
    assert report.groups_sampled_out == {"ordinary": 1}
    assert_adds_up(report)


def test_deadline_decides_incomplete_groups(begin: Begin, tmp_path: Path) -> None:
    """A group that never completes delays later lines no longer than its deadline."""
    begin("errors,spread=0.5", outcome_deadline=2)
    sibling("failed", 0, fails=True, group_size=8)
    sibling("unscored", 0, group_size=8)
    wait_for(lambda: sum(otel_rollout.status().groups_sampled_out.values()), what="the deadline")
    wait_for(lambda: otel_rollout.status().exporters["test-file"].pending == 0, what="delivery")
    report = otel_rollout.status()
    assert (report.groups_kept, report.groups_sampled_out) == ({"errors": 1}, {"unscored": 1})
    assert arrived(tmp_path / "test-file") == {"failed": 2}


def test_drain_decides_ended_groups_before_their_deadline(begin: Begin) -> None:
    """Ended groups are decided while other processes still record."""
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
    assert report.groups_sampled_out == {"unscored": 1}
    assert {c.pending for c in report.exporters.values()} == {0}
    assert_adds_up(report)


def test_sample_index_of_a_wrong_type_delays_no_group(begin: Begin) -> None:
    """A span whose index is a list is exported, and groups are decided."""
    begin("errors")

    @rollout_trace_op
    def odd() -> None:
        trace.get_current_span().set_attribute(semconv.SAMPLE_INDEX, [1, 2])

    odd()
    group("row", [0.0, 1.0])
    report = otel_rollout.shutdown(30)
    assert report.groups_sampled_out == {"ordinary": 1}
    assert {count.pending for count in report.exporters.values()} == {0}
    assert {count.delivered for count in report.exporters.values()} == {1}
    assert_adds_up(report)


def test_group_without_size_waits_for_running_siblings_and_quiet(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group waits, because a running or later sibling may still fail."""
    set_waits(monkeypatch, running_look=0)
    begin("errors")
    membership.decide()
    node_dir = founding.node_directory(membership.decide())
    layout.create_private(node_dir, membership.decide().spool_dir)

    def verdicts(quiet: float) -> dict[tuple[bool, str], int]:
        set_waits(monkeypatch, group_quiet=quiet)
        active = runtime.current()
        assert active is not None
        assert active.writer.flush(10)
        while deciding._look():
            pass
        return read_ledger(node_dir).groups

    with nobody_forwards(node_dir), contextlib.closing(Ledger(node_dir)) as ledger:
        deciding = TailSampling(node_dir, membership.decide(), lambda: True)
        deciding._ledger = ledger
        sibling("row", 0)
        assert verdicts(quiet=60) == {}
        with rollout_trace_attr(step=1, sample_index="row", rollout_n=1):
            sibling("other", 0)
            assert verdicts(quiet=0) == {}
            with pytest.raises(ValueError, match="as the test"):
                answer(True)
        assert verdicts(quiet=0) == {(True, "errors"): 1}


def test_step_budget_is_kept_and_errors_come_first(begin: Begin, tmp_path: Path) -> None:
    """Groups beyond a step's budget are sampled out whole, and counted."""
    begin("errors,spread=0", outcome_bytes=100_000)
    for row in range(40):
        group(row, [0.0, 1.0])
    for row in range(40, 44):
        group(row, [0.0, 1.0], fails=True)
    group(0, [0.0, 1.0], step=2)
    report = otel_rollout.shutdown(30)
    assert report.groups_kept["errors"] == 4
    assert 3 <= report.groups_kept["spread"] < 30
    assert report.groups_sampled_out["budget"] == 41 - report.groups_kept["spread"]
    assert report.by_step[StepKey("2", False)].sampled_out == 0
    assert_adds_up(report)


def test_unfinished_trajectory_counts_as_an_error(begin: Begin, tmp_path: Path) -> None:
    """Siblings of a killed process's trajectory keep their group."""
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


def test_exporters_get_equal_groups_at_their_own_pace(begin: Begin, tmp_path: Path) -> None:
    """An exporter that was away gets the kept groups later, and nothing twice."""
    begin("spread=0.5", shutdown_timeout=1)
    (tmp_path / "test-faulty.fault").write_text("refused")
    for row in range(30):
        group(row, [0.0, float(row % 2)])
    report = otel_rollout.shutdown(5)
    assert report.exporters["test-faulty"].pending
    wait_for_end(node_directory(tmp_path))
    first = arrived(tmp_path / "test-file")
    assert set(first) == {row for row in range(30) if row % 2}
    (tmp_path / "test-faulty.fault").unlink()
    configured = membership.decide()
    assert forwarding.forward_directory(Path(report.directory), configured)
    final = node_report.report(Path(report.directory), configured)
    assert arrived(tmp_path / "test-faulty") == first == arrived(tmp_path / "test-file")
    assert_adds_up(final)
    assert (final.groups_kept, final.groups_sampled_out) == ({"spread": 15}, {"ordinary": 15})


def test_sampled_out_groups_can_be_replayed(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive of a run that keeps its segments holds every line."""
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


def test_configure_refuses_wrong_outcomes() -> None:
    """The error names the part that cannot be used."""
    with pytest.raises(SettingsError, match="has 'often', which is none of errors,"):
        otel_rollout.configure("spool", outcome_keep="often")


# --- decisions, without processes --------------------------------------------------------------------------


def trajectory(**known: Any) -> TrajectoryOutcome:
    made = TrajectoryOutcome("reward")
    made.has_ended = True
    made._tokens.add("1", "", {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: known.pop("tokens", 0)})
    for name, value in known.items():
        setattr(made, name, value)
    return made


def line_of(attributes: dict[str, Any], start_ns: int, parent_id: str = "", end_ns: int = 100) -> bytes:
    """Make a line of a span of one trace; ids of spans are made from names, the root's from ``root``."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    encoded = [{"key": key, "value": {kinds[type(held)]: held}} for key, held in attributes.items()]
    span = {
        "traceId": "1" * 32,
        "spanId": _id_of(f"s{start_ns}" if parent_id else "root"),
        "parentSpanId": parent_id and _id_of(parent_id),
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": encoded,
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def _id_of(name: str) -> str:
    return name.encode().hex().zfill(16)


def scored(value: Any, start_ns: int, origin: str | None = None, parent_id: str = "root") -> bytes:
    return line_of(evaluations.attributes_of("reward", value, None, origin), start_ns, parent_id)


def noted(*lines: bytes) -> TrajectoryOutcome:
    made = TrajectoryOutcome("reward")
    for line in lines:
        made.add(line)
    return made


def test_newest_score_counts_in_any_order_of_lines() -> None:
    """The newest score counts, whether given by id, inside, or on the root."""
    root = line_of({"rollout.score.reward": 0.1, "rollout.score_time.reward": 10}, 0)
    lines = [scored(0.1, 10), scored(0.9, 20, "outside"), scored(0.5, 15, "process", "worker"), root]
    for order in itertools.permutations(lines):
        assert noted(*order).score == 0.9
    late = scored(0.2, 30, "process", "worker")
    for order in itertools.permutations([*lines, late]):
        assert noted(*order).score == 0.2


def test_score_of_a_sub_trajectory_is_not_its_callers() -> None:
    """A later score of a sub-trajectory does not replace its caller's score."""
    root = line_of({"rollout.score.reward": 1.0, "rollout.score_time.reward": 10}, 0)
    opponent = line_of({semconv.BEGINS_TRAJECTORY: True, semconv.VALIDATE: False}, 5, "root")
    assert noted(scored(1.0, 10), scored(0.0, 20, parent_id="s5"), opponent, root).score == 1.0


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
def test_scores_of_every_type_are_decided(rewards: list[Any], verdict: tuple[bool, str]) -> None:
    """True counts as 1, infinities as numbers; NaN and text are scores but not 0."""
    rules = TailRules(tail_rules("zero,spread=0.5"), 0, "")
    siblings = [noted(scored(reward, 10), line_of({}, 0)) for reward in rewards]
    assert rules.decide(Group("e", 1, 1, False), siblings) == verdict


def test_duration_and_tokens_are_those_of_the_recorded_spans() -> None:
    """The duration is the root's, and counts of model calls are added up."""
    outcome = TrajectoryOutcome("reward")
    kind = {"key": semconv.SPAN_KIND, "value": {"stringValue": semconv.KIND_LLM}}
    for number, tokens in enumerate((3, 4)):
        used = {"key": semconv.GEN_AI_USAGE_OUTPUT_TOKENS, "value": {"intValue": str(tokens)}}
        outcome.add(span_line(f"{number + 2:016x}", f"{1:016x}", [kind, used]))
    outcome.add(span_line(f"{1:016x}", "", []))
    assert (outcome.tokens, outcome.seconds, outcome.has_ended) == (7, 2.5, True)


def span_line(span_id: str, parent_id: str, attributes: list[dict[str, Any]]) -> bytes:
    """Return a line of a span that takes 2.5 s."""
    span = {
        "traceId": "1" * 32,
        "spanId": span_id,
        "parentSpanId": parent_id,
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000002500000000",
        "attributes": attributes,
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def test_unusually_slow_or_long_group_is_kept() -> None:
    """A group is compared with the median of enough latest trajectories."""
    rules = TailRules(tail_rules("slow=3,long=4"), 0, "")
    name = Group("e", 1, 1, False)
    slow, long = trajectory(seconds=3.1, tokens=100), trajectory(seconds=1.0, tokens=401)
    assert rules.decide(name, [slow]) == (False, "ordinary")
    rules.learn(name, [trajectory(seconds=1.0, tokens=100) for _ in range(50)])
    assert rules.decide(name, [trajectory(seconds=1.0, tokens=100), slow]) == (True, "slow")
    assert rules.decide(name, [long]) == (True, "long")
    assert rules.decide(name, [trajectory(seconds=3.0, tokens=400)]) == (False, "ordinary")
    validation = name._replace(validate=True)
    assert rules.decide(validation, [slow]) == (False, "ordinary"), "validation has its own median"


def test_nothing_is_unusual_where_the_median_is_zero() -> None:
    """Without token counts no group is long, whatever the first counted one has."""
    rules = TailRules(tail_rules("long=4"), 0, "")
    name = Group("e", 1, 1, False)
    rules.learn(name, [trajectory(seconds=1.0, tokens=0) for _ in range(50)])
    assert rules.decide(name, [trajectory(seconds=1.0, tokens=1)]) == (False, "ordinary")


def test_base_rate_chooses_equal_groups_on_every_node() -> None:
    """The choice depends on the group's name, and not on head sampling."""
    rules = TailRules(tail_rules("rate=0.3"), 0, "seed")
    again = TailRules(tail_rules("rate=0.3"), 0, "seed")
    groups = [Group("e", 1, row, False) for row in range(500)]
    kept = {group for group in groups if rules.decide(group, [trajectory()]).is_kept}
    assert kept == {group for group in groups if again.decide(group, [trajectory()]).is_kept}
    assert 110 < len(kept) < 190


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 100)), max_size=60),
    st.integers(1, 1000),
)
def test_budget_is_never_exceeded(groups: list[tuple[bool, int]], budget: int) -> None:
    """Groups without errors leave the share reserved for errors."""
    rules = TailRules({}, budget, "")
    spent = Counter[bool]()
    for is_error, size in groups:
        verdict = rules.admit("step", Decision(True, "errors" if is_error else "spread"), size)
        spent[is_error] += size * verdict.is_kept
    assert sum(spent.values()) <= budget
    assert spent[False] <= budget * (1 - TailRules.SHARE_FOR_ERRORS)


@given(st.binary(max_size=400))
def test_outcome_takes_any_line(line: bytes) -> None:
    """An unreadable line adds its size, and raises nothing."""
    made = Undecided("reward")
    made.add(line)
    assert (made.size, made.is_scored) == (len(line), False)


@pytest.mark.parametrize("is_kept", [True, False])
def test_decision_about_a_shared_line_stays_for_the_other_exporter(tmp_path: Path, is_kept: bool) -> None:
    """An exporter that reads the decision late does not change it for the others."""
    segment = SegmentName("1-00000000000000aa", 1)
    (tmp_path / "behind").mkdir()
    (tmp_path / segment.file).write_bytes(recorded_line(1, {}, {}))
    lines, configured = LineCache(tmp_path), Settings(outcome_keep="failed")
    knows, waits = (
        Delivery(name, ConsoleSpanExporter(), tmp_path, lines=lines, configured=configured)
        for name in ("a", "b")
    )
    (shared,) = lines.reader().read(segment, 0, 1 << 20)
    trace_id = trace_id_of(shared.recorded)
    assert trace_id is not None
    with Ledger(tmp_path) as ledger, Ledger(tmp_path / "behind") as behind:
        knows._ledger, waits._ledger = ledger, behind
        assert not knows._is_decided(shared)
        ledger.decide((), {trace_id: is_kept})
        assert knows._is_decided(shared)
        assert not waits._is_decided(shared)
    assert shared.is_sampled_out is not is_kept
