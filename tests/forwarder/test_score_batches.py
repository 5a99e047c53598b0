"""The forwarder delivers the scores of a batch, each once, as if each had its own line."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, score_batch
from otel_rollout.account.ledger import Ledger
from otel_rollout.account.ledger_reader import Tally
from otel_rollout.deliver import identity_scores
from otel_rollout.deliver.delivery import Delivery
from otel_rollout.exporting.spool_exporter import KeptInSpool
from otel_rollout.otlp.score_batch import expanded
from otel_rollout.spool import layout, segments
from otel_rollout.spool.files import lines_of
from otel_rollout.spool.segments import place_of, recorded_lines
from tests.exporters import FileExporter, ResolvingExporter
from tests.forwarder.test_delivery import forwarder_pid, otel_rollout_command
from tests.forwarder.test_identity_scores import scores, trajectory
from tests.sdk_spans import spans_of
from tests.spool_reader import segments_below
from tests.waiting import wait_for
from tests.waits import set_waits


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "delivered.jsonl"


@pytest.fixture
def begin(fresh_process: None, test_exporters: None, target: Path) -> Callable[..., None]:
    """Return a function that begins a run with a test exporter."""

    def configure(exporter: str = "test-faulty", **more: object) -> None:
        otel_rollout.configure(
            {exporter: {"path": str(target)}},
            project_name="p",
            experiment_name="e",
            forwarder_linger=60,
            **more,
        )

    return configure


def delivered(target: Path) -> Counter[str]:
    """Count the names of the spans at the target."""
    return (
        Counter(json.loads(line)[1] for line in target.read_text().splitlines())
        if target.exists()
        else Counter()
    )


def test_scores_of_a_batch_are_delivered_once_and_counts_add_up(begin, target):
    """Each score counts as a span, in total and for its step."""
    begin()
    score_batch({"a": np.ones(700), "b": np.zeros(700)}, step=3, sample_index=np.arange(700))
    score_batch({"c": [1, None, 2]}, step=[3, 4, 4], sample_index=[1, 1, 1])
    report = otel_rollout.shutdown(60)
    assert delivered(target) == {"score a": 700, "score b": 700, "score c": 2}
    count = report.exporters["test-faulty"]
    assert (report.started, report.recorded, count.delivered, count.pending, report.lost) == (
        1402,
        1402,
        1402,
        0,
        0,
    )
    steps = {key.step: (step.recorded, step.delivered) for key, step in report.by_step.items()}
    assert steps == {"3": (1401, 1401), "4": (1, 1)}


def test_pending_scores_of_a_batch_are_counted(begin, target):
    """Also those of a batch of which a part is delivered."""
    begin()
    Path(f"{target}.fault").write_text("unavailable")
    score_batch({"a": np.ones(1200)}, step=3, sample_index=np.arange(1200))
    wait_for(lambda: otel_rollout.status().exporters["test-faulty"].pending == 1200, what="the batch")
    assert otel_rollout.status().by_step[otel_rollout.StepKey("3", False)].recorded == 1200
    Path(f"{target}.fault").unlink()
    report = otel_rollout.shutdown(60)
    assert (report.recorded, report.exporters["test-faulty"].delivered, report.lost) == (1200, 1200, 0)


def test_a_cursor_inside_a_batch_counts_the_rest_as_pending(recorded, tmp_path):
    """A position inside the line says how many scores are done; reading goes on there."""
    score_batch({"a": np.arange(10), "b": np.arange(10)}, step=1, sample_index=np.arange(10))
    otel_rollout.score("last", 1, step=1, sample_index=1)
    recorded()
    (path,) = segments_below(tmp_path / "spool")
    read = list(recorded_lines(path, 0, 1 << 30))
    assert len(read) == 21
    for number, (_, end) in enumerate(read, 1):
        assert list(recorded_lines(path, end, 1 << 30)) == read[number:]
    begins, passed = zip(*(place_of(path, end) for _, end in read), strict=True)
    assert list(passed) == [*range(1, 20), 0, 0]
    assert set(begins[:19]) == {0}


@pytest.mark.parametrize("arrived", [0, 1, 700])
def test_forwarder_killed_at_any_time_loses_and_repeats_nothing(
    begin, target, tmp_path, monkeypatch, arrived
):
    """The target has each score; a batch of lines in flight may arrive twice, with equal ids."""
    set_waits(monkeypatch, first_check=0.1)
    begin()
    killed = None

    def successor():
        (node_dir,) = layout.node_directories(tmp_path / "spool")
        pid = forwarder_pid(node_dir)
        return None if pid == killed else pid

    for step in range(4):
        before = delivered(target).total()
        score_batch({"a": np.ones(900)}, step=step, sample_index=np.arange(900))
        wait_for(lambda least=before + arrived: delivered(target).total() >= least, what="scores")
        killed = wait_for(successor, what="a forwarder")
        os.kill(killed, signal.SIGKILL)
    report = otel_rollout.shutdown(90)
    ids = Counter(json.loads(line)[0] for line in target.read_text().splitlines())
    assert len(ids) == 3600
    assert (report.recorded, report.exporters["test-faulty"].delivered, report.lost) == (3600, 3600, 0)


def test_forwarder_killed_after_the_answer_goes_on_inside_the_batch(begin, target, tmp_path):
    """Only the scores in flight are sent again, not the batch."""
    begin("test-resolving")
    with_rows = [(step, row) for step in range(2) for row in range(3)]
    for step, row in with_rows:
        trajectory(step, row, 0)
    names = {f"s{n}": np.full(6, n / 8) for n in range(4)}
    steps, rows = zip(*with_rows, strict=True)
    Path(f"{target}.killing").touch()
    score_batch(names, step=steps, sample_index=rows, rollout_n=0)
    wait_for(lambda: not Path(f"{target}.killing").exists(), what="the kill")
    report = otel_rollout.shutdown(90)
    found = Counter((path, value) for path, value in scores(target))
    assert set(found) == {(f"p e {step}/{row}/0", n / 8) for step, row in with_rows for n in range(4)}
    count = report.exporters["test-resolving"]
    assert (count.delivered, count.pending, count.unresolved_scores, report.lost) == (30, 0, {}, 0)


def test_scores_find_their_trajectories_before_while_and_after_delivery(begin, target):
    """By identity, and exactly as single scores do."""
    begin("test-resolving")
    score_batch({"early": [0.1, 0.2]}, step=1, sample_index=1, rollout_n=[0, 1])
    trajectory(1, 1, 0)
    with rollout_trace_attr(step=1, sample_index=1, rollout_n=1):
        score_batch({"while": [0.3, 0.4]}, step=1, sample_index=1, rollout_n=[0, 1])
        wait_for(lambda: ["p e 1/1/0", 0.3] in scores(target), what="the first score")
    wait_for(lambda: ["p e 1/1/1", 0.4] in scores(target), what="the second trajectory")
    score_batch({"late": [0.5, 0.6]}, step=1, sample_index=1, rollout_n=[0, 1])
    report = otel_rollout.shutdown(60)
    expected = [
        [f"p e 1/1/{row}", value]
        for row, values in enumerate([(0.1, 0.3, 0.5), (0.2, 0.4, 0.6)])
        for value in values
    ]
    assert sorted(scores(target)) == sorted(expected)
    assert report.exporters["test-resolving"].unresolved_scores == {}


def test_ambiguous_and_unknown_scores_of_a_batch_are_counted_and_named(begin, target, tmp_path):
    """A step that was tried again, and a dataset row that was never rolled out."""
    begin("test-resolving")
    for row in (1, 1, 2):
        trajectory(1, row, 0)
    score_batch({"a": [0.1, 0.2, 0.3]}, step=1, sample_index=[1, 2, 9], rollout_n=0)
    report = otel_rollout.shutdown(90)
    assert scores(target) == [["p e 1/2/0", 0.2]]
    count = report.exporters["test-resolving"]
    assert count.unresolved_scores == {"ambiguous": 1, "unknown": 1}
    assert (count.delivered, count.rejected, count.pending, report.lost) == (4, 2, 0, 0)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    letters = [
        json.loads(line) for line in (node_dir / "rejected.test-resolving.jsonl").read_text().splitlines()
    ]
    assert sorted(letter["reason"] for letter in letters) == [
        "score a of p e 1/1/0: several trajectories have this identity",
        "score a of p e 1/9/0: no trajectory of this identity was delivered in time",
    ]


def test_more_scores_than_may_wait_stay_in_their_segment(begin, target, monkeypatch, tmp_path):
    """Trajectories of other segments are delivered meanwhile, and all scores find theirs."""
    monkeypatch.setattr(identity_scores, "MAX_HELD", 20)

    otel_rollout.configure(
        exporters=["spool"], project_name="p", experiment_name="e", spool_dir=str(tmp_path / "s")
    )
    score_batch({"a": np.arange(50) / 64}, step=1, sample_index=np.arange(50), rollout_n=0)
    for row in range(50):
        trajectory(1, row, 0)
    node_dir = wait_for(lambda: layout.node_directories(tmp_path / "s"))[0]
    wait_for(
        lambda: (
            sum(1 for path in segments_below(node_dir) for _ in segments.complete_lines(path, 0, 1 << 30))
            == 51
        )
    )
    other = node_dir / layout.SegmentName(layout.new_writer_id(), 1).file
    (path,) = segments_below(node_dir)
    lines = [line for line, _ in segments.complete_lines(path, 0, 1 << 30)]
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (own / path.name).write_bytes(lines[0])
    (own / other.name).write_bytes(b"".join(lines[1:]))
    delivery = Delivery("x", ResolvingExporter(str(target)), own)
    delivery.start()
    wait_for(delivery.is_caught_up, what="delivery")
    delivery.stop(10)
    assert sorted(value for _, value in scores(target)) == [row / 64 for row in range(50)]
    with Ledger(own) as ledger:
        assert sum(tally.delivered for tally in ledger.tallies("x").values()) == 100


def damaged(line: bytes) -> bytes:
    """Return the line of a batch whose columns are cut off."""
    data = json.loads(line)
    for entry in data["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]:
        if entry["key"] == "rollout.score_batch.data":
            entry["value"]["bytesValue"] = "AAAA"
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("takes_lines", [False, True])
def test_a_damaged_batch_goes_to_the_dead_letter_file(recorded, tmp_path, target, takes_lines):
    """Its reason is named; other lines arrive, also at a target that takes lines."""

    score_batch({"a": [1, 2]}, step=1, sample_index=[1, 2])
    otel_rollout.score("b", 1, step=1, sample_index=1)
    recorded()
    (path,) = segments_below(tmp_path / "spool")
    batch, other = path.read_bytes().splitlines(keepends=True)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (own / path.name).write_bytes(damaged(batch) + other)
    delivery = Delivery("x", KeptInSpool() if takes_lines else FileExporter(str(target)), own)
    delivery.start()
    wait_for(delivery.is_caught_up, what="delivery")
    delivery.stop(10)
    (letter,) = map(json.loads, (own / "rejected.x.jsonl").read_text().splitlines())
    assert letter["reason"] == "the batch of scores is damaged"
    with Ledger(own) as ledger:
        tallies = ledger.tallies("x").values()
        assert sum((tally for tally in tallies), Tally()) == Tally(delivered=1, rejected=1)


def test_show_reads_a_batch_without_a_forwarder(fresh_process, tmp_path):
    """The scores are at their trajectories, also in an archive."""
    otel_rollout.configure(
        exporters=["spool"], keep=True, project_name="p", experiment_name="e", spool_dir=str(tmp_path / "s")
    )
    for row in range(3):
        trajectory(1, row, 0)
    score_batch({"advantage": [0.25, 0.5, 0.75]}, step=1, sample_index=[0, 1, 2], rollout_n=0)
    otel_rollout.shutdown(60)
    shown = otel_rollout_command("show", "--from", str(tmp_path / "s"), "1/2/0")
    assert "advantage" in shown
    assert "0.75" in shown
    assert "0.5" not in shown.replace("0.75", "")


@pytest.mark.parametrize("kept", [0, 5])
def test_tail_sampling_counts_the_scores_of_a_batch(begin, target, kept):
    """A group is kept for a score that a batch gave; its scores are delivered with it."""
    begin(outcome_keep="zero", outcome_score="reward", outcome_deadline=60.0)
    for row in range(10):
        trajectory(1, row, 0)
    rewards = [0.0 if row < kept else 1.0 for row in range(10)]
    score_batch({"reward": rewards, "advantage": rewards}, step=1, sample_index=list(range(10)), rollout_n=0)
    report = otel_rollout.shutdown(90)
    assert delivered(target) == Counter(
        {"rollout_trace": kept, "score reward": kept, "score advantage": kept} if kept else {}
    )
    count = report.exporters["test-faulty"]
    assert (count.delivered, count.sampled_out, report.lost) == (3 * kept, 30 - 3 * kept, 0)


def test_replayed_batches_have_equal_ids(begin, target, tmp_path):
    """An archive holds the batch as recorded, and each reading makes equal scores of it."""
    begin(keep=True)
    score_batch({"a": np.ones(20)}, step=1, sample_index=np.arange(20))
    report = otel_rollout.shutdown(60)
    (archived,) = segments_below(Path(report.directory))
    copies = [span for line in lines_of(archived) for each in expanded(line) for span in spans_of(each)]
    sent = [json.loads(line)[0] for line in target.read_text().splitlines()]
    assert [f"{span.context.span_id:016x}" for span in copies] == sent
