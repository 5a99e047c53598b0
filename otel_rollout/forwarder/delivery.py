"""One exporter's delivery: read, decode, export, advance the cursor; wait, split or set aside on failure.

An exporter that takes lines as they are (``export_lines``) gets them undecoded.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.account.ledger import Ledger, Tally
from otel_rollout.account.report import StepKey
from otel_rollout.base import semconv
from otel_rollout.exporting.api import (
    Announces,
    ExportFailure,
    ExportsLines,
    FailureKind,
    Prepares,
    reads_spool,
)
from otel_rollout.exporting.registry import destination_of
from otel_rollout.forwarder.enrichment import Enrichment
from otel_rollout.forwarder.live_trajectories import Running
from otel_rollout.forwarder.run_links import RunLink
from otel_rollout.forwarder.tail_rules import trace_of
from otel_rollout.otlp.reader import UnreadableLineError, spans_of
from otel_rollout.spool import layout, segments
from otel_rollout.spool.layout import SegmentName

BATCH_SPANS = 500
BATCH_BYTES = 8 << 20
"""Upper bounds of what is read and exported at once; one line larger than that goes alone."""
POLL_INTERVAL = 0.2
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
_MAX_LOGGED_REJECTIONS = 10
"""Rejected spans that a forwarder logs, per exporter. The dead-letter file has the reason of each."""
WHOLE_ATTEMPTS = 4
"""How often a batch is sent as it is to a target that does not take it in time, or is not there."""
REFUSED_PAUSE = 60.0
"""Seconds before a target that refused us is asked again: somebody may have put it right."""

_STEP = b'{"key":"%b","value":{"' % semconv.STEP.encode()
_INTEGER = b'intValue":"'
_INTEGER_DIGITS = 20
_VALIDATE = b'{"key":"%b","value":{"boolValue":' % semconv.VALIDATE.encode()
"""How the recorder writes a trajectory's identity."""

_BAD_VALUE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_logger = logging.getLogger("otel_rollout.forwarder")


@dataclass(frozen=True, eq=False)
class Line:
    """A line read: its spans, and where its segment continues after it."""

    segment: str
    end: int
    raw: bytes
    """What was recorded."""
    told: bytes
    """What an exporter gets of it."""
    step: StepKey
    """The step it belongs to."""
    spans: Sequence[ReadableSpan] = ()
    """What it holds; empty when it was not decoded."""
    unreadable: str | None = None
    """Why it has no spans, when it cannot be decoded."""
    kept: bool = True
    """Whether it is delivered; else its group is left out, because of its outcome."""

    @classmethod
    def undecoded(cls, segment: str, end: int, raw: bytes, told: bytes) -> Line:
        """A line as it is."""
        return cls(segment, end, raw, told, step_of(raw))

    @classmethod
    def left_out(cls, segment: str, end: int, raw: bytes) -> Line:
        """A line that is not delivered."""
        return cls(segment, end, raw, b"", step_of(raw), kept=False)

    @classmethod
    def decoded(cls, segment: str, end: int, raw: bytes, told: bytes) -> Line:
        """Decode a line; one that cannot be is kept as such."""
        try:
            spans = spans_of(told)
        except UnreadableLineError as error:
            return cls(segment, end, raw, told, StepKey("", False), unreadable=str(error))
        return cls(segment, end, raw, told, _step_of_spans(spans), spans)


class Delivery:
    """Delivers what lies in a node directory to one exporter, in a thread of its own.

    Args:
        name: the exporter's name, under which its cursor is kept.
        exporter: where spans go.
        node_dir: what is delivered.
        is_ours: whether it is still ours to deliver: somebody may remove it, and others make it anew.
        enrichment: what lines go through on their way, if they do.
        selective: whether tail sampling decides what is delivered
            (:class:`~otel_rollout.forwarder.tail_sampling.Selection`).
        project: the run's project, for which the exporter names its destination.
    """

    def __init__(
        self,
        name: str,
        exporter: SpanExporter,
        node_dir: Path,
        is_ours: Callable[[], bool] = lambda: True,
        enrichment: Enrichment | None = None,
        selective: bool = False,
        project: str = "",
    ) -> None:
        self.name = name
        self._project = project
        self._exporter = exporter
        self._node_dir = node_dir
        self._is_ours = is_ours
        is_sent = not reads_spool(exporter)
        self._tell = enrichment.line if enrichment is not None and is_sent else lambda raw: raw
        self._stop = threading.Event()
        self._refused = False
        self._rejections = 0
        self._thread = threading.Thread(target=self._run, name=f"deliver-{name}", daemon=True)
        self._positions: dict[str, int] = {}
        self._tallies: dict[StepKey, Tally] = {}
        self._unreadable: set[SegmentName] = set()
        self._selective = selective
        is_shown = isinstance(exporter, Announces) and not selective  # what is left out would run for ever
        self._running = Running(node_dir) if is_shown else None
        self._link = RunLink(node_dir, name, exporter)
        self._export_lines = exporter.export_lines if isinstance(exporter, ExportsLines) else None
        self._read_line = Line.undecoded if self._export_lines else Line.decoded

    def start(self) -> None:
        """Begin delivering."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop after the batch under way, and close the exporter."""
        self._stop.set()
        self._thread.join(timeout)
        self._exporter.shutdown()

    @property
    def is_refused(self) -> bool:
        """Whether the target refuses us at present."""
        return self._refused

    def is_done_with(self, name: SegmentName, size: int) -> bool:
        """Whether a segment of that many bytes is done with, and nobody else reads it."""
        return self._positions.get(name.stem, 0) >= size and not reads_spool(self._exporter)

    def is_caught_up(self) -> bool:
        """Whether every line of every segment is done with, and linked to the tracker's run."""
        if not self._link.is_complete():
            return False
        for name in layout.segments(self._node_dir):
            position = self._positions.get(name.stem, 0)
            if any(True for _ in segments.complete_lines(self._node_dir / name.file, position, 1)):
                return False
        return True  # half a line is nobody's to deliver: of a dead writer it is cut off, else it is a copy's

    def _run(self) -> None:
        """Deliver until told to stop, whatever happens: nobody else does."""
        self._prepare()
        troubles = 0
        while not self._stop.is_set():
            try:
                with Ledger(self._node_dir, self._is_ours, self._take_up) as self._ledger:
                    self._take_up(self._ledger)
                    self._name_destination()
                    while not self._stop.is_set():
                        self._deliver_what_there_is()
                        troubles = 0
                    self._ledger.keep()
            except Exception as error:
                unforeseen = not isinstance(error, sqlite3.Error)
                _logger.error("delivery to %s was interrupted: %s", self.name, error, exc_info=unforeseen)
                self._stop.wait(_pause(troubles))
                troubles += 1

    def _take_up(self, ledger: Ledger) -> None:
        """Go on from what a ledger says; or, where it had to be begun anew, from what is known here.

        Else what was delivered would be delivered again.
        """
        cursors = ledger.cursors(self.name)
        if cursors or not self._positions:
            self._positions, self._tallies = cursors, ledger.tallies(self.name)
            return
        ledger.advance(self.name, self._positions, self._tallies)
        self._link = RunLink(self._node_dir, self.name, self._exporter)  # that it is linked is to be noted

    def _prepare(self) -> None:
        """Have the exporter connect while the program still runs; ``export`` reports what does not work."""
        try:
            if isinstance(self._exporter, Prepares):
                self._exporter.prepare()
        except Exception:  # somebody else's exporter
            _logger.exception("exporter %s raised", self.name)

    def _name_destination(self) -> None:
        """Have the ledger note where people find what is delivered, as far as that is known by now."""
        try:
            self._ledger.destinations[self.name] = destination_of(self._exporter, self._project)
        except Exception:  # somebody else's exporter
            _logger.exception("exporter %s raised", self.name)

    def _deliver_what_there_is(self) -> None:
        self._ledger.keep()
        batch = self._next_batch() if self._is_ours() else []
        try:
            if self._running is not None and not self._refused:
                self._announce(self._running)
            if not self._refused and (self._link.is_news() or self._is_last_link(batch)):
                self._link.tell(self._ledger)
        except Exception:  # somebody else's exporter; it is not to keep spans from being delivered
            _logger.exception("exporter %s raised", self.name)
        if batch:
            self._deliver(batch)
        else:
            self._stop.wait(POLL_INTERVAL)

    def _is_last_link(self, batch: Sequence[Line]) -> bool:
        is_idle = not batch and not self._link.is_complete() and self._link.may_be_told()
        return is_idle and not segments.living_writers(self._node_dir)

    def _announce(self, running: Running) -> None:
        """Show what runs. In this thread, so that nothing is announced after it was delivered."""
        roots = running.new_roots()
        if roots and isinstance(self._exporter, Announces):
            self._exporter.announce(roots)

    def _next_batch(self) -> list[Line]:
        """Lines not yet delivered, from as many segments as it takes to fill a batch."""
        batch: list[Line] = []
        size = 0
        for name in layout.segments(self._node_dir):
            position = self._positions.get(name.stem, 0)
            try:
                for raw, end in segments.complete_lines(
                    self._node_dir / name.file, position, BATCH_BYTES - size
                ):
                    kept = self._is_kept(raw)
                    if kept is None:  # what is behind it waits as well
                        break
                    size += len(raw)
                    if kept:
                        batch.append(self._read_line(name.stem, end, raw, self._tell(raw)))
                    else:
                        batch.append(Line.left_out(name.stem, end, raw))
                    if len(batch) >= BATCH_SPANS:
                        return batch
            except OSError as error:  # a bad block, say: what other segments hold is delivered all the same
                self._cannot_read(name, error)
            if size >= BATCH_BYTES:
                break
        return batch

    def _is_kept(self, line: bytes) -> bool | None:
        """Whether a line is delivered; None while that is not decided."""
        trace = trace_of(line) if self._selective else None
        return True if trace is None else self._ledger.is_kept(trace)

    def _cannot_read(self, name: SegmentName, error: OSError) -> None:
        if name not in self._unreadable:
            _logger.error("cannot read %s: %s; what it holds stays where it is", name.file, error)
        self._unreadable.add(name)

    def _deliver(self, lines: Sequence[Line], attempt: int = 0) -> None:
        """Export lines until they are delivered or set aside, or until we are told to stop.

        A target that is not to be had for long may just be too slow for so much: it is given less and less.
        """
        while not self._stop.is_set():
            failure = self._export(lines)
            self._refused = failure is not None and failure.kind is FailureKind.REFUSED
            if failure is None:
                self._advance(lines, {line: line.unreadable for line in lines if line.unreadable})
                return
            if failure.kind is FailureKind.REJECTED:
                self._close_in(lines, failure.message)
                return
            self._ledger.note_failure(self.name, failure)
            pause = REFUSED_PAUSE if self._refused else failure.retry_after or _pause(attempt)
            attempt += 1
            if attempt & (attempt - 1) == 0:  # the 1st, 2nd, 4th, 8th … time: an outage may last for days
                _logger.warning("%s: %s; next attempt in %.1f s", self.name, failure.message, pause)
            self._stop.wait(pause)
            if attempt >= WHOLE_ATTEMPTS and len(lines) > 1 and not self._refused:
                self._deliver_halves(lines, attempt)
                return

    def _deliver_halves(self, lines: Sequence[Line], attempt: int = 0) -> None:
        middle = len(lines) // 2
        self._deliver(lines[:middle], attempt)
        self._deliver(lines[middle:])

    def _export(self, lines: Sequence[Line]) -> ExportFailure | None:
        kept = [line for line in lines if line.kept]
        try:
            if self._export_lines is not None and kept:
                result = self._export_lines([line.told for line in kept])
            elif spans := [span for line in kept for span in line.spans]:
                result = self._exporter.export(spans)
            else:
                return None
        except Exception as error:
            _logger.exception("exporter %s raised", self.name)
            # What is wrong with a value is wrong with it every time; anything else may pass.
            kind = FailureKind.REJECTED if isinstance(error, _BAD_VALUE) else FailureKind.UNAVAILABLE
            return ExportFailure(kind, f"the exporter raised {type(error).__name__}: {error}")
        if result is SpanExportResult.SUCCESS:
            return None
        told = getattr(self._exporter, "last_failure", None)
        if isinstance(told, ExportFailure):
            return told
        return ExportFailure(FailureKind.UNAVAILABLE, "the exporter reports a failure without a reason")

    def _close_in(self, lines: Sequence[Line], reason: str) -> None:
        """Halve a rejected batch down to the span that is at fault: the others shall arrive."""
        if len(lines) == 1:
            self._advance(lines, {lines[0]: reason})
            return
        self._deliver_halves(lines)

    def _advance(self, lines: Sequence[Line], rejected: Mapping[Line, str]) -> None:
        """Be done with lines: all delivered but the rejected ones, which are set aside with the reason."""
        tallies: dict[StepKey, Tally] = {}
        for line in lines:
            tally = tallies.setdefault(line.step, Tally())
            if not line.kept:
                tally.left_out += 1
            elif line in rejected:
                self._set_aside(line, rejected[line])
                tally.rejected += 1
            else:
                tally.delivered += 1
        positions = {line.segment: line.end for line in lines}
        self._name_destination()
        self._note(positions, tallies)
        self._positions |= positions
        for step, tally in tallies.items():
            self._tallies[step] = self._tallies.get(step, Tally()) + tally
        self._link.delivered()

    def _note(self, positions: Mapping[str, int], tallies: Mapping[StepKey, Tally]) -> None:
        """Write down what was delivered, however long that takes: else all of it would be sent again."""
        attempt = 0
        while True:
            try:
                return self._ledger.advance(self.name, positions, tallies)
            except sqlite3.Error as error:  # a full disk, say
                _logger.warning("what %s took cannot be noted: %s", self.name, error)
                self._ledger.replace_if_damaged(error)
                if self._stop.wait(_pause(attempt)):
                    raise
                attempt += 1

    def _set_aside(self, line: Line, reason: str) -> None:
        entry = {
            "reason": reason,
            "segment": line.segment,
            "end": line.end,
            "line": line.raw.decode("utf-8", "replace").rstrip("\n"),
        }
        rejected = rejected_file(self._node_dir, self.name)
        segments.append_line(rejected, orjson.dumps(entry) + b"\n")
        self._rejections += 1
        if self._rejections <= _MAX_LOGGED_REJECTIONS:
            _logger.error("%s rejects a span of %s: %s", self.name, line.segment, reason)
        if self._rejections == _MAX_LOGGED_REJECTIONS:
            _logger.error("further spans that %s rejects are written to %s only", self.name, rejected)


def rejected_file(node_dir: Path, exporter: str) -> Path:
    """The dead-letter file of an exporter: spans that its target refuses for good."""
    return node_dir / f"{layout.DEAD_LETTER_PREFIX}{exporter}.jsonl"


def step_of(line: bytes) -> StepKey:
    """The step a recorded line belongs to, found without decoding it.

    What looks for attributes by these bytes finds no text that quotes them: in a JSON string the quotes would
    be escaped.
    """
    verdict = line.find(_VALIDATE)
    validate = verdict >= 0 and line.startswith(b"true", verdict + len(_VALIDATE))
    start = line.find(_STEP)
    if start < 0:
        return StepKey("", validate)
    if not line.startswith(_INTEGER, start + len(_STEP)):  # text, which may hold escapes
        return Line.decoded("", 0, line, line).step
    begin = start + len(_STEP) + len(_INTEGER)
    end = line.find(b'"', begin, begin + _INTEGER_DIGITS + 1)
    if end < 0:  # no line of ours, or half of one
        return Line.decoded("", 0, line, line).step
    return StepKey(line[begin:end].decode("ascii", "replace"), validate)


def _step_of_spans(spans: Sequence[ReadableSpan]) -> StepKey:
    attributes = (spans[0].attributes or {}) if spans else {}
    return StepKey(str(attributes.get(semconv.STEP, "")), bool(attributes.get(semconv.VALIDATE, False)))


def _pause(attempt: int) -> float:
    """Seconds before the next attempt: doubling, bounded, spread so that nodes do not come in step."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempt, 16)) * random.uniform(0.75, 1.25)  # noqa: S311
