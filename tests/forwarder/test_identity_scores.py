"""The forwarder holds scores by identity until their trajectories are found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import StepKey, rollout_trace_attr, score
from otel_rollout.account.ledger import HeldScore, Ledger
from otel_rollout.account.ledger_reader import Tally, read_ledger
from otel_rollout.base.waits import Waits
from otel_rollout.deliver import identity_scores
from otel_rollout.deliver.dead_letters import DeadLetters
from otel_rollout.deliver.identity_scores import IdentityScores
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.spool import layout
from tests.exporters import ResolvingExporter
from tests.forwarder.test_delivery import otel_rollout_command
from tests.spool_reader import segment_lines, segments_below
from tests.waiting import wait_for
from tests.waits import set_waits


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "delivered.jsonl"


@pytest.fixture
def begin(fresh_process: None, test_exporters: None, target: Path) -> Callable[[], None]:
    """Return a function that begins a run whose exporter finds trajectories in its file."""

    def configure() -> None:
        otel_rollout.configure(
            {"test-resolving": {"path": str(target)}},
            project_name="p",
            experiment_name="e",
            forwarder_linger=60,
        )

    return configure


def scores(target: Path) -> list[list[object]]:
    """Return path and value of each score at the target."""
    file = Path(f"{target}.scores")
    return [json.loads(line)[1:] for line in file.read_text().splitlines()] if file.exists() else []


def trajectory(step: int, sample: int, rollout: int) -> None:
    with rollout_trace_attr(step=step, sample_index=sample, rollout_n=rollout):
        pass


def test_score_finds_its_trajectory_before_while_and_after_delivery(begin, target):
    """Each is delivered once, counts add up, and other lines do not wait."""
    begin()
    score("reward", 0.1, step=1, sample_index=1, rollout_n=0)
    score("reward", 0.2, step=1, sample_index=1, rollout_n=1)
    trajectory(1, 1, 0)
    with rollout_trace_attr(step=1, sample_index=2, rollout_n=0):
        score("reward", 0.3, step=1, sample_index=2, rollout_n=0)
        wait_for(lambda: ["p e 1/1/0", 0.1] in scores(target), what="the first score")
    trajectory(1, 1, 1)
    report = otel_rollout.shutdown(60)
    assert sorted(scores(target)) == [["p e 1/1/0", 0.1], ["p e 1/1/1", 0.2], ["p e 1/2/0", 0.3]]
    count = report.exporters["test-resolving"]
    assert (count.delivered, count.pending, count.rejected, report.lost) == (6, 0, 0, 0)
    assert count.unresolved_scores == {}
    (step,) = report.by_step.values()
    assert (step.recorded, step.delivered) == (6, 6)


def test_ambiguous_and_unknown_scores_are_counted_by_reason_and_named(begin, target, tmp_path):
    """They are in the dead-letter file, and among the rejected spans."""
    begin()
    trajectory(1, 1, 0)
    trajectory(1, 1, 0)
    trajectory(1, 2, 0)
    score("reward", 0.1, step=1, sample_index=1, rollout_n=0)
    score("reward", 0.2, step=9, sample_index=9)
    score("reward", 0.3, step=1, sample_index=2)
    report = otel_rollout.shutdown(90)
    assert scores(target) == [["p e 1/2/0", 0.3]]
    count = report.exporters["test-resolving"]
    assert count.unresolved_scores == {"ambiguous": 1, "unknown": 1}
    assert (count.delivered, count.rejected, count.pending, report.lost) == (4, 2, 0, 0)
    assert "1 scores of ambiguous trajectories; 1 scores of unknown trajectories" in report.summary()
    status = otel_rollout_command("status", "--spool", report.directory)
    assert "test-resolving: scores of no trajectory (ambiguous): 1" in status
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    reasons = [
        json.loads(line)["reason"]
        for line in (node_dir / "rejected.test-resolving.jsonl").read_text().splitlines()
    ]
    assert sorted(reasons) == [
        "score reward of p e 1/1/0: several trajectories have this identity",
        "score reward of p e 9/9: no trajectory of this identity was delivered in time",
    ]


def test_score_of_a_step_goes_to_no_later_repetition_of_it(begin, target):
    """It waits while the target cannot be searched, and meanwhile the step is repeated."""
    begin()
    Path(f"{target}.search-fault").write_text("unavailable")
    trajectory(1, 1, 0)
    score("reward", 0.1, step=1, sample_index=1, rollout_n=0)
    trajectory(1, 1, 0)
    wait_for(lambda: otel_rollout.status().exporters["test-resolving"].delivered == 2, what="delivery")
    Path(f"{target}.search-fault").unlink()
    otel_rollout.shutdown(60)
    roots = [json.loads(line) for line in Path(f"{target}.roots").read_text().splitlines()]
    first = min(roots, key=lambda root: root[3])
    (scored,) = Path(f"{target}.scores").read_text().splitlines()
    assert json.loads(scored) == [first[0], "p e 1/1/0", 0.1]


@pytest.mark.parametrize(("others", "value"), [(0, [0.9]), (1, [])])
def test_run_without_trajectories_scores_those_of_an_earlier_run(begin, target, others, value):
    """A run with trajectories does not score another run's, whose identity is equal."""
    begin()
    trajectory(1, 1, 0)
    otel_rollout.shutdown(60)
    begin()
    for _ in range(others):
        trajectory(2, 2, 0)
    score("reward", 0.9, step=1, sample_index=1, rollout_n=0)
    report = otel_rollout.shutdown(90)
    assert [found for _, found in scores(target)] == value
    assert report.exporters["test-resolving"].unresolved_scores == ({} if value else {"unknown": 1})


def test_score_waits_while_the_target_cannot_be_searched(begin, target):
    """Trajectories are delivered meanwhile; the score is, once a search succeeds."""
    begin()
    Path(f"{target}.search-fault").write_text("unavailable")
    score("reward", 0.1, step=1, sample_index=1, rollout_n=0)
    trajectory(1, 1, 0)
    wait_for(lambda: otel_rollout.status().exporters["test-resolving"].delivered == 1, what="delivery")
    assert otel_rollout.status().exporters["test-resolving"].pending == 1
    Path(f"{target}.search-fault").unlink()
    report = otel_rollout.shutdown(60)
    assert scores(target) == [["p e 1/1/0", 0.1]]
    assert report.exporters["test-resolving"].delivered == 2


def test_held_scores_survive_a_killed_forwarder(begin, target):
    """The next forwarder delivers them; one killed after the answer sends the score once more."""
    begin()
    score("reward", 0.1, step=1, sample_index=1, rollout_n=0)
    score("reward", 0.2, step=1, sample_index=1, rollout_n=1)
    trajectory(1, 1, 0)
    wait_for(lambda: scores(target) == [["p e 1/1/0", 0.1]], what="the first score")
    Path(f"{target}.killing").touch()
    trajectory(1, 1, 1)
    wait_for(lambda: not Path(f"{target}.killing").exists(), what="the kill")
    report = otel_rollout.shutdown(90)
    assert scores(target) == [["p e 1/1/0", 0.1], *[["p e 1/1/1", 0.2]] * 2]
    count = report.exporters["test-resolving"]
    assert (count.delivered, count.pending, report.lost) == (4, 0, 0)


@pytest.fixture
def lines(recorded, tmp_path: Path) -> list[bytes]:
    """Two scores of rows without a trajectory, as recorded."""
    score("reward", 0.1, step=1, sample_index=1)
    score("reward", 0.2, step=2, sample_index=1)
    recorded()
    (segment,) = segments_below(tmp_path / "spool")
    return segment_lines(segment)


@pytest.mark.parametrize(("age", "is_rejected"), [(0.0, False), (Waits().score + 1, True)])
def test_score_is_unknown_after_its_deadline(lines, target, tmp_path, age, is_rejected):
    """The time counts from the first reading, also in the next forwarder; then nothing is held."""
    with Ledger(tmp_path) as ledger:
        scores = IdentityScores("x", ResolvingExporter(str(target)), DeadLetters(tmp_path, "x"))
        assert not scores.is_empty
        held = [HeldScore("segment", n, line, time.time() - age) for n, line in enumerate(lines)]
        ledger.advance("x", {"segment": 2}, {}, held)
        scores.load(ledger)
        assert scores.is_due()
        tallies = scores.resolve(ledger, is_over=False)
        assert not scores.is_due()
        rejected = {StepKey(str(step), False): Tally(rejected=1) for step in (1, 2)}
        assert tallies == ledger.tallies("x") == (rejected if is_rejected else {})
        assert scores.is_empty is is_rejected
        assert ledger.held_scores("x") == ([] if is_rejected else held)
    state = read_ledger(tmp_path)
    assert state.unresolved == ({"x": {"unknown": 2}} if is_rejected else {})
    assert len(state.held.get("x", ())) == (0 if is_rejected else 2)


def stored_at(target: Path, *rows: dict[str, object], run: object = "") -> None:
    """Let the target have a run's trajectories with these attributes."""
    named = {"rollout.project_name": "project", "rollout.experiment_name": "experiment"}
    file = Path(f"{target}.roots")
    file.write_text("".join(json.dumps(["id", {**named, **row}, run]) + "\n" for row in rows))


def test_score_without_rollout_waits_for_siblings(lines, target, tmp_path):
    """The first sibling at the target does not get it: the group may be on its way."""
    waiting = IdentityScores("x", ResolvingExporter(str(target)), DeadLetters(tmp_path, "x"))
    siblings = [{**row, "rollout.rollout_n": number} for row in ROWS for number in (0, 1)]
    run = spans_of(lines[0])[0].resource.attributes["rollout.run.id"]
    times = time.time(), time.time() - Waits().score - 1
    with Ledger(tmp_path) as ledger:
        held = [HeldScore("segment", n, lines[n], at) for n, at in enumerate(times)]
        ledger.advance("x", {}, {}, held)
        waiting.load(ledger)
        stored_at(target, siblings[0], siblings[2], run=run)
        assert waiting.resolve(ledger, is_over=False) == {StepKey("2", False): Tally(delivered=1)}
        stored_at(target, *siblings, run=run)
        assert waiting.resolve(ledger, is_over=False) == {StepKey("1", False): Tally(rejected=1)}
    assert [value for _, value in scores(target)] == [0.2]
    assert read_ledger(tmp_path).unresolved == {"x": {"ambiguous": 1}}


def test_deadline_counts_from_when_the_trajectory_was_last_running(lines, target, tmp_path):
    """A score waits for a long trajectory, and meanwhile goes to no other run's."""
    running = [span for line in lines for span in spans_of(line)]
    waiting = IdentityScores("x", ResolvingExporter(str(target)), DeadLetters(tmp_path, "x"), lambda: running)
    stored_at(target, *ROWS)
    late = time.time() - Waits().score - 1
    with Ledger(tmp_path) as ledger:
        ledger.advance("x", {}, {}, [HeldScore("segment", n, line, late) for n, line in enumerate(lines)])
        waiting.load(ledger)
        for _ in range(2):
            assert waiting.resolve(ledger, is_over=False) == {}
            running = []
        assert len(waiting.held) == 2


def test_target_that_rejects_a_score_gets_the_others(lines, target, tmp_path):
    """The batch is halved; the score at fault goes to the dead-letter file."""
    exporter = ResolvingExporter(str(target))
    stored_at(target, *ROWS)
    Path(f"{target}.rejected").write_text("0.1")
    with Ledger(tmp_path) as ledger:
        waiting = IdentityScores("x", exporter, DeadLetters(tmp_path, "x"))
        ledger.advance("x", {}, {}, [HeldScore("segment", n, line, 0.0) for n, line in enumerate(lines)])
        waiting.load(ledger)
        assert waiting.resolve(ledger, is_over=True) == {
            StepKey("1", False): Tally(rejected=1),
            StepKey("2", False): Tally(delivered=1),
        }
    assert [value for _, value in scores(target)] == [0.2]
    assert read_ledger(tmp_path).unresolved == {}


def test_spans_have_their_turn_between_the_scores_of_a_large_step(lines, target, tmp_path, monkeypatch):
    """A resolution ends after its time once it has delivered scores; the others are due at once."""
    monkeypatch.setattr(identity_scores, "SCORES_PER_EXPORT", 1)
    set_waits(monkeypatch, score_turn=0.0)
    stored_at(target, *ROWS)
    waiting = IdentityScores("x", ResolvingExporter(str(target)), DeadLetters(tmp_path, "x"))
    with Ledger(tmp_path) as ledger:
        held = [HeldScore("segment", number, lines[number % 2], 0.0) for number in range(4)]
        ledger.advance("x", {"segment": 4}, {}, held)
        waiting.load(ledger)
        for left in (3, 2, 1, 0):
            assert waiting.is_due()
            (tally,) = waiting.resolve(ledger, is_over=True).values()
            assert tally == Tally(delivered=1)
            assert len(waiting.held) == left
        assert waiting.resolve(ledger, is_over=True) == {}
    assert sorted(value for _, value in scores(target)) == [0.1, 0.1, 0.2, 0.2]


ROWS = [{"rollout.step": step, "rollout.sample_index": 1, "rollout.validate": False} for step in (1, 2)]
