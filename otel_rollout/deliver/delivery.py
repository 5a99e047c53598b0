"""Deliver the lines of a node directory to one exporter."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from opentelemetry.sdk.trace.export import SpanExporter

from otel_rollout.account.ledger import HeldScore, Ledger, NumberedBatch
from otel_rollout.account.ledger_reader import Tally
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.errors import warn_once
from otel_rollout.base.waits import waits
from otel_rollout.deliver import retry_policy
from otel_rollout.deliver.batch_commits import BatchCommits, CommitClock
from otel_rollout.deliver.batch_sender import BatchSender, Sending
from otel_rollout.deliver.dead_letters import DeadLetters
from otel_rollout.deliver.forwarder_thread import ForwarderThread
from otel_rollout.deliver.identity_scores import IdentityScores
from otel_rollout.deliver.lines import Line, LineCache
from otel_rollout.deliver.trackers import LiveTrajectories, TrackerRunLink
from otel_rollout.exporting.api import (
    Announces,
    CommitsBatches,
    ExportFailure,
    Prepares,
    ResolvesIdentities,
    reads_spool,
)
from otel_rollout.exporting.entry_points import destination_of
from otel_rollout.otlp.scan import StepKey, trace_id_of
from otel_rollout.otlp.score_batch import without_tokens
from otel_rollout.settings import Settings
from otel_rollout.spool import layout, segments
from otel_rollout.spool.files import running_roots
from otel_rollout.spool.layout import SegmentName

BATCH_SPANS = 500
"""Maximum lines per batch."""
BATCH_BYTES = 8 << 20
"""Maximum bytes of lines per batch; a larger line is exported alone."""


class Delivery(ForwarderThread):
    """Delivers the lines of a node directory to one exporter, in a thread of its own.

    Args:
        name: the exporter's name, which identifies its cursors in the ledger.
        exporter: exports the lines.
        node_dir: holds the segments and the ledger.
        is_ours: returns whether this process still forwards the directory, which somebody may replace.
        lines: the line cache that the forwarder's exporters share.
        configured: settings of the run; None for the defaults.
    """

    _ledger: Ledger
    """The ledger that the thread has opened."""

    def __init__(
        self,
        name: str,
        exporter: SpanExporter,
        node_dir: Path,
        is_ours: Callable[[], bool] = lambda: True,
        lines: LineCache | None = None,
        configured: Settings | None = None,
    ) -> None:
        super().__init__(f"deliver-{name}")
        self.name = name
        self._settings = configured or Settings()
        self._exporter = exporter
        self._node_dir = node_dir
        self._is_ours = is_ours
        self._lines = (lines or LineCache(node_dir)).reader()
        self._positions: dict[str, int] = {}
        self._tallies: dict[StepKey, Tally] = {}
        self._dead_letters = DeadLetters(node_dir, name)
        sending = Sending(name, exporter, self._stop, self._advance, self._failed)
        self._commits: BatchCommits | None = None
        if isinstance(exporter, CommitsBatches):
            clock = CommitClock(node_dir, exporter.batch)
            self._commits = BatchCommits(sending, exporter, self._note_batch, clock)
        self._sender = self._commits or BatchSender(sending)
        # A trajectory that tail sampling discards would be shown as running forever.
        self._live: LiveTrajectories | None = None
        if isinstance(exporter, Announces) and not self._settings.outcome_keep:
            self._live = LiveTrajectories(node_dir, exporter)
        self._link = TrackerRunLink(node_dir, name, exporter)
        self._scores: IdentityScores | None = None
        if isinstance(exporter, ResolvesIdentities):
            self._scores = IdentityScores(name, exporter, self._dead_letters, lambda: running_roots(node_dir))

    def stop(self, timeout: float) -> None:
        """Stop after the current batch, and shut the exporter down."""
        super().stop(timeout)
        self._exporter.shutdown()

    @property
    def is_refused(self) -> bool:
        """Whether the target refused the latest export: a person has to act."""
        return self._sender.is_refused

    def is_done_with(self, name: SegmentName, size: int) -> bool:
        """Return whether this exporter no longer needs a segment of ``size`` bytes."""
        return self._positions.get(name.stem, 0) >= size and not reads_spool(self._exporter)

    def is_caught_up(self) -> bool:
        """Return whether all complete lines and waiting scores are delivered, and linked to the run."""
        if not self._link.is_complete() or (self._scores is not None and not self._scores.is_empty):
            return False
        for name in layout.segments(self._node_dir):
            position = self._positions.get(name.stem, 0)
            if any(True for _ in segments.complete_lines(self._node_dir / name.file, position, 1)):
                return False
        return True  # a partial line does not count: crash recovery cuts it off, or a copy completes it

    def _work(self) -> None:
        """Deliver until stopped; after an error, pause and begin again."""
        self._prepare()
        interruptions = 0
        while not self._stop.is_set():
            try:
                with Ledger(self._node_dir, self._is_ours, self._resume) as self._ledger:
                    self._resume(self._ledger)
                    self._name_destination()
                    while not self._stop.is_set():
                        self._deliver_next_batch()
                        interruptions = 0
                    self._ledger.keep()
            except Exception as error:
                unforeseen = not isinstance(error, sqlite3.Error)
                logger.error("delivery to %s was interrupted: %s", self.name, error, exc_info=unforeseen)
                self._stop.wait(retry_policy.pause(interruptions))
                interruptions += 1

    def _resume(self, ledger: Ledger) -> None:
        """Continue from the cursors of a ledger.

        A ledger that was replaced has no cursors. It gets the cursors of this delivery; without them every
        line would be delivered again.
        """
        cursors = ledger.cursors(self.name)
        if cursors or not self._positions:
            if self._scores is not None:
                self._scores.load(ledger)
            self._positions, self._tallies = cursors, ledger.tallies(self.name)
            if self._commits is not None and (batch := ledger.batch(self.name)) is not None:
                self._commits.batch = batch
            return
        held = self._scores.held if self._scores is not None else ()
        ledger.advance(self.name, self._positions, self._tallies, held)
        if self._commits is not None:
            ledger.note_batch(self.name, self._commits.batch)
        # The new ledger lacks the link too: make and record the link again.
        self._link = TrackerRunLink(self._node_dir, self.name, self._exporter)

    def _prepare(self) -> None:
        """Let the exporter connect early; ``export`` reports any failure."""
        with self._logging():
            if isinstance(self._exporter, Prepares):
                self._exporter.prepare()

    def _name_destination(self) -> None:
        """Give the ledger the exporter's destination, as far as it is known."""
        with self._logging():
            self._ledger.destinations[self.name] = destination_of(self._exporter, self._settings.project_name)

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        """Log any exception that the exporter raises in the block: spans are delivered all the same."""
        try:
            yield
        except Exception:
            logger.exception("exporter %s raised", self.name)

    def _deliver_next_batch(self) -> None:
        self._ledger.keep()
        batch = self._next_batch() if self._is_ours() else []
        with self._logging():
            if self._live is not None and not self.is_refused:
                self._live.announce()  # in this thread: before these roots are exported
            if not self.is_refused and (self._link.is_new() or self._is_last_link(batch)):
                self._link.make(self._ledger)
        if batch:
            self._sender.send(batch)
            self._lines.is_waiting = False
        if self._scores is not None and self._scores.is_due():
            for step, tally in self._scores.resolve(self._ledger, self._is_over(batch)).items():
                self._tallies[step] = self._tallies.get(step, Tally()) + tally
        if not batch:
            self._stop.wait(waits().idle)

    def _is_over(self, batch: Sequence[Line]) -> bool:
        """Return whether everything is delivered, and no process records any more."""
        return not batch and not segments.living_writers(self._node_dir)

    def _is_last_link(self, batch: Sequence[Line]) -> bool:
        return not self._link.is_complete() and self._link.may_retry() and self._is_over(batch)

    def _next_batch(self) -> list[Line]:
        """Return undelivered lines, up to a full batch; none while they wait for further lines."""
        if self._commits is None:
            return self._read(BATCH_SPANS, BATCH_BYTES)
        if (ends := self._commits.batch.ends) is not None:
            batch = self._read(sys.maxsize, sys.maxsize, ends)
            if not batch:
                logger.error("%s: the segments of an unfinished batch are gone", self.name)
                self._commits.end()
            return batch
        waiting = self._waiting_bytes()
        clock = self._commits.clock
        if not clock.is_due(waiting):
            return []
        batch = self._read(clock.limits.spans, clock.limits.bytes)
        ends_of_batch = {line.segment: line.end for line in batch}
        clock.restart(
            waiting - sum(end - self._positions.get(stem, 0) for stem, end in ends_of_batch.items())
        )
        return batch

    def _waiting_bytes(self) -> int:
        """Return the number of bytes in segments that are not delivered."""
        total = 0
        for name in layout.segments(self._node_dir):
            with contextlib.suppress(FileNotFoundError):
                size = (self._node_dir / name.file).stat().st_size
                total += max(0, size - self._positions.get(name.stem, 0))
        return total

    def _read(self, max_lines: int, max_bytes: int, ends: Mapping[str, int] | None = None) -> list[Line]:
        """Return undelivered lines of one or more segments.

        Args:
            max_lines: maximum number of lines.
            max_bytes: maximum bytes of lines; a larger line is returned alone.
            ends: segment → end of its last line to return; None for all lines of all segments.
        """
        batch: list[Line] = []
        size = 0
        room = iter(range(self._scores.room)) if self._scores is not None else itertools.count()
        writers = itertools.groupby(layout.segments(self._node_dir), lambda name: name.writer)
        readers = [self._undelivered(list(names), max_bytes, ends, room) for _, names in writers]
        for line in segments.merged(readers, lambda line: line.recorded):
            size += len(line.recorded)
            if batch and size > max_bytes:
                break
            batch.append(line)
            if len(batch) >= max_lines:
                break
        return batch

    def _undelivered(
        self,
        names: Sequence[SegmentName],
        max_bytes: int,
        ends: Mapping[str, int] | None,
        room: Iterator[int],
    ) -> Iterator[Line]:
        """Yield undelivered lines of a writer's segments.

        Args:
            names: the segments.
            max_bytes: maximum bytes of lines.
            ends: segment → end of its last line; None for all lines.
            room: yields a number for each score that may wait in addition.
        """
        for name in names:
            end = sys.maxsize if ends is None else ends.get(name.stem, 0)
            position = self._positions.get(name.stem, 0)
            try:
                for line in self._lines.read(name, position, max_bytes) if position < end else ():
                    if line.end > end or not self._is_decided(line):  # later lines of the segment wait too
                        break
                    if self._is_held(line) and next(room, None) is None:
                        break
                    yield line
            except OSError as error:  # for example a bad block; other segments are still delivered
                warn_once(f"cannot read {name.file}: {error}; the file stays where it is", logger=logger)

    def _is_held(self, line: Line) -> bool:
        """Return whether a line waits for its trajectory, once the cursor has passed the line."""
        return self._scores is not None and line.is_by_identity and not line.is_sampled_out

    def _is_decided(self, line: Line) -> bool:
        """Set whether a line is sampled out; return False while that is undecided."""
        trace_id = trace_id_of(line.recorded) if self._settings.outcome_keep else None
        if trace_id is None:
            return True
        is_kept = self._ledger.is_kept(trace_id)
        if is_kept is None:  # another exporter, which shares the line, may know already
            return False
        line.is_sampled_out |= not is_kept
        return True

    def _failed(self, failure: ExportFailure) -> None:
        self._lines.is_waiting = True
        self._ledger.note_failure(self.name, failure)

    def _advance(self, lines: Sequence[Line], rejected: Mapping[Line, str]) -> None:
        """Count lines as delivered, sampled out or rejected, and move the cursors."""
        tallies: dict[StepKey, Tally] = {}
        held: list[HeldScore] = []
        for line in lines:
            if self._is_held(line):
                recorded = without_tokens(line.recorded)
                held.append(HeldScore(line.segment, line.end, recorded, time.time()))
                continue
            tally = tallies.setdefault(line.step, Tally())
            if line.is_sampled_out:
                tally.sampled_out += 1
            elif line in rejected:
                self._dead_letters.add(line, rejected[line])
                tally.rejected += 1
            else:
                tally.delivered += 1
        positions = {line.segment: line.end for line in lines}
        self._name_destination()
        self._record(lambda: self._ledger.advance(self.name, positions, tallies, held))
        self._positions |= positions
        if self._commits is not None:
            self._commits.end()
        if self._scores is not None:
            self._scores.add(held)
        for step, tally in tallies.items():
            self._tallies[step] = self._tallies.get(step, Tally()) + tally
        self._link.delivered()

    def _note_batch(self, batch: NumberedBatch) -> None:
        """Note a batch in the ledger, so that a successor can ask whether it was committed."""
        self._record(lambda: self._ledger.note_batch(self.name, batch))

    def _record(self, change: Callable[[], None]) -> None:
        """Change the ledger, with retries until the delivery is stopped: else lines would be sent again."""
        attempt = 0
        while True:
            try:
                return change()
            except sqlite3.Error as error:  # for example a full disk
                logger.warning("cannot record the progress of %s in the ledger: %s", self.name, error)
                self._ledger.replace_if_damaged(error)
                if self._stop.wait(retry_policy.pause(attempt)):
                    raise
                attempt += 1
