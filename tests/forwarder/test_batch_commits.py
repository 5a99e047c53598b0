"""Numbered batches: a target that stores each once gets each line once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import otel_rollout
from otel_rollout import rollout_trace_op
from otel_rollout.account.ledger import Ledger, NumberedBatch
from otel_rollout.account.ledger_reader import FILE, FILE_SUFFIXES, read_ledger
from otel_rollout.deliver import batch_commits
from otel_rollout.deliver.batch_commits import CommitClock
from otel_rollout.deliver.delivery import Delivery
from otel_rollout.exporting.api import BatchLimits, ExportFailure, FailureKind, UndeliveredError
from otel_rollout.spool import layout, segments
from otel_rollout.spool.locks import ForwarderLock
from otel_rollout.spool.waiting import WaitingProgram
from tests.waiting import wait_for
from tests.waits import set_waits

NAME = "store"


class Store(SpanExporter):
    """A target in memory that stores numbered batches.

    Attributes:
        stored: writer and number of each stored batch, with the names of its spans.
        attempts: number and span names of each commit that was tried.
        answers: called with each commit; returns whether to store it, and the failure to report.
    """

    def __init__(self, spans: int = 4) -> None:
        self.batch = BatchLimits(spans, 1 << 20, 0.0)
        self.stored: list[tuple[str, int, list[str]]] = []
        self.attempts: list[tuple[int, list[str]]] = []
        self.answers: Callable[[list[str]], tuple[bool, FailureKind | None]] = lambda names: (True, None)
        self.last_failure: ExportFailure | None = None
        self.cannot_tell = 0

    def committed(self, writer: str) -> int | None:
        if self.cannot_tell:
            self.cannot_tell -= 1
            raise UndeliveredError(FailureKind.UNAVAILABLE, "no answer, says the test")
        return max((number for by, number, _ in self.stored if by == writer), default=None)

    def commit(self, spans: Iterable[ReadableSpan], writer: str, number: int) -> SpanExportResult:
        names = [span.name for span in spans]
        self.attempts.append((number, names))
        stores, kind = self.answers(names)
        if stores:
            self.stored.append((writer, number, names))
        self.last_failure = None if kind is None else ExportFailure(kind, "as the test wishes", 0.01)
        return SpanExportResult.SUCCESS if kind is None else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass

    @property
    def names(self) -> list[str]:
        return [name for _, _, names in self.stored for name in names]


@pytest.fixture
def node_dir(fresh_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The node directory of ten recorded operations, whose writer has ended."""
    set_waits(monkeypatch, longest_retry=0.01, refused_retry=0.01)
    found = layout.node_directory(tmp_path / "spool", "run", "node")
    layout.create_private(found, tmp_path / "spool")
    lock = ForwarderLock(found)
    assert lock.acquire()  # the test forwards
    otel_rollout.configure({"console": {}}, run_id="run", node="node", spool_dir=str(tmp_path / "spool"))
    for number in range(10):
        rollout_trace_op(name=f"op {number}")(lambda: None)()
    wait_for(lambda: operations_in(found) == 10, 30)
    otel_rollout.shutdown(0)
    yield found
    lock.close()


def operations_in(node_dir: Path) -> int:
    return sum((node_dir / name.file).read_bytes().count(b'"op ') for name in layout.segments(node_dir))


NAMES = [f"op {number}" for number in range(10)]


@contextmanager
def delivering(node_dir: Path, store: Store) -> Iterator[Delivery]:
    delivery = Delivery(NAME, store, node_dir)
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.stop(10)


def deliver(node_dir: Path, store: Store) -> None:
    """Deliver until nothing is pending."""
    with delivering(node_dir, store) as delivery:
        wait_for(delivery.is_caught_up, 30)


@pytest.mark.parametrize("method", ["prepare", "destination"])
def test_exporter_that_fails_beside_its_work_gets_all_spans(node_dir: Path, method: str) -> None:
    """What it raises when it connects early, or names its destination, costs nothing."""

    def fail(*_: object) -> None:
        raise RuntimeError("as the test wishes")

    store = Store()
    setattr(store, method, fail)
    deliver(node_dir, store)
    assert store.names == NAMES


def test_batches_are_numbered_and_recorded(node_dir: Path) -> None:
    """Each batch has the limit's spans; numbers count up, and the ledger has no unfinished batch."""
    store = Store(spans=4)
    deliver(node_dir, store)
    assert [(number, names) for _, number, names in store.stored] == [
        (1, NAMES[:4]),
        (2, NAMES[4:8]),
        (3, NAMES[8:]),
    ]
    with Ledger(node_dir) as ledger:
        assert ledger.batch(NAME) == NumberedBatch(store.stored[0][0], 3, None)
    assert read_ledger(node_dir).count(NAME).delivered == 10


@pytest.mark.parametrize("is_stored", [False, True])
def test_commit_without_an_answer_is_made_again_unless_the_target_has_it(
    node_dir: Path, is_stored: bool
) -> None:
    """The batch is sent again with its number and its lines, or not at all."""
    store = Store(spans=4)
    answers = iter([(is_stored, FailureKind.UNAVAILABLE)])
    store.answers = lambda names: next(answers, (True, None))
    store.cannot_tell = 2
    deliver(node_dir, store)
    assert store.names == NAMES
    assert store.attempts[:2] == [(1, NAMES[:4]), (2, NAMES[4:8]) if is_stored else (1, NAMES[:4])]
    assert read_ledger(node_dir).count(NAME).delivered == 10


@pytest.mark.parametrize("is_stored", [False, True])
def test_successor_finishes_the_batch_of_the_ledger(node_dir: Path, is_stored: bool) -> None:
    """The next delivery has other limits, and keeps to the lines of the batch."""
    store = Store(spans=4)
    asked = threading.Event()

    def die(names: list[str]) -> tuple[bool, FailureKind | None]:
        asked.set()
        return is_stored, FailureKind.REFUSED

    store.answers = die
    with delivering(node_dir, store):
        assert asked.wait(30)
    with Ledger(node_dir) as ledger:
        batch = ledger.batch(NAME)
    assert batch is not None
    assert (batch.number, list((batch.ends or {}).values())) != (1, [])
    successor = Store(spans=100)
    successor.stored = store.stored
    deliver(node_dir, successor)
    assert successor.names == NAMES
    rest = [(2, NAMES[4:])]
    assert successor.attempts == (rest if is_stored else [(1, NAMES[:4]), *rest])
    assert {writer for writer, _, _ in successor.stored} == {batch.writer}


def test_rejected_span_is_found_by_batches_of_their_own(node_dir: Path) -> None:
    """Halves have new numbers; the span at fault is in the dead-letter file."""
    store = Store(spans=10)
    store.answers = lambda names: (False, FailureKind.REJECTED) if "op 3" in names else (True, None)
    deliver(node_dir, store)
    assert sorted(store.names) == [name for name in NAMES if name != "op 3"]
    numbers = [number for number, _ in store.attempts]
    assert numbers == sorted(set(numbers))
    count = read_ledger(node_dir).count(NAME)
    assert (count.delivered, count.rejected) == (9, 1)
    assert "op 3" in (node_dir / "rejected.store.jsonl").read_text()


def test_batch_is_never_halved_while_the_target_is_unavailable(node_dir: Path) -> None:
    """A part of a batch that may be stored must not be sent."""
    store = Store(spans=10)
    answers = iter([(False, FailureKind.UNAVAILABLE)] * 8)
    store.answers = lambda names: next(answers, (True, None))
    deliver(node_dir, store)
    assert store.attempts == [(1, NAMES)] * 9
    assert store.names == NAMES


def test_unreadable_line_is_rejected_and_the_others_are_committed(node_dir: Path) -> None:
    """The line goes to the dead-letter file, also if the batch turns out to be stored."""
    [name] = [name for name in layout.segments(node_dir) if (node_dir / name.file).stat().st_size]
    with open(node_dir / name.file, "ab") as segment:
        segment.write(b"no JSON\n")
    store = Store(spans=100)
    answers = iter([(True, FailureKind.UNAVAILABLE)])
    store.answers = lambda names: next(answers, (True, None))
    deliver(node_dir, store)
    assert store.names == NAMES
    count = read_ledger(node_dir).count(NAME)
    assert (count.delivered, count.rejected) == (10, 1)


def test_lost_ledger_begins_a_new_writer(node_dir: Path) -> None:
    """Everything in segments is committed again, by a writer with another id."""
    store = Store(spans=100)
    deliver(node_dir, store)
    for suffix in FILE_SUFFIXES:
        (node_dir / (FILE + suffix)).unlink(missing_ok=True)
    deliver(node_dir, store)
    assert store.names == NAMES * 2
    (first, one, _), (second, other, _) = store.stored
    assert first != second
    assert (one, other) == (1, 1)


def test_ledger_replaced_during_a_commit_keeps_the_batch(
    node_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A ledger that another program removes is written again, with writer and number."""
    store = Store(spans=4)

    def remove(names: list[str]) -> tuple[bool, FailureKind | None]:
        if len(store.attempts) == 2:
            for suffix in FILE_SUFFIXES:
                (node_dir / (FILE + suffix)).unlink(missing_ok=True)
        return True, None

    store.answers = remove
    with caplog.at_level(logging.ERROR):
        deliver(node_dir, store)
    assert store.names == NAMES
    with Ledger(node_dir) as ledger:
        batch = ledger.batch(NAME)
    assert batch == NumberedBatch(store.stored[0][0], 3, None)


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(batch_commits, "time", found)
    monkeypatch.setattr("otel_rollout.spool.waiting.time", found)
    return found


def living(monkeypatch: pytest.MonkeyPatch, writers: Sequence[str]) -> None:
    monkeypatch.setattr(segments, "living_writers", lambda node_dir: set(writers))


def test_commit_is_due_at_the_first_limit(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, or ten seconds since the first waiting line, and a quarter more at most."""
    living(monkeypatch, ["writer"])
    due = CommitClock(tmp_path, BatchLimits(100, 1000, 10.0))
    assert not due.is_due(0)
    assert not due.is_due(1)
    assert due.is_due(1000)
    clock.now += 9.9
    assert not due.is_due(500)
    clock.now += 2.7
    assert due.is_due(500)
    due.restart(0)
    assert not due.is_due(1)


def test_undecided_lines_do_not_make_commits_due(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that tail sampling holds back count for no limit until time has passed again."""
    living(monkeypatch, ["writer"])
    due = CommitClock(tmp_path, BatchLimits(100, 1000, 10.0))
    assert not due.is_due(900)
    clock.now += 20
    assert due.is_due(900)
    due.restart(900)
    assert not due.is_due(1500)
    assert due.is_due(1900)
    due.restart(5000)  # a backlog of more than a batch
    assert due.is_due(5000)


def test_commit_is_due_at_once_when_nobody_writes_or_a_program_waits(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting program announces itself by a file, again and again while it waits."""
    living(monkeypatch, [])
    due = CommitClock(tmp_path, BatchLimits(100, 1000, 10.0))
    assert due.is_due(1)
    assert not due.is_due(0)
    living(monkeypatch, ["writer"])
    due = CommitClock(tmp_path, BatchLimits(100, 1000, 10.0))
    assert not due.is_due(1)
    waiting = WaitingProgram(tmp_path)
    waiting.announce()
    assert due.is_due(1)
    clock.now += 3
    assert not due.is_due(1)
    waiting.announce()
    assert due.is_due(1)
    assert (tmp_path / "waiting").stat().st_mode & 0o777 == 0o600
