"""Test batches that are prepared while the target answers the batch before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.account.ledger import Ledger
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.exporting.projects import context_of
from otel_rollout.forwarder import delivery as delivery_module
from otel_rollout.forwarder import retry_policy
from otel_rollout.forwarder.batch_ahead import BatchAhead
from otel_rollout.forwarder.delivery import Delivery
from otel_rollout.forwarder.retry_policy import RetryPolicy
from otel_rollout.spool.layout import SegmentName
from tests.forwarder.tokens_support import line
from tests.waiting import wait_for

SEGMENTS = [SegmentName("1-00000000000000aa", number) for number in (1, 2)]
SECONDS = 60
"""Maximum seconds that a test waits for a delivery."""
OK = "ok"


def number_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


class Recorder(SpanExporter):
    """Keeps the numbers of exported spans, and fails as it is told.

    Attributes:
        answers: outcome of each export, in order: ``OK``, ``"raise"`` or a kind of failure; then all are OK.
        exported: numbers of the spans of each successful export.
        ahead: numbers of the spans of each batch that was encoded ahead.
        poison: numbers of spans with which an export is rejected.
    """

    def __init__(self, answers: Sequence[Any] = (), poison: Sequence[int] = ()) -> None:
        self.answers = list(answers)
        self.poison = set(poison)
        self.exported: list[list[int]] = []
        self.ahead: list[list[int]] = []
        self.last_failure: ExportFailure | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        numbers = list(map(number_of, spans))
        answer = self.answers.pop(0) if self.answers else OK
        if answer == "raise":
            raise ConnectionError("as the test wishes")
        if self.poison.intersection(numbers):
            answer = FailureKind.REJECTED
        if isinstance(answer, FailureKind):
            self.last_failure = ExportFailure(answer, "as the test wishes", 0.001)
            return SpanExportResult.FAILURE
        self.exported.append(numbers)
        return SpanExportResult.SUCCESS

    def encode_ahead(self, spans: Sequence[ReadableSpan]) -> Callable[[], SpanExportResult]:
        self.ahead.append(list(map(number_of, spans)))
        return lambda: self.export(spans)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses short and batches small."""
    monkeypatch.setattr(retry_policy, "DEFAULT_POLICY", RetryPolicy(0.001, 0.001, refused_pause=0.001))
    monkeypatch.setattr(delivery_module, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(delivery_module, "BATCH_SPANS", 5)


def write_lines(node_dir: Path, *counts: int) -> list[int]:
    """Write lines of numbered spans into segments; return the numbers."""
    number = 0
    for segment, count in zip(SEGMENTS, counts, strict=False):
        lines = [line(number + offset, {}, {}) for offset in range(1, count + 1)]
        (node_dir / segment.file).write_bytes(b"".join(lines))
        number += count
    return list(range(1, number + 1))


@contextmanager
def delivering(node_dir: Path, exporter: SpanExporter) -> Iterator[Delivery]:
    delivery = Delivery("recorder", exporter, node_dir)
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.stop(SECONDS)


def deliver(node_dir: Path, exporter: SpanExporter) -> None:
    with delivering(node_dir, exporter) as delivery:
        wait_for(delivery.is_caught_up, SECONDS)


def counted(node_dir: Path) -> tuple[int, int]:
    """Return the ledger's numbers of delivered and of rejected spans."""
    tally = read_ledger(node_dir).count("recorder")
    return tally.delivered, tally.rejected


def test_next_batch_is_encoded_while_the_target_answers(tmp_path: Path) -> None:
    """The first export ends only when the second batch is encoded; batches arrive in order, once."""

    class Waiting(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.is_next_encoded = threading.Event()

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            assert self.is_next_encoded.wait(SECONDS)
            return super().export(spans)

        def encode_ahead(self, spans: Sequence[ReadableSpan]) -> Callable[[], SpanExportResult]:
            export = super().encode_ahead(spans)
            if len(self.ahead) == 2:
                self.is_next_encoded.set()
            return export

    numbers = write_lines(tmp_path, 8, 4)
    exporter = Waiting()
    deliver(tmp_path, exporter)
    assert exporter.exported == exporter.ahead == [numbers[:5], numbers[5:10], numbers[10:]]
    assert counted(tmp_path) == (12, 0)


def test_one_batch_is_ahead_at_most(tmp_path: Path) -> None:
    """While the target answers, one batch is prepared, however many lines wait."""
    encoded_meanwhile = []

    class Slow(Recorder):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if not self.exported:
                wait_for(lambda: len(self.ahead) == 2, SECONDS)
                threading.Event().wait(0.2)  # a third batch would be prepared by now
                encoded_meanwhile.append(len(self.ahead))
            return super().export(spans)

    write_lines(tmp_path, 50)
    deliver(tmp_path, Slow())
    assert encoded_meanwhile == [2]


def test_nothing_is_read_ahead_of_a_batch_that_is_not_full(tmp_path: Path) -> None:
    """Lines that come while the target answers fill one batch."""
    lines = [line(number, {}, {}) for number in range(1, 8)]
    segment = tmp_path / SEGMENTS[0].file
    segment.write_bytes(b"".join(lines[:3]))

    class Writing(Recorder):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if not self.exported:
                segment.write_bytes(b"".join(lines))
            return super().export(spans)

    exporter = Writing()
    deliver(tmp_path, exporter)
    assert exporter.exported == [[1, 2, 3], [4, 5, 6, 7]]


def test_cursor_waits_for_the_answer(tmp_path: Path) -> None:
    """A batch that was prepared and not sent is pending, and the next delivery begins with it."""
    numbers = write_lines(tmp_path, 12)
    answered = threading.Event()

    class Stopped(Recorder):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            wait_for(lambda: len(self.ahead) == 2, SECONDS)
            delivery._stop.set()
            answered.set()
            return super().export(spans)

    first, second = Stopped(), Recorder()
    with delivering(tmp_path, first) as delivery:
        assert answered.wait(SECONDS)
    assert first.exported == [numbers[:5]]
    assert counted(tmp_path) == (5, 0)
    deliver(tmp_path, second)
    assert second.exported == [numbers[5:10], numbers[10:]]


def test_interrupted_delivery_reads_from_the_cursor_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error between answer and cursor, that batch is sent again, and none is left out."""
    numbers = write_lines(tmp_path, 12)
    advance, calls = Ledger.advance, []

    def failing(self: Ledger, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("as the test wishes")
        advance(self, *arguments)

    monkeypatch.setattr(Ledger, "advance", failing)
    exporter = Recorder()
    deliver(tmp_path, exporter)
    assert exporter.exported == [numbers[:5], numbers[5:10], numbers[5:10], numbers[10:]]
    assert counted(tmp_path) == (12, 0)


def test_exporter_that_cannot_encode_ahead_exports_all_the_same(tmp_path: Path) -> None:
    """What encode_ahead() raises is logged; the spans are exported as without it."""

    class Failing(Recorder):
        def encode_ahead(self, spans: Sequence[ReadableSpan]) -> Callable[[], SpanExportResult]:
            raise ValueError("as the test wishes")

    numbers = write_lines(tmp_path, 7)
    exporter = Failing()
    deliver(tmp_path, exporter)
    assert exporter.exported == [numbers[:5], numbers[5:]]


@pytest.mark.parametrize("fails", ["thread", "preparation"])
def test_batch_is_prepared_by_its_sender_if_the_thread_fails(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread, or with an error in it, the sender prepares the batch."""
    attempts: list[str] = []

    def prepare(lines: Any) -> Any:
        attempts.append(threading.current_thread().name)
        if fails == "preparation" and len(attempts) == 1:
            raise ValueError("as the test wishes")
        return lines

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if fails == "thread":
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    lines: Any = ["a line"]
    assert BatchAhead(lines, prepare).batch() is lines
    assert attempts[-1] == threading.current_thread().name
    assert len(attempts) == (1 if fails == "thread" else 2)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.tuples(st.integers(0, 23), st.integers(0, 12)),
    answers=st.lists(
        st.sampled_from([OK, OK, "raise", FailureKind.UNAVAILABLE, FailureKind.REFUSED]), max_size=12
    ),
    poison=st.sets(st.integers(1, 30), max_size=4),
)
def test_each_line_is_delivered_or_rejected_once_and_in_order(
    counts: tuple[int, int], answers: list[Any], poison: set[int]
) -> None:
    """Whatever the target answers, no line is lost, repeated or overtaken."""
    with TemporaryDirectory() as directory:
        node_dir = Path(directory)
        numbers = write_lines(node_dir, *counts)
        exporter = Recorder(answers, sorted(poison))
        deliver(node_dir, exporter)
        rejected = poison.intersection(numbers)
        assert [number for batch in exporter.exported for number in batch] == [
            number for number in numbers if number not in rejected
        ]
        if numbers:
            assert counted(node_dir) == (len(numbers) - len(rejected), len(rejected))
