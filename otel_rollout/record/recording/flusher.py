"""Move lines from the journal to segment files, in a thread."""

from __future__ import annotations

import collections
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_rollout.base.errors import logger
from otel_rollout.base.waits import waits
from otel_rollout.record.recording.identity import Identity
from otel_rollout.record.recording.segment_file import SegmentFile
from otel_rollout.spool import layout
from otel_rollout.spool.journal import Journal
from otel_rollout.spool.root_table import RootTable

FLUSH_CHUNK: Final = 256 << 10
"""Bytes per write(2), few enough that a caller who waits for room gets it soon."""
CATCH_UP_CHUNK: Final = 1 << 20
"""Bytes per write(2) while the journal is more than half full: each write(2) costs a wait for the GIL."""
MAX_POSTPONED: Final = 64 << 20
"""Maximum bytes of lines that wait in memory. A garbage collection may interrupt a thread that appends a
line, and run thousands of finalizers that record spans."""
LOCK_WAIT: Final = 0.005
"""Seconds to wait for the lock: the interpreter's switch interval. The lock's holder may have waited for
room, and now waits for the GIL."""
_WAKE, _HURRY = False, True

Line = bytes | tuple[bytes, ...]
"""A line without its resource head; a long one in pieces."""


class Flusher:
    """Moves lines to segment files, about every ``Waits.flush``, in its own thread.

    Args:
        node_dir: the directory of the files.
        journal: the source of the lines.
        table: the root table, which grows when few slots are free.
        segment: the target of the lines.
        usage: the disk usage and limit of the directory.
        lock: held during an append to the journal or a change of files.
        counters_lock: held during a change of the journal's counts.
        recreate: creates ``node_dir`` again after somebody has removed it.
        append: appends a whole line; the lock is held.
        observe: gets all bytes of lines that reached a segment, in parts of any length. Must not raise.

    Attributes:
        is_idle: whether the thread sleeps until it is woken.
        is_hurried: whether the thread flushes without waiting for more lines.
        is_closing: whether the writer records no more lines.
        is_stalled: whether a caller has waited for room in vain. Then no caller waits, until the thread has
            caught up.
        is_lock_stuck: whether a caller has waited for the lock in vain. Then no caller waits, until the lock
            is free.
        thread_id: id of the thread, None until the thread runs. A finalizer that runs in the thread must not
            wait for it.
        obstacle: the reason why lines cannot be written at present, one of DROP_REASONS; None: no obstacle.
        postponed: lines of threads that could not wait for the lock, without their resource head.
    """

    def __init__(
        self,
        node_dir: Path,
        journal: Journal,
        table: RootTable,
        segment: SegmentFile,
        usage: SpoolUsage,
        *,
        lock: threading.Lock,
        counters_lock: threading.RLock,
        recreate: Callable[[], object],
        append: Callable[[bytes, Identity, int], object],
        observe: Callable[[bytes], object] | None = None,
    ) -> None:
        self.is_idle = self.is_hurried = self.is_closing = self.is_stalled = self.is_lock_stuck = False
        self.thread_id: int | None = None
        self.obstacle: str | None = None
        self.postponed: collections.deque[tuple[bytes, Identity, int]] = collections.deque()
        self._postponed_bytes = 0
        self._node_dir = node_dir
        self._journal = journal
        self._table = table
        self._segment = segment
        self._usage = usage
        self._lock = lock
        self._counters_lock = counters_lock
        self._recreate = recreate
        self._append = append
        self._observe = observe
        # Not an event: its lock is not reentrant, and a finalizer may record a span while its thread is
        # inside a method of the event. `SimpleQueue.put` is reentrant.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="otel-rollout-flush", daemon=True)

    # --- Called by other threads ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the thread's sleep; it then waits ``Waits.flush`` for more lines."""
        self._signals.put(_WAKE)

    def hurry(self) -> None:
        """Make the thread flush now."""
        if not self.is_hurried:
            self.is_hurried = True
            self._signals.put(_HURRY)

    def postpone(self, body: bytes, identity: Identity, spans: int) -> bool:
        """Keep a line until the flusher's thread has the lock; return False if too many bytes wait."""
        if self._postponed_bytes > MAX_POSTPONED:
            return False
        size = len(body)  # no call inside the change: another thread could come between
        self._postponed_bytes += size
        self.postponed.append((body, identity, spans))
        self.wake()
        return True

    def close(self, timeout: float) -> None:
        """End the thread; wait for its end for ``timeout`` seconds."""
        self._signals.put(_HURRY)
        self._thread.join(timeout)

    @property
    def progress(self) -> int:
        """A number that changes whenever a line is appended, flushed or postponed."""
        return self._journal.written + self._journal.flushed + self._postponed_bytes

    @property
    def is_behind(self) -> bool:
        """Whether the journal is so full that callers may soon have to wait."""
        return self._journal.written - self._journal.flushed > self._journal.size // 2

    # --- The thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        try:
            while not self.is_closing:
                self._wait_for_lines()
                self._journal.note_life()
                if not self.is_behind:
                    self._usage.check()
                is_written = not (self._is_removed() and not self._begin_anew()) and self._flush()
                self._append_postponed()
                if not is_written:
                    time.sleep(waits().write_retry)
                elif self._segment.is_full:
                    self._rotate()
        finally:
            self.is_closing = True  # before the close: another file may get the descriptor's number
            self._segment.close()
            self._journal.note_life()
            self._journal.release()

    def _wait_for_lines(self) -> None:
        """Sleep while there are no lines, then ``Waits.flush`` longer unless hurried."""
        self.is_idle = True  # from here on, callers wake this thread; the next line sees earlier lines
        if self._journal.written == self._journal.flushed and not self.postponed and not self.is_closing:
            self._sleep_until_woken()
        self.is_idle = False
        if not self.is_hurried and not self.is_closing:
            deadline = time.monotonic() + waits().flush
            try:
                while self._signals.get(timeout=max(0.0, deadline - time.monotonic())) is not _HURRY:
                    pass
            except queue.Empty:
                pass
        while not self._signals.empty():  # the next flush serves all of them
            self._signals.get()
        self.is_hurried = False

    def _sleep_until_woken(self) -> None:
        while True:
            try:
                self._signals.get(timeout=waits().life)
                return
            except queue.Empty:
                self._journal.note_life()

    def _flush(self) -> bool:
        """Move all lines of the journal to the segment; return False if disk or spool limit prevents that."""
        journal, segment = self._journal, self._segment
        self._grow_table()
        while journal.flushed < journal.written:
            if not self._has_room():
                return False
            try:
                with journal.unflushed(self._chunk_bytes()) as chunk:
                    written = os.write(segment.descriptor, chunk)
                    if self._observe is not None:  # before `flushed` moves: flush() waits for it, too
                        self._observe(bytes(chunk[:written]))
            except OSError as error:
                self._meet_obstacle("disk", error.strerror or str(error))
                return False
            journal.flushed += written
            segment.length += written
            self._usage.used += written
            self.obstacle = None
            self.is_stalled = self.is_stalled and self.is_behind
            self._grow_table()
        self.is_stalled = False
        return True

    def _append_postponed(self) -> None:
        """Append the lines that :meth:`postpone` has kept."""
        if not self.postponed or not self._lock.acquire(timeout=LOCK_WAIT):
            return
        try:
            self.is_lock_stuck = False
            while self.postponed:
                body, identity, spans = self.postponed[0]
                line = self._segment.head + body
                if self._journal.room < len(line):
                    self._flush()
                self._append(line, identity, spans)
                self.postponed.popleft()
                size = len(body)
                self._postponed_bytes -= size
        finally:
            self._lock.release()

    def _grow_table(self) -> None:
        """Grow the root table if few of its slots are free."""
        if self._table.is_short:
            try:
                self._table.grow()
            except OSError as error:
                logger.warning(
                    "otel-rollout: cannot write to %s: %s; further trajectories are not visible "
                    "until they end",
                    self._node_dir,
                    error.strerror or error,
                )

    def _chunk_bytes(self) -> int:
        """Return the bytes of the next write(2)."""
        has_room = self._usage.used + CATCH_UP_CHUNK <= self._usage.limit
        return CATCH_UP_CHUNK if has_room and self.is_behind else FLUSH_CHUNK

    def _has_room(self) -> bool:
        """Return whether the run may use more of this machine's disk."""
        usage = self._usage
        usage.check(rarely=True)
        if usage.used >= usage.limit:
            self._meet_obstacle("spool_limit", f"the run has reached its limit of {usage.limit} bytes here")
        return usage.used < usage.limit

    def _meet_obstacle(self, reason: str, description: str) -> None:
        if self.obstacle is None:
            logger.warning("otel-rollout: cannot write to %s: %s", self._node_dir, description)
        self.obstacle = reason

    # --- New files ------------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Begin the next segment file, between two lines."""
        segment = self._segment
        try:
            prepared = segment.prepare_next()
        except OSError as error:
            self._meet_obstacle("disk", error.strerror or str(error))
            return
        # The lock's holder may be waiting for this thread to make room: try again after the next flush.
        if not self._lock.acquire(False):
            segment.discard(prepared)
            return
        try:
            if not self._flush():
                segment.discard(prepared)
                return
            before = segment.switch_to(prepared)
            self._journal.begin_segment(prepared.name.sequence)
        finally:
            self._lock.release()
        os.close(before)

    def _is_removed(self) -> bool:
        """Return whether our files were removed, for example with a temporary directory."""
        return self._segment.is_removed() or self._journal.is_removed()

    def _begin_anew(self) -> bool:
        """Continue in new files with the journal's lines; False if none can be created."""
        segment = self._segment
        is_directory_gone = not os.path.exists(self._node_dir)
        try:
            self._recreate()
            prepared = segment.prepare_next()
        except OSError as error:
            self._meet_obstacle("disk", error.strerror or str(error))
            return False
        with self._lock, self._counters_lock:
            try:
                self._table.begin_anew()
                self._journal.begin_anew(prepared.name.sequence, forget=is_directory_gone)
            except OSError as error:
                segment.discard(prepared)
                self._meet_obstacle("disk", error.strerror or str(error))
                return False
            before = segment.switch_to(prepared)
        os.close(before)
        logger.warning(
            "otel-rollout: somebody removed files in %s; undelivered spans are lost, recording continues",
            self._node_dir,
        )
        return True


# --- how much of the run's disk limit is used --------------------------------------------------------------


class SpoolUsage:
    """The size of all segments in a node directory, including those of other writers.

    Args:
        node_dir: the directory.
        limit: maximum bytes of all segments together.
    """

    def __init__(self, node_dir: Path, limit: float) -> None:
        self.limit = limit
        self.used = 0
        self._node_dir = node_dir
        self._checked_at = -math.inf
        self._interval, self._rare_interval = waits().spool_check, waits().rare_spool_check

    def check(self, rarely: bool = False) -> None:
        """Measure the segments' total size, at most once per interval."""
        interval = self._rare_interval if rarely else self._interval
        now = time.monotonic()
        if now >= self._checked_at + interval:
            self._checked_at = now
            try:
                self.used = layout.segment_bytes(self._node_dir)
            except OSError:  # the directory is gone; the next flush handles that
                self.used = 0


# --- how long a caller waits for the flusher ---------------------------------------------------------------


MIN_CHECKS: Final = 64
"""Fewest checks of the journal before a caller drops a span, however long they take. A clock cannot tell
whether the flusher waits for the disk or for the GIL. But the caller needs the GIL for each check, and
between two checks the flusher can get it."""
MAX_CHECKS: Final = 2000
"""Maximum checks of one wait, even if others make progress: 1 s without waits for the GIL."""
CHECK_INTERVAL: Final = 0.0005
"""Seconds between two checks of a thread that waits."""


class Patience:
    """Ends a wait after ``Waits.journal_room`` and MIN_CHECKS without progress, or MAX_CHECKS in all."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._progress = -1
        self._checks = 0
        self._all_checks = 0
        self._deadline = 0.0

    def sleep(self) -> bool:
        """Sleep for CHECK_INTERVAL; return False if the caller has waited long enough."""
        progress = self._flusher.progress
        if progress != self._progress:
            self._progress, self._checks = progress, 0
            self._deadline = time.monotonic() + waits().journal_room
        time.sleep(CHECK_INTERVAL)
        self._checks += 1
        self._all_checks += 1
        if self._all_checks >= MAX_CHECKS:
            return False
        return self._checks < MIN_CHECKS or time.monotonic() < self._deadline
