"""Record spans as lines in a journal; a thread moves them to segment files.

:meth:`SegmentWriter.write` runs inside user code. It copies a line into shared memory and returns. Only a
line larger than the journal is written to a file. A wait for a lock or for room in the journal is bounded,
and happens once per stall. Only exceptions of signal handlers are raised.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final

from opentelemetry.trace import SpanContext

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, pass_on
from otel_rollout.otlp import writer
from otel_rollout.otlp.score_batch import around_data
from otel_rollout.record.recording.counters import Counters
from otel_rollout.record.recording.flusher import CHECK_INTERVAL, Flusher, Line, Patience, SpoolUsage
from otel_rollout.record.recording.identity import NO_IDENTITY, Identity
from otel_rollout.record.recording.segment_file import SegmentFile
from otel_rollout.redaction.redaction import Redaction
from otel_rollout.spool import layout
from otel_rollout.spool.journal import Journal, JournalState
from otel_rollout.spool.root_table import MAX_LINE, RootTable

SEGMENT_BYTES: Final = 64 << 20
"""Size of a segment file at which the next one is created."""
JOURNAL_BYTES: Final = 4 << 20
"""Bytes of the journal's ring, which holds lines until they are on the disk."""
_ROOT_TEXT_CHARS: Final = (None, 4096, 256, 32)
"""Characters to which the texts of a running trajectory's line are cut; the first length with which the line
fits is used. None: the full line."""


class SegmentWriter:
    """Writes the spans of one process into one node directory.

    Args:
        node_dir: existing directory, see :mod:`otel_rollout.spool`.
        resource: attributes of the entity that records; each line has them.
        segment_bytes: size of a segment file at which the next one is created.
        spool_limit: bytes that the segments of all writers in ``node_dir`` may have together.
        found: creates ``node_dir`` again after somebody has removed it.
        redact: applied to each line before it is written anywhere.
        journal_bytes: size of the ring between the caller and the disk.
        observe: called in the flusher's thread with the bytes of lines that it has written.
        is_resource_open: whether each line continues the attributes of its resource.

    Attributes:
        id: the writer's name in the names of its files.
        counters: counts of what this process did not record.

    Raises:
        OSError: when the files cannot be created.
    """

    def __init__(
        self,
        node_dir: Path,
        resource: Mapping[str, writer.AttributeInput],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        spool_limit: float = math.inf,
        found: Callable[[], object] = lambda: None,
        redact: Redaction | None = None,
        journal_bytes: int = JOURNAL_BYTES,
        observe: Callable[[bytes], object] | None = None,
        is_resource_open: bool = False,
    ) -> None:
        self.id = layout.new_writer_id()
        self._redact = redact
        self._high_water = journal_bytes // 2
        self._is_abandoned = False
        self._lock = threading.Lock()
        self._segment = SegmentFile(node_dir, self.id, resource, segment_bytes, is_resource_open)
        journal_file = layout.journal_of(node_dir, self.id)
        table_file = node_dir / (self.id + layout.OPEN_SUFFIX)
        first = self._segment.prepare_next()  # before the journal: a visible journal has a locked segment
        try:
            self._journal = Journal(journal_file, journal_bytes)
            self._table = RootTable(table_file)
        except OSError:
            self._segment.discard(first)
            journal_file.unlink(missing_ok=True)
            table_file.unlink(missing_ok=True)
            raise
        self.counters = Counters(self._journal)
        self._usage = SpoolUsage(node_dir, spool_limit)
        self._usage.check()
        self._segment.switch_to(first)
        self._journal.begin_segment(first.name.sequence)
        self._flusher = Flusher(
            node_dir,
            self._journal,
            self._table,
            self._segment,
            self._usage,
            lock=self._lock,
            counters_lock=self.counters.lock,
            recreate=found,
            append=self._append,
            observe=observe,
        )
        self._flusher.start()

    # --- Spans ----------------------------------------------------------------------------------------------

    def started(self) -> None:
        """Count a span that was started."""
        self._journal.started[0] += 1

    def write(
        self, body: Line, identity: Identity = NO_IDENTITY, spans: int = 1, is_redacted: bool = False
    ) -> bool:
        """Record one line given without its resource head.

        Args:
            body: the line; a long one in pieces.
            identity: identity of the line's trajectory; a line that is not recorded is counted for its step.
            spans: number of spans for which the line counts.
            is_redacted: whether the line is redacted already.

        Returns:
            Whether the line was recorded. If not, the line was counted as dropped, unless the writer is
            closed.
        """
        if self._redact is not None and not is_redacted:
            try:
                body = self._redact(_whole(body))
            except Exception as error:  # noqa: BLE001 - of the application: never write an unredacted line
                self.counters.drop("redaction", identity)
                pass_on(error)
                return False
        lock, flusher = self._lock, self._flusher
        if get_ident() == flusher.thread_id:  # in a finalizer: the lock's holder may wait for this thread
            return self._postpone(body, identity, spans)
        # Check `locked()` first: `with` has no timeout, and the holder may be stuck on the disk or be this
        # thread, interrupted by a signal handler. Use `with`: a handler may raise between `acquire` and a
        # `try`.
        if lock.locked():
            interrupted = self._interrupted()
            if interrupted == _WAIT_FOR_ROOM:  # this thread has the lock, and is in the middle of no line
                return self._append_when_possible(body, identity, spans)
            if interrupted or not self._is_free_soon():
                return self._postpone(body, identity, spans)
        with lock:
            if flusher.is_closing:  # ended after shutdown(): the span counts as unfinished
                return False
            journal, head = self._journal, self._segment.head
            if type(body) is bytes:
                appended = journal.append(head, body)
            else:
                appended = journal.append_long((head, *body), spans)
            if not appended and not self._append_when_possible(body, identity, spans):
                return False
            if flusher.is_idle:
                flusher.is_idle = False
                flusher.wake()
            elif not flusher.is_hurried and journal.written - journal.flushed > self._high_water:
                flusher.hurry()
            return True

    def write_batch(self, body: bytes, data: bytes, identity: Identity, scores: int) -> bool:
        """Record the line of a batch of scores.

        Args:
            body: the line without its data.
            data: numbers, in which redaction has nothing to look for.
            identity: identity that the trajectories share.
            scores: number of scores.
        """
        self._journal.started[0] += scores
        try:
            redact = self._redact
            before, after = around_data(body) if redact is None else around_data(redact(body), data)
        except Exception as error:  # noqa: BLE001 - of the application: never write an unredacted line
            self.counters.drop("redaction", identity, scores)
            pass_on(error)
            return False
        return self.write((before, data, after), identity, scores, is_redacted=True)

    @internal_errors("recording the phases of an engine's request")
    def write_phases(
        self, request: SpanContext, attributes: Mapping[str, Any], start_ns: int, identity: Identity
    ) -> None:
        """Record the phases of an engine's request as spans of ours below it. Never raises.

        Args:
            request: ids of the request's span.
            attributes: attributes of that span.
            start_ns: start of that span, Unix time in ns.
            identity: identity of the request's trajectory.
        """
        from otel_rollout.otlp import engine_phases  # here: few processes record an engine's requests

        ids = request.trace_id.to_bytes(16, "big"), request.span_id.to_bytes(8, "big")
        phases = engine_phases.phases_of(semconv.ENGINE_REQUEST, ids[1], attributes, start_ns)
        encoded = identity.encoded or identity.encode()
        for line in engine_phases.phase_lines(phases, *ids, request.trace_flags, encoded):
            self.started()
            self.write(line, identity)

    def _postpone(self, body: Line, identity: Identity, spans: int) -> bool:
        """Leave a line to the flusher: this thread cannot have the lock, or must not wait."""
        flusher = self._flusher
        if flusher.is_closing:
            return False
        return flusher.postpone(_whole(body), identity, spans) or self.counters.drop(
            flusher.obstacle or "journal_full", identity, spans
        )

    def _interrupted(self) -> list[CodeType]:
        """Return the methods of this writer that the caller of :meth:`write` interrupted, innermost first.

        A signal handler or a finalizer that records a span interrupts its thread anywhere.
        """
        found: list[CodeType] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if (code is _WRITE or code is _WAIT) and frame.f_locals["self"] is self:
                found.append(code)
            frame = frame.f_back
        return found

    def _is_free_soon(self) -> bool:
        """Wait until the lock is free; return False if that takes too long."""
        flusher, patience = self._flusher, Patience(self._flusher)
        while self._lock.locked():
            flusher.is_lock_stuck = flusher.is_lock_stuck or not patience.sleep()
            if flusher.is_lock_stuck:
                return False
        return True

    def _append_when_possible(self, body: Line, identity: Identity, spans: int) -> bool:
        """Append a line that did not fit into the journal; False if the line was dropped."""
        line = self._segment.head + _whole(body)
        self._wait_for_room(min(len(line), self._journal.size))
        return self._append(line, identity, spans)

    def _append(self, line: bytes, identity: Identity, spans: int) -> bool:
        """Append a line without a wait; False if the line was dropped."""
        if len(line) > self._journal.size:
            return self._write_past_journal(line, identity, spans)
        reason = self._flusher.obstacle or "journal_full"
        return self._journal.append_long((line,), spans) or self.counters.drop(reason, identity, spans)

    def _wait_for_room(self, size: int) -> None:
        """Wait a bounded time for the flusher to free bytes; never for a stalled flusher."""
        flusher, patience = self._flusher, Patience(self._flusher)
        while not flusher.is_stalled and self._journal.room < size:
            flusher.hurry()
            flusher.is_stalled = not patience.sleep() and self._journal.room < size

    def _write_past_journal(self, line: bytes, identity: Identity, spans: int) -> bool:
        """Write a line larger than the journal straight to the segment file.

        The journal has to be empty, because lines stay in order.
        """
        journal, segment = self._journal, self._segment
        if journal.room < journal.size:
            return self.counters.drop("journal_full", identity, spans)
        length, recorded = segment.length, journal.recorded
        try:
            segment.write(line)
            journal.set_base(journal.written - segment.length)
            journal.publish(journal.written, spans)
        except BaseException as error:  # a full disk, or an exception of a signal handler
            if journal.recorded == recorded:  # not published: undo the write
                segment.truncate(length)
                journal.set_base(journal.written - length)
            pass_on(error)
            if not isinstance(error, OSError):
                raise
            return self.counters.drop("disk", identity, spans)
        return True

    @property
    def room(self) -> int:
        """Bytes of lines that can be recorded now without a wait."""
        return self._journal.room

    # --- Trajectories ---------------------------------------------------------------------------------------
    def start_trajectory(self, body_of: Callable[[int | None], bytes]) -> int | None:
        """Store the line that is recorded if this process dies before the trajectory ends.

        Args:
            body_of: returns that line without its resource head. Called with None, it returns the full line;
                with a number, only the trajectory's identity, in texts of at most that many characters. The
                first line that fits is stored.

        Returns:
            The slot to give to :meth:`end_trajectory`; None if no line was stored.
        """
        head = self._segment.head
        for longest in _ROOT_TEXT_CHARS:
            body = body_of(longest)
            if self._redact is not None:
                try:
                    body = self._redact(body)
                except Exception as error:  # noqa: BLE001 - of the application's function
                    pass_on(error)
                    return None
            if self._is_abandoned:
                return None
            if len(head) + len(body) <= MAX_LINE:
                slot = self._table.enter(head + body)
                return self._enter_when_possible(head + body) if slot is None else slot
            head = self._segment.short_head
        return None

    def _enter_when_possible(self, line: bytes) -> int | None:
        """Store a line after the flusher has made room in the table."""
        table, flusher, patience = self._table, self._flusher, Patience(self._flusher)
        can_wait = get_ident() != flusher.thread_id
        while can_wait and table.is_short and not (flusher.is_stalled or flusher.is_closing):
            flusher.hurry()
            if not patience.sleep():
                return None
            slot = table.enter(line)
            if slot is not None:
                return slot
        return table.enter(line)

    def end_trajectory(self, slot: int) -> None:
        """Free the slot of a trajectory that has ended.

        After :meth:`close` the root span is not recorded. The slot stays, and the forwarder ends the
        trajectory as an error.
        """
        if not self._flusher.is_closing:
            self._table.leave(slot)

    # --- The end --------------------------------------------------------------------------------------------

    def counts(self) -> JournalState:
        """Return the counts of this writer so far."""
        return self.counters.read()

    def flush(self, timeout: float) -> bool:
        """Wait until all lines written so far are in segment files, or the timeout ends."""
        deadline, journal = time.monotonic() + timeout, self._journal
        if not self._hurry_until(lambda: not self._flusher.postponed, deadline):
            return False
        target = journal.written  # has the lines that were postponed
        return self._hurry_until(lambda: journal.flushed >= target, deadline)

    def _hurry_until(self, is_done: Callable[[], bool], deadline: float) -> bool:
        while not is_done():
            if time.monotonic() > deadline:
                return False
            self._flusher.hurry()
            time.sleep(CHECK_INTERVAL)
        return True

    def close(self, timeout: float) -> None:
        """Flush and end the flusher within the timeout; its end frees the segment's lock.

        Lines that cannot be flushed stay in the journal. A flusher that is stuck on the disk ends later.
        """
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        locked = self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._flusher.is_closing = True
        if locked:
            self._lock.release()
        self._flusher.close(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Close the copies of the parent's files in a forked child.

        A file stays locked as long as any process has its descriptor open. Journal and table are shared
        memory, where the child must not end spans of the parent: the parent ends them itself.
        """
        self._is_abandoned = self._flusher.is_closing = True
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self.counters.abandon()
        if self._segment.descriptor >= 0:
            self._segment.close()
            self._journal.release()


_WAIT: Final = SegmentWriter._wait_for_room.__code__
_WRITE: Final = SegmentWriter.write.__code__
_WAIT_FOR_ROOM: Final = [_WAIT, _WRITE]
"""The interrupted methods with which a handler may wait for room, too. A handler that interrupts this handler
may not: if signals come faster than room, the handlers would pile up on the stack."""


def _whole(body: Line) -> bytes:
    return body if isinstance(body, bytes) else b"".join(body)
