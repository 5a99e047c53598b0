"""The segment writer: spans become lines in a journal, a thread moves them to a segment file.

``write`` is what runs inside user code. It copies and returns; it never makes a system call, never raises,
and waits only when the journal is full, for a bounded time, once per stall.
"""

from __future__ import annotations

import collections
import fcntl
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.interrupts import pass_on
from otel_rollout.otlp import writer
from otel_rollout.recording.identity import NO_IDENTITY, Identity
from otel_rollout.recording.redaction import Redaction, redacted_attributes
from otel_rollout.recording.sampling import Group, place_of_group
from otel_rollout.spool import layout
from otel_rollout.spool.journal import DROP_REASONS, SKIP_REASONS, Journal
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.root_table import MAX_LINE, OpenTrajectories

JOURNAL_BYTES = 4 << 20
FLUSH_INTERVAL = 0.02
"""Seconds a line may lie in the journal alone. It is safe there; others just do not see it yet."""
FLUSH_CHUNK = 256 << 10
"""Bytes per write(2): small enough that a caller waiting for room is served soon."""
CATCH_UP_CHUNK = 1 << 20
"""Bytes per write(2) while the journal is more than half full. Each write(2) costs a wait for the GIL."""
MAX_WAIT = 0.2
"""Seconds without any progress that a caller waits for room in a full journal before its span is dropped and
counted: longer than one write(2) takes on a disk that is busy but works."""
MIN_TURNS = 64
"""Looks at the journal before a caller drops a span, however long they take. A clock does not tell a thread
that waits for the GIL from one that waits for the disk. But the caller needs the GIL for each look, and the
other thread has its chance between two of them."""
MAX_TURNS = 2000
"""Looks after which a caller gives up although others move on: a second, where nobody waits for the GIL."""
RETRY_INTERVAL = 0.5
"""Seconds between attempts to write a segment that failed (disk full, say)."""

_WAIT_STEP = 0.0005
_LENGTHS = (None, 4096, 256, 32)
"""Characters that the texts of a running trajectory's line are cut to, in turn, until it fits."""
_SHORT_NAME = 256
"""Characters of the service's name in a line that had to be cut."""
_MAX_POSTPONED = 1024
"""Lines that wait for the flusher in memory, because their thread was in the middle of another line."""
_LOOK_INTERVAL, _LOOK_INTERVAL_BEHIND = 1.0, 10.0
"""Seconds between looks at how much the run has on this machine."""
_SOME_LEFT_OUT, _ALL_LEFT_OUT = 0.5, 0.75
"""Shares of the spool's limit from which on trajectories are left out, where whole ones are to be: first some
groups, then all. The last quarter is for trajectories that have begun."""
_WAKE, _HURRY = False, True
_TOLD = {
    "application_sampler": "the sampler of the application's own OpenTelemetry leaves out a trajectory, "
    "which reaches no exporter",
    "spool_full": "the run has nearly as much on this machine as it may; a trajectory is left out so that "
    "others stay whole (OTEL_ROLLOUT_SPOOL_LIMIT, OTEL_ROLLOUT_SPOOL_FULL)",
}
"""What is said when trajectories begin to be left out for a reason that nobody has asked for."""

_logger = logging.getLogger("otel_rollout")


class Counts(NamedTuple):
    """Spans started and recorded; spans dropped and trajectories left out, by reason."""

    started: int
    recorded: int
    drops: dict[str, int]
    skips: dict[str, int]


class SegmentWriter:
    """Writes the spans of one process into one node directory.

    Args:
        node_dir: existing directory, see :mod:`otel_rollout.spool`.
        resource: attributes of the entity that records, the same on every line.
        segment_bytes: size at which a new segment file is begun.
        spool_limit: bytes that the segments of all writers in ``node_dir`` may have together.
        whole_trajectories: whether trajectories are left out on the way there, so that others stay whole.
        found: makes ``node_dir`` again, should somebody remove it.
        redact: what lines go through before they are written anywhere.
        journal_bytes: size of the ring between the caller and the disk.

    Raises:
        OSError: when the files cannot be created.
    """

    def __init__(
        self,
        node_dir: Path,
        resource: Mapping[str, writer.AttributeInput],
        *,
        segment_bytes: int,
        spool_limit: float = math.inf,
        whole_trajectories: bool = False,
        found: Callable[[], object] = lambda: None,
        redact: Redaction | None = None,
        journal_bytes: int = JOURNAL_BYTES,
    ) -> None:
        self.id = layout.new_writer_id()
        self._node_dir = node_dir
        self._resource = redacted_attributes(redact, resource)
        self._high_water = journal_bytes // 2
        self._segment_bytes = segment_bytes
        self._spool_limit = spool_limit
        self._whole_trajectories = whole_trajectories
        self._used = 0
        self._found = found
        self._redact = redact
        self._looked = -math.inf
        self._lock = threading.Lock()
        # Signals to the flusher. Not events: a finalizer may record while its thread is inside one, whose
        # lock is not reentrant; a SimpleQueue's put is.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._hurried = False
        self._postponed: collections.deque[tuple[bytes | tuple[bytes, ...], Identity]] = collections.deque()
        self._closing = False
        self._abandoned = False
        self._idle = False
        self._stalled = False
        self._obstacle: str | None = None
        self._drops = dict.fromkeys(DROP_REASONS, 0)
        self._skips = dict.fromkeys(SKIP_REASONS, 0)
        self._count_lock = threading.RLock()  # a signal handler may count while its thread does
        self._sequence = 0
        self._length = 0
        self._descriptor = -1
        journal_file = node_dir / (self.id + layout.JOURNAL_SUFFIX)
        open_file = node_dir / (self.id + layout.OPEN_SUFFIX)
        first = self._prepare_segment()  # whoever finds a journal finds that its segment is locked
        try:
            self._journal = Journal(journal_file, journal_bytes)
            self._open = OpenTrajectories(open_file)
        except OSError:
            self._discard(*first)
            journal_file.unlink(missing_ok=True)
            open_file.unlink(missing_ok=True)
            raise
        self._look_at_spool(0.0)
        self._begin_segment(*first)
        self._flusher = threading.Thread(target=self._flush_forever, name="otel-rollout-flush", daemon=True)
        self._flusher.start()

    # --- inside user code ---------------------------------------------------------------------------------

    def started(self) -> None:
        """Count a span that was started."""
        self._journal.started[0] += 1

    def write(self, body: bytes | tuple[bytes, ...], identity: Identity = NO_IDENTITY) -> bool:
        """Record one line given without its resource head.

        Args:
            body: the line; a long one in pieces.
            identity: of the trajectory it belongs to, by whose step it is counted if it cannot be recorded.

        Returns:
            Whether it was recorded. If not, it was counted as dropped, unless the writer is closed.
        """
        if self._redact is not None:
            try:
                body = self._redact(_whole(body))
            except Exception as error:  # noqa: BLE001 - the application's; what it did not see stays unwritten
                self.drop("redaction", identity)
                pass_on(error)
                return False
        lock = self._lock
        # Looked at first, because `with` waits as long as it takes, and whoever has the lock may be stuck in
        # the disk; or be this very thread, in the middle of whose write a signal handler records. And `with`,
        # because what such a handler raises may strike between an `acquire` and the `try` after it.
        if lock.locked():
            if _is_inside_write():
                return self._postpone(body, identity)
            if self._stalled or not self._is_free_soon():
                self._stalled = True
                return self.drop("journal_full", identity)
        with lock:
            if self._closing:  # ended after shutdown(): it stays among the unfinished
                return False
            journal, head = self._journal, self._head
            appended = (
                journal.append(head, body) if type(body) is bytes else journal.append_long((head, *body))
            )
            if not appended and not self._append_when_possible(head + _whole(body), identity):
                return False
            if self._idle:
                self._idle = False
                self._signals.put(_WAKE)
            elif not self._hurried and journal.written - journal.flushed > self._high_water:
                self._hurry()
            return True

    def _postpone(self, body: bytes | tuple[bytes, ...], identity: Identity) -> bool:
        """Leave a line to the flusher: this thread is writing another one, and cannot wait for itself."""
        if len(self._postponed) >= _MAX_POSTPONED:
            return self.drop("journal_full", identity)
        self._postponed.append((body, identity))
        self._signals.put(_WAKE)
        return True

    def _is_free_soon(self) -> bool:
        """Whether the thread that writes is done before the caller's patience ends."""
        patience = _Patience(self._journal)
        while self._lock.locked():
            if not patience.sleep():
                return False
        return True

    def has_room_for(self, identity: Identity) -> bool:
        """Whether a trajectory may begin: not where its group is one of those that make room for others.

        The fuller the spool, the more groups; and every process that looks at it leaves out the same.
        """
        fullness = self._used / self._spool_limit
        if not self._whole_trajectories or fullness < _SOME_LEFT_OUT:
            return True
        if time.monotonic() >= self._looked + _LOOK_INTERVAL:
            self._signals.put(_WAKE)  # with nothing recorded nobody else would look again
        left_out = (fullness - _SOME_LEFT_OUT) / (_ALL_LEFT_OUT - _SOME_LEFT_OUT)
        return place_of_group(Group.of(identity.attributes)) >= left_out

    def trajectory_began(self, body_of: Callable[[int | None], bytes]) -> int | None:
        """Note a trajectory that is running, by the line that is to be recorded should this process die.

        Args:
            body_of: gives that line without its resource head: whole for None; else with nothing but what the
                trajectory is known by, in texts of at most so many characters. The first that fits is noted.

        Returns:
            What to give to :meth:`trajectory_ended`; None when it could not be noted.
        """
        head = self._head
        for longest in _LENGTHS:
            body = body_of(longest)
            if self._redact is not None:
                try:
                    body = self._redact(body)
                except Exception as error:  # noqa: BLE001
                    pass_on(error)
                    return None
            if self._abandoned:
                return None
            if len(head) + len(body) <= MAX_LINE:
                slot = self._open.enter(head + body)
                return self._enter_when_possible(head + body) if slot is None else slot
            head = self._short_head
        return None

    def _enter_when_possible(self, line: bytes) -> int | None:
        """Note a running trajectory for which the table had no room: the flusher makes some."""
        patience = _Patience(self._journal)
        while self._open.is_short and not self._stalled and not self._closing:
            self._signals.put(_HURRY)
            if not patience.sleep():
                return None
            slot = self._open.enter(line)
            if slot is not None:
                return slot
        return self._open.enter(line)

    def trajectory_ended(self, slot: int) -> None:
        """Note that a trajectory no longer runs, by the slot that :meth:`trajectory_began` gave.

        After :meth:`close` its own line has not been written: it stays for the forwarder to end as an error.
        """
        if not self._closing:
            self._open.leave(slot)

    def drop(self, reason: str, identity: Identity) -> bool:
        """Count a span that was not recorded. Returns False, for ``return drop(...)``."""
        if self._abandoned:
            return False
        with self._count_lock:
            total = self._drops[reason] = self._drops[reason] + 1
            self._journal.drop(*identity.step, reason)
        if total == 1:
            _logger.warning("otel-rollout: a span was not recorded (%s); further ones are counted", reason)
        return False

    def skip(self, reason: str) -> None:
        """Count a trajectory that is left out on purpose."""
        if self._abandoned:
            return
        with self._count_lock:
            total = self._skips[reason] = self._skips[reason] + 1
            self._journal.skip(reason, total)
        if total == 1 and reason in _TOLD:
            _logger.warning("otel-rollout: %s; further ones are counted", _TOLD[reason])

    def _append_when_possible(self, line: bytes, identity: Identity) -> bool:
        """Append a line for which the journal had no room; False when it had to be dropped."""
        journal = self._journal
        self._wait_for_room(min(len(line), journal.size))
        if len(line) > journal.size:
            return self._write_past_journal(line, identity)
        return journal.append_long((line,)) or self.drop(self._obstacle or "journal_full", identity)

    def _wait_for_room(self, size: int) -> None:
        """Wait for the flusher to free ``size`` bytes: not for long, and not at all while it is stuck."""
        patience = _Patience(self._journal)
        while not self._stalled and self._journal.room < size:
            self._hurry()
            self._stalled = not patience.sleep() and self._journal.room < size

    def _hurry(self) -> None:
        """Have the flusher work now."""
        if not self._hurried:
            self._hurried = True
            self._signals.put(_HURRY)

    def _write_past_journal(self, line: bytes, identity: Identity) -> bool:
        """Write a line larger than the journal straight to the segment, the journal being empty."""
        if self._journal.room < self._journal.size:
            return self.drop("journal_full", identity)
        journal, length, recorded, written = self._journal, self._length, self._journal.recorded, 0
        try:
            while written < len(line):
                written += os.write(self._descriptor, memoryview(line)[written:])
            self._length = length + written
            journal.set_base(journal.written - self._length)
            journal.publish(journal.written, 1)
        except BaseException as error:  # a full disk, or what a signal handler raises
            if journal.recorded == recorded:  # not published: as if it had never been written
                os.ftruncate(self._descriptor, length)  # freeing space does not fail for lack of it
                self._length = length
                journal.set_base(journal.written - length)
            pass_on(error)
            if not isinstance(error, OSError):
                raise
            return self.drop("disk", identity)
        return True

    # --- the flusher thread -------------------------------------------------------------------------------

    def _flush_forever(self) -> None:
        try:
            while not self._closing:
                self._wait_for_lines()
                if not self._is_behind():
                    self._look_at_spool(_LOOK_INTERVAL)
                if (self._is_removed() and not self._begin_anew()) or not self._flush():
                    time.sleep(RETRY_INTERVAL)
                    continue
                if self._length >= self._segment_bytes:
                    self._rotate()
                while self._postponed:
                    self.write(*self._postponed.popleft())
        finally:
            self._closing = True  # whatever ended this thread, nobody may use the number again
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            self._journal.release()

    def _wait_for_lines(self) -> None:
        """Sleep while there is nothing to do, then a little more for lines to gather unless in a hurry."""
        self._idle = True  # from now on a caller wakes us; what came before, we see here
        if self._journal.written == self._journal.flushed and not self._postponed and not self._closing:
            self._signals.get()
        self._idle = False
        if not self._hurried and not self._closing:
            deadline = time.monotonic() + FLUSH_INTERVAL
            try:
                while self._signals.get(timeout=max(0.0, deadline - time.monotonic())) is not _HURRY:
                    pass
            except queue.Empty:
                pass
        while not self._signals.empty():  # what they ask for is about to be done
            self._signals.get()
        self._hurried = False

    def _flush(self) -> bool:
        """Move everything the journal holds to the segment. False when the disk refused."""
        journal = self._journal
        self._grow_table()
        while journal.flushed < journal.written:
            if not self._has_room():
                return False
            try:
                with journal.unflushed(self._chunk_bytes()) as chunk:
                    written = os.write(self._descriptor, chunk)
            except OSError as error:
                self._meet_obstacle("disk", error.strerror or str(error))
                return False
            journal.flushed += written
            self._length += written
            self._used += written
            self._obstacle = None
            self._stalled = self._stalled and self._is_behind()
            self._grow_table()
        self._stalled = False
        return True

    def _grow_table(self) -> None:
        """Make room for trajectories that run, before somebody has to wait for it."""
        if self._open.is_short:
            try:
                self._open.grow()
            except OSError as error:
                _logger.warning(
                    "otel-rollout: cannot write to %s: %s; further trajectories are not seen while they run",
                    self._node_dir,
                    error.strerror or error,
                )

    def _chunk_bytes(self) -> int:
        """Bytes of the next write(2)."""
        has_room = self._used + CATCH_UP_CHUNK <= self._spool_limit
        return CATCH_UP_CHUNK if has_room and self._is_behind() else FLUSH_CHUNK

    def _is_behind(self) -> bool:
        """Whether the journal is so full that callers may soon have to wait."""
        return self._journal.written - self._journal.flushed > self._high_water

    def _look_at_spool(self, interval: float) -> None:
        """See how much the run has on this machine, others' segments too, once in ``interval`` seconds.

        One wait for the GIL for each file: while the flusher is behind it looks less often.
        """
        now = time.monotonic()
        if now >= self._looked + interval:
            self._looked = now
            try:
                self._used = layout.segment_bytes(self._node_dir)
            except OSError:  # the directory is gone; writing will tell
                self._used = 0

    def _has_room(self) -> bool:
        """Whether the run may have more on this machine."""
        self._look_at_spool(_LOOK_INTERVAL_BEHIND)
        if self._used >= self._spool_limit:
            self._meet_obstacle("spool_limit", f"the run has {self._spool_limit} bytes here, all it may")
        return self._used < self._spool_limit

    def _is_removed(self) -> bool:
        """Whether somebody has removed our files: clearing up the temporary directory, say."""
        return os.fstat(self._descriptor).st_nlink == 0 or self._journal.is_removed()

    def _begin_anew(self) -> bool:
        """Go on in new files, with what the journal still holds. False when they cannot be made."""
        is_gone = not os.path.exists(self._node_dir)
        try:
            self._found()
            prepared = self._prepare_segment()
        except OSError as error:
            self._meet_obstacle("disk", error.strerror or str(error))
            return False
        with self._lock, self._count_lock:
            try:
                self._open.begin_anew()
                self._journal.begin_anew(prepared[0].sequence, forget=is_gone)
            except OSError as error:
                self._discard(*prepared)
                self._meet_obstacle("disk", error.strerror or str(error))
                return False
            old = self._descriptor
            self._take(*prepared)
        os.close(old)
        _logger.warning(
            "otel-rollout: somebody removed files in %s; what was not delivered is lost, recording goes on",
            self._node_dir,
        )
        return True

    def _meet_obstacle(self, reason: str, described: str) -> None:
        if self._obstacle is None:
            _logger.warning("otel-rollout: cannot write to %s: %s", self._node_dir, described)
        self._obstacle = reason

    def _rotate(self) -> None:
        """Begin the next segment file, between two lines."""
        try:
            prepared = self._prepare_segment()
        except OSError as error:
            self._meet_obstacle("disk", error.strerror or str(error))
            return
        if not self._lock.acquire(False):  # a caller is writing, perhaps waiting for us; there is a next time
            self._discard(*prepared)
            return
        try:
            if not self._flush():
                self._discard(*prepared)
                return
            old = self._descriptor
            self._begin_segment(*prepared)
        finally:
            self._lock.release()
        os.close(old)

    def _prepare_segment(self) -> tuple[layout.SegmentName, int]:
        """Create the next segment file, not yet under its name."""
        name = layout.SegmentName(self.id, self._sequence + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        descriptor = open_private(self._fresh(name), flags)
        try:
            # Locked before it has its name: a visible segment without a lock has no living writer.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self._fresh(name), self._node_dir / name.file)
        except OSError:
            self._discard(name, descriptor)
            raise
        return name, descriptor

    def _fresh(self, name: layout.SegmentName) -> Path:
        return self._node_dir / (name.stem + ".new")

    def _discard(self, name: layout.SegmentName, descriptor: int) -> None:
        for path in (self._fresh(name), self._node_dir / name.file):
            path.unlink(missing_ok=True)
        os.close(descriptor)

    def _begin_segment(self, name: layout.SegmentName, descriptor: int) -> None:
        self._take(name, descriptor)
        self._journal.begin_segment(name.sequence)

    def _take(self, name: layout.SegmentName, descriptor: int) -> None:
        self._head = writer.resource_head({semconv.SEGMENT_ID: name.stem, **self._resource})
        self._short_head = writer.resource_head(
            {
                semconv.SEGMENT_ID: name.stem,
                semconv.SERVICE_NAME: str(self._resource.get(semconv.SERVICE_NAME, ""))[:_SHORT_NAME],
            }
        )
        self._descriptor, self._sequence, self._length = descriptor, name.sequence, 0

    def counts(self) -> Counts:
        """What this writer has done so far."""
        return Counts(self._journal.started[0], self._journal.recorded, dict(self._drops), dict(self._skips))

    # --- ends ---------------------------------------------------------------------------------------------

    def flush(self, timeout: float) -> bool:
        """Wait until everything written so far is in the segment file, at most ``timeout`` seconds."""
        target = self._journal.written
        deadline = time.monotonic() + timeout
        while self._postponed or self._journal.flushed < target:
            if time.monotonic() > deadline:
                return False
            self._hurry()
            time.sleep(_WAIT_STEP)
        return True

    def close(self, timeout: float) -> None:
        """Flush and have the flusher give up the segment's lock; what it cannot flush stays in the journal.

        At most ``timeout`` seconds; a flusher that is stuck in the disk goes on by itself.
        """
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        locked = self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._closing = True
        if locked:
            self._lock.release()
        self._signals.put(_HURRY)
        self._flusher.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In a forked child: let go of the parent's files, which are the parent's alone.

        Their locks are held as long as any process has the descriptors open, so the child closes its copies.
        Journal and table are shared memory: spans inherited from the parent, when they end here, must not
        write there. The parent ends them itself.
        """
        self._abandoned = self._closing = True
        self._journal.started = memoryview(bytearray(8)).cast("Q")
        self._lock = threading.Lock()  # some thread of the parent may have held it
        self._count_lock = threading.RLock()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._journal.release()


class _Patience:
    """How long a caller waits: until nothing moved for MAX_WAIT and MIN_TURNS looks, or for MAX_TURNS."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._moved = -1
        self._turns = 0
        self._all_turns = 0
        self._deadline = 0.0

    def sleep(self) -> bool:
        """Sleep a moment. False when the caller has waited long enough."""
        moved = self._journal.written + self._journal.flushed
        if moved != self._moved:
            self._moved, self._turns, self._deadline = moved, 0, time.monotonic() + MAX_WAIT
        time.sleep(_WAIT_STEP)
        self._turns += 1
        self._all_turns += 1
        if self._all_turns >= MAX_TURNS:
            return False
        return self._turns < MIN_TURNS or time.monotonic() < self._deadline


_HOLDERS = frozenset(
    method.__code__ for method in (SegmentWriter.write, SegmentWriter._rotate, SegmentWriter._begin_anew)
)
"""What takes the writer's lock."""


def _is_inside_write() -> bool:
    """Whether the caller of ``write`` has interrupted a write of its own thread, as signal handlers do."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _HOLDERS:
            return True
        frame = frame.f_back
    return False


def _whole(body: bytes | tuple[bytes, ...]) -> bytes:
    return body if isinstance(body, bytes) else b"".join(body)
