"""Append lines to a ring in a memory-mapped file, where they survive the process.

An append is a copy into shared memory, without a system call. A system call would release the GIL. With one
busy Python thread in the process, the caller would then wait 5 ms, the interpreter's switch interval, for the
GIL. If the process is killed, the kernel keeps the pages. The length is published after the bytes, so a
reader finds only whole lines.

File layout, little-endian::

    0     8   magic
    8     8   index of the valid slot of the two below (0 or 1)
    16    16  slot 0: written (bytes ever appended), recorded (spans)
    32    16  slot 1: written, recorded
    48    8   spans ever started
    56    8   base: value of `written` at which the current segment file began (signed)
    64    8   sequence of the current segment file; 0 until the writer has its first
    72    8×n numbers of skipped trajectories and scores, in the order of SKIP_REASONS
    488   2×8 the numbers of TALLIES; zeros in journals of older versions
    504   8   when the process last noted that it lives, Unix time in ns (signed); 0 in journals of older
              versions
    512   32×112 numbers of recorded spans of other libraries, a row for each instrumentation scope
          (scope_rows.py); zeros in journals of older versions
    4096  128×96 numbers of dropped spans, a row for each step with dropped spans:
              0  1  length of the step's name, plus one; 0 in free rows
              1  1  1 for a validation step, else 0
              2  62 the step's name
              64 8×n numbers of dropped spans, in the order of DROP_REASONS
    16384 …   the ring; byte i of the stream lies at 16384 + i % size

Length and number of spans are written to the slot that is not valid; then one byte makes this slot valid. So
both change together, even if the process is killed. (``struct.pack_into`` clears its target first, so it
cannot be used.) The number of started spans is changed in place, atomically. At any moment, at least as many
spans are started as recorded.

`written` minus `base` minus the segment's length is the number of bytes that the segment of a dead writer
lacks. All these bytes are in the ring, because a writer overwrites only bytes that its segment has.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_rollout.base import semconv
from otel_rollout.otlp.scan import scope_of
from otel_rollout.otlp.score_batch import spans_in
from otel_rollout.spool.private_files import ForeignFileError, open_private, reserved
from otel_rollout.spool.scope_rows import ScopeRows, scopes_in

MAGIC = b"ORJRNL04"
HEADER_BYTES = 16384
OTHER_STEPS = "other steps"
"""Name of the last row, which counts the drops of all steps without a row of their own."""
STEP_ROWS = 96
"""Number of rows for dropped spans, one row per step."""
_ACTIVE, _SLOTS, _STARTED, _BASE, _SEQUENCE, _SKIPS = 8, (16, 32), 48, 56, 64, 72
_TALLIES, _ALIVE, _SCOPES, _ROWS = 488, 504, 512, 4096
_NAME, _ROW_DROPS, _ROW_BYTES = 2, 64, 128
_NAME_BYTES = _ROW_DROPS - _NAME
_published = struct.Struct("<2Q")
_number = struct.Struct("<q")

DROP_REASONS = ("journal_full", "disk", "encoding", "spool_limit", "redaction")
"""Reasons why an ended span was not recorded. In order: the ring stayed full; the segment could not be
written; the span could not be encoded; the run's segments have reached ``OTEL_ROLLOUT_SPOOL_LIMIT``;
redaction failed."""
SKIP_REASONS = (
    "switched_off",
    "sampled_out",
    "application_sampler",
    "caller",
    "spool_full",
    "score_of_unrecorded",
    "score_of_unknown",
)
"""Reasons why a trajectory or a score was skipped, that is, not recorded on purpose.

Of a trajectory, in order: ``trace=False``; ``OTEL_ROLLOUT_SAMPLE_…`` or ``OTEL_TRACES_SAMPLER``; the sampler
of the application's own OpenTelemetry; an unrecorded caller in another process; ``spool_full``, which only
other versions count. Of a score: its trajectory is not recorded; its ``trajectory`` is no id.
"""
TALLIES = ("trajectories", "operations_outside")
"""Numbers of trajectories not inside another one, and of topmost operations outside any trajectory."""
_HEADER = struct.Struct(f"<8sQ5Q2q{len(SKIP_REASONS)}q")
_DROPS = struct.Struct(f"<{len(DROP_REASONS)}q")
_READ_ATTEMPTS = 1000
"""Maximum reads of a header. Reading stops when two reads in a row are equal, so no write fell between
them."""
_NEWLINE = ord("\n")


class Journal:
    """The writing end of a journal; it is not thread-safe, so its owner needs a lock.

    Args:
        path: file to create; must not exist.
        size: bytes of the ring.

    Attributes:
        started: view of the number of spans ever started, in the file; any thread may increase the number.
        tallies: view of the numbers of TALLIES, in their order; likewise.

    Raises:
        OSError: when the file cannot be created, or its space cannot be reserved.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._map = reserved(path, HEADER_BYTES + size)
        self._descriptor = _locked(path)
        for page in range(0, HEADER_BYTES + size, mmap.PAGESIZE):
            self._map[page] = 0  # take the page fault here, not in a caller's span
        self._map[: len(MAGIC)] = MAGIC
        self._active = 0
        self._rows: dict[tuple[str, bool], int] = {}
        self._scopes = ScopeRows(_SCOPES)
        self.size = size
        self.written = 0
        self.flushed = 0
        self.recorded = 0
        self._view_counts()

    @property
    def room(self) -> int:
        """Number of bytes that fit before the owner has to flush."""
        return self.size - (self.written - self.flushed)

    def append(self, head: bytes, body: bytes) -> bool:
        """Append two pieces as one line; return False when there is no room."""
        written, size, ring = self.written, self.size, self._map
        length = len(head) + len(body)
        at = written % size
        if at + length > size:
            return self.append_long((head, body))
        if written + length - self.flushed > size:
            return False
        at += HEADER_BYTES
        middle = at + len(head)
        ring[at:middle] = head
        ring[middle : at + length] = body
        self.publish(written + length, 1)  # after the copy, because this makes the line valid
        return True

    def append_long(self, pieces: Sequence[bytes], spans: int = 1) -> bool:
        """Append a line in any number of pieces, which may wrap around the ring's end."""
        written, size, ring = self.written, self.size, self._map
        if written + sum(map(len, pieces)) - self.flushed > size:
            return False
        for piece in pieces:
            at = written % size
            first = min(len(piece), size - at)
            ring[HEADER_BYTES + at : HEADER_BYTES + at + first] = piece[:first]
            ring[HEADER_BYTES : HEADER_BYTES + len(piece) - first] = piece[first:]
            written += len(piece)
        self.publish(written, spans)
        return True

    def publish(self, written: int, spans: int = 0) -> None:
        """Publish length and number of spans in the file, then to the flusher.

        This order ensures that segments have only counted lines.

        Args:
            written: the new length.
            spans: number of spans in the added lines.
        """
        recorded = self.recorded + spans
        slot = 1 - self._active
        at = _SLOTS[slot]
        # Python runs signal handlers after a call. So a handler raises here at the latest, and a line that is
        # not published is not counted either.
        packed = _published.pack(written, recorded)
        self._map[at : at + 16] = packed
        self._map[_ACTIVE] = self._active = slot
        self.written = written
        self.recorded = recorded

    def unflushed(self, limit: int) -> memoryview:
        """Return the oldest bytes that the segment lacks, at most ``limit``.

        Release the view before the next append.
        """
        at = self.flushed % self.size
        length = min(self.written - self.flushed, self.size - at, limit)
        return memoryview(self._map)[HEADER_BYTES + at : HEADER_BYTES + at + length]

    def begin_segment(self, sequence: int) -> None:
        """Publish that the bytes from here on belong to segment ``sequence``."""
        self.set_base(self.written)
        self._put(_SEQUENCE, sequence)

    def begin_anew(self, sequence: int, forget: bool) -> None:
        """Continue in a new file, with segment ``sequence``, after files were removed.

        The new file appears locked and complete, with the lines that are in no segment yet.

        Args:
            sequence: number of the segment.
            forget: whether to uncount the lines in segments, because the ledger of their delivery is gone,
                too.

        Raises:
            OSError: when the file cannot be created; then nothing has changed.
        """
        hidden = self._path.with_suffix(".new")
        hidden.unlink(missing_ok=True)
        fresh = reserved(hidden, HEADER_BYTES + self.size)
        descriptor = _locked(hidden)
        fresh[:] = self._map[:]
        self._map = fresh
        self._view_counts()
        at = self.flushed % self.size
        ring = fresh[HEADER_BYTES:]
        waiting = (ring[at:] + ring[:at])[: self.written - self.flushed]
        if self.flushed and ring[at - 1] != _NEWLINE:
            rest = waiting.find(b"\n") + 1  # the rest of a line that began in the segment
            self.flushed, waiting = self.flushed + rest, waiting[rest:]
        if forget:
            forgotten = self.recorded - sum(map(spans_in, waiting.splitlines()))
            self.recorded -= forgotten
            self.started[0] -= forgotten
            self._scopes.replace(fresh, _other_scopes_of(waiting))
        self.set_base(self.flushed)
        self._put(_SEQUENCE, sequence)
        self.publish(self.written)
        hidden.replace(self._path)
        self.release()
        self._descriptor = descriptor

    def is_removed(self) -> bool:
        """Return whether somebody has removed or replaced the file."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # permission was taken away; the open file is still writable
            return False

    def release(self) -> None:
        """Free the lock that shows other processes that the writer is alive."""
        os.close(self._descriptor)

    def set_base(self, base: int) -> None:
        """Publish where in the stream the segment begins.

        A negative number means that the segment has bytes which the ring never had.
        """
        self._put(_BASE, base)

    def note_life(self) -> None:
        """Publish that the process lives now."""
        self._put(_ALIVE, time.time_ns())

    # `skip`, `drop` and `count_scope` need no owner's lock, but one thread at a time may call any of them.

    def skip(self, reason: str, total: int) -> None:
        """Publish the number of trajectories or scores that were skipped for ``reason``."""
        self._put(_SKIPS + 8 * SKIP_REASONS.index(reason), total)

    def drop(self, step: str, validate: bool, reason: str, spans: int = 1) -> None:
        """Count spans of a step that were not recorded for ``reason``."""
        at = self._row_of(step, validate) + _ROW_DROPS + 8 * DROP_REASONS.index(reason)
        (number,) = _number.unpack_from(self._map, at)
        self._put(at, number + spans)

    def count_scope(self, scope: str) -> None:
        """Count a recorded span of another library."""
        self._scopes.add(self._map, scope)

    def state(self) -> JournalState:
        """Return the header as a reader of the file finds it."""
        return _state_in(self._map[:HEADER_BYTES])

    def _row_of(self, step: str, validate: bool) -> int:
        """Return the start of a step's row; the last row is for all further steps."""
        known = self._rows.get((step, validate))
        if known is not None:
            return known
        name = step.encode("utf-8", "replace")
        number = len(self._rows)
        if number == STEP_ROWS - 1 or len(name) > _NAME_BYTES:
            number, name, validate = STEP_ROWS - 1, OTHER_STEPS.encode(), False
        else:
            self._rows[step, validate] = _ROWS + number * _ROW_BYTES
        row = _ROWS + number * _ROW_BYTES
        self._map[row + 1] = validate
        self._map[row + _NAME : row + _NAME + len(name)] = name
        self._map[row] = len(name) + 1  # last, because this makes the row valid
        return row

    def _view_counts(self) -> None:
        view = memoryview(self._map)
        self.started = view[_STARTED : _STARTED + 8].cast("Q")
        self.tallies = view[_TALLIES : _TALLIES + 8 * len(TALLIES)].cast("Q")

    def _put(self, at: int, value: int) -> None:
        self._map[at : at + 8] = _number.pack(value)


def _locked(path: Path) -> int:
    """Lock a file; return the descriptor, which holds the lock as long as it is open."""
    descriptor = open_private(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@dataclass(frozen=True)
class JournalState:
    """A journal's header, read while its writer is alive or after its death."""

    written: int
    recorded: int
    started: int
    base: int
    sequence: int
    drops_of_steps: dict[tuple[str, bool], dict[str, int]]
    """(Step, whether it is a validation) → reason → number of dropped spans."""
    skips: dict[str, int]
    tallies: dict[str, int]
    other_scopes: Mapping[str, int]
    """Instrumentation scope of another library → its recorded spans."""
    alive_ns: int
    """When the process last showed that it lives, Unix time in ns; 0 if it is not known."""

    @property
    def drops(self) -> dict[str, int]:
        """Dropped spans of all steps, by reason."""
        total = Counter(dict.fromkeys(DROP_REASONS, 0))
        for drops in self.drops_of_steps.values():
            total.update(drops)
        return dict(total)


def read_state(path: Path) -> JournalState | None:
    """Read a journal's header; None without a complete journal of this user."""
    try:
        opened = open(path, "rb", buffering=0, opener=open_private)  # noqa: SIM115
    except (FileNotFoundError, ForeignFileError):
        return None
    with opened as file:
        header = file.read(HEADER_BYTES)
        for _ in range(_READ_ATTEMPTS):
            file.seek(0)
            before, header = header, file.read(HEADER_BYTES)
            if header == before:
                break
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return None
    return _state_in(header)


def _state_in(header: bytes) -> JournalState:
    _, active, *rest = _HEADER.unpack_from(header)
    written, recorded = rest[2:4] if active else rest[:2]
    started, base, sequence, *skips = rest[4:]
    return JournalState(
        *(written, recorded, started, base, sequence, _drops_in(header)),
        skips=dict(zip(SKIP_REASONS, skips, strict=True)),
        tallies=dict(zip(TALLIES, _published.unpack_from(header, _TALLIES), strict=True)),
        other_scopes=scopes_in(header, _SCOPES),
        alive_ns=_number.unpack_from(header, _ALIVE)[0],
    )


def _drops_in(header: bytes) -> dict[tuple[str, bool], dict[str, int]]:
    drops_of_steps = {}
    for row in range(_ROWS, HEADER_BYTES, _ROW_BYTES):
        end = row + _NAME + header[row] - 1
        if row + _NAME <= end <= row + _ROW_DROPS:
            key = header[row + _NAME : end].decode("utf-8", "replace"), bool(header[row + 1])
            drops = _DROPS.unpack_from(header, row + _ROW_DROPS)
            drops_of_steps[key] = dict(zip(DROP_REASONS, drops, strict=True))
    return drops_of_steps


def _other_scopes_of(lines: bytes) -> Counter[str]:
    """Count the lines of other libraries by instrumentation scope."""
    counts = Counter(map(scope_of, lines.splitlines()))
    del counts[semconv.SCOPE]
    return counts


def owed_bytes(path: Path, state: JournalState, segment_bytes: int) -> bytes:
    """Return the bytes that a dead writer's segment, now of ``segment_bytes``, lacks."""
    missing = state.written - state.base - segment_bytes
    size = path.stat().st_size - HEADER_BYTES
    if not 0 < missing <= size:
        return b""
    with open(path, "rb", opener=open_private) as file:
        ring = memoryview(file.read())[HEADER_BYTES:]
    at = (state.written - missing) % size
    first = min(missing, size - at)
    return bytes(ring[at : at + first]) + bytes(ring[: missing - first])
