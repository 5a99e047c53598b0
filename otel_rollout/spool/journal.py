"""A ring of bytes in a memory-mapped file: what is appended survives the death of the process.

Appending is a copy into shared memory, without a system call: a system call would release the GIL, and
with one busy Python thread in the process the caller would wait for the interpreter's switch interval, 5 ms,
to get it back. The kernel keeps the pages when the process is killed at any point, and the length
is published after the bytes, so a reader finds whole appends only.

File layout, little-endian::

    0     8   magic
    8     8   which of the two places below holds (0 or 1)
    16    16  place 0: written (bytes ever appended), recorded (lines)
    32    16  place 1: the same
    48    8   spans ever started
    56    8   base: value of `written` at which the current segment file began (signed)
    64    8   sequence of the current segment file; 0 while the writer is being born
    72    8×n what was left out, in the order of SKIP_REASONS
    4096  128×96 dropped spans, a row for each step of which some were:
              0  1  length of the step's name, plus one; 0 in rows that are free
              1  1  whether it is a step of validation
              2  62 the step's name
              64 8×n dropped spans, in the order of DROP_REASONS
    16384 …   the ring; byte i of the stream lies at 16384 + i % size

Length and number of lines are written to the place that does not hold, then one byte says that it does: a
kill never parts them. (``struct.pack_into`` would not do: it clears its target first.) Spans are counted as
started where the count lies, at once: what is recorded was started before, whenever one looks.

`written` minus `base` minus the segment's length is what a dead writer still owes its segment. It is all
in the ring, because a writer overwrites nothing its segment does not have.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_rollout.spool.private_files import ForeignFileError, open_private, standard_streams_taken

MAGIC = b"ORJRNL04"
HEADER_BYTES = 16384
OTHER_STEPS = "other steps"
"""Where drops are counted whose step has no row: the last of ``STEP_ROWS`` is for all of those."""
STEP_ROWS = 96
_ACTIVE, _PLACES, _STARTED, _BASE, _SEQUENCE, _SKIPS, _ROWS = 8, (16, 32), 48, 56, 64, 72, 4096
_NAME, _ROW_DROPS, _ROW_BYTES = 2, 64, 128
_NAME_BYTES = _ROW_DROPS - _NAME
_published = struct.Struct("<2Q")
_number = struct.Struct("<q")

DROP_REASONS = ("journal_full", "disk", "encoding", "spool_limit", "redaction")
"""Why a span that ended was not recorded: the ring was full and stayed full; the segment could not be
written; the span could not be encoded; the run has as much on this machine as it may; what was to make
secrets unreadable failed."""
SKIP_REASONS = (
    "switched_off",
    "sampled_out",
    "application_sampler",
    "caller",
    "spool_full",
    "score_of_unrecorded",
    "score_of_unknown",
)
"""Why a trajectory was left out on purpose: by ``trace=False``; by ``OTEL_ROLLOUT_SAMPLE_…`` or
``OTEL_TRACES_SAMPLER``; by the sampler of the application's own OpenTelemetry; because its caller, in another
process, is not recorded; because the run has nearly as much on this machine as it may
(``OTEL_ROLLOUT_SPOOL_FULL``). Why a score was left out: its trajectory is; what was given is no trajectory's
id."""
_HEADER = struct.Struct(f"<8sQ5Q2q{len(SKIP_REASONS)}q")
_DROPS = struct.Struct(f"<{len(DROP_REASONS)}q")
_READ_ATTEMPTS = 1000
_NEWLINE = ord("\n")


class Journal:
    """The writing end. Not thread-safe: the owner serialises calls.

    Args:
        path: file to create; must not exist.
        size: bytes of the ring.

    Attributes:
        started: one number, the spans ever started, in the file itself; any thread may add to it.

    Raises:
        OSError: when the file cannot be created or its space not be reserved.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._map = reserved(path, HEADER_BYTES + size)
        self._descriptor = _locked(path)
        for page in range(0, HEADER_BYTES + size, mmap.PAGESIZE):
            self._map[page] = 0  # fault the pages in here rather than in somebody's span
        self._map[: len(MAGIC)] = MAGIC
        self._active = 0
        self._rows: dict[tuple[str, bool], int] = {}
        self.size = size
        self.written = 0
        self.flushed = 0
        self.recorded = 0
        self.started = self._view_of_started()

    @property
    def room(self) -> int:
        """Bytes that fit before the owner has to flush."""
        return self.size - (self.written - self.flushed)

    def append(self, head: bytes, body: bytes) -> bool:
        """Append two pieces as one line; False when there is no room."""
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
        self.publish(written + length, 1)  # after the copy: this is what makes the line exist
        return True

    def append_long(self, pieces: Sequence[bytes]) -> bool:
        """The same of a line in any number of pieces, which may go past the ring's end."""
        written, size, ring = self.written, self.size, self._map
        if written + sum(map(len, pieces)) - self.flushed > size:
            return False
        for piece in pieces:
            at = written % size
            first = min(len(piece), size - at)
            ring[HEADER_BYTES + at : HEADER_BYTES + at + first] = piece[:first]
            ring[HEADER_BYTES : HEADER_BYTES + len(piece) - first] = piece[first:]
            written += len(piece)
        self.publish(written, 1)
        return True

    def publish(self, written: int, lines: int = 0) -> None:
        """Make length and number of lines visible outside, then to the flusher: segments have what counts.

        Args:
            written: the new length.
            lines: how many lines it has more than before.
        """
        recorded = self.recorded + lines
        place = 1 - self._active
        at = _PLACES[place]
        # Python runs signal handlers after a call, so what one raises strikes no later than here: a line that
        # is not published is not counted either.
        packed = _published.pack(written, recorded)
        self._map[at : at + 16] = packed
        self._map[_ACTIVE] = self._active = place
        self.written = written
        self.recorded = recorded

    def unflushed(self, limit: int) -> memoryview:
        """The oldest bytes the segment lacks, at most ``limit``; to be released before the next append."""
        at = self.flushed % self.size
        length = min(self.written - self.flushed, self.size - at, limit)
        return memoryview(self._map)[HEADER_BYTES + at : HEADER_BYTES + at + length]

    def begin_segment(self, sequence: int) -> None:
        """Note that the bytes from here on belong to segment ``sequence``."""
        self.set_base(self.written)
        self._put(_SEQUENCE, sequence)

    def begin_anew(self, sequence: int, forget: bool) -> None:
        """Go on in a new file, with segment ``sequence``, after the segment was removed.

        It has what no segment had yet, from the beginning of a line. It appears at once, locked.

        Args:
            sequence: number of the segment.
            forget: count no more what segments had: the account of what became of it was removed as well.

        Raises:
            OSError: when the file cannot be created; then nothing has changed.
        """
        hidden = self._path.with_suffix(".new")
        hidden.unlink(missing_ok=True)
        fresh = reserved(hidden, HEADER_BYTES + self.size)
        descriptor = _locked(hidden)
        fresh[:] = self._map[:]
        self._map = fresh
        self.started = self._view_of_started()
        at = self.flushed % self.size
        ring = fresh[HEADER_BYTES:]
        waiting = (ring[at:] + ring[:at])[: self.written - self.flushed]
        if self.flushed and ring[at - 1] != _NEWLINE:
            half = waiting.find(b"\n") + 1
            self.flushed, waiting = self.flushed + half, waiting[half:]
        if forget:
            gone = self.recorded - waiting.count(b"\n")
            self.recorded -= gone
            self.started[0] -= gone
        self.set_base(self.flushed)
        self._put(_SEQUENCE, sequence)
        self.publish(self.written)
        hidden.replace(self._path)
        self.release()
        self._descriptor = descriptor

    def is_removed(self) -> bool:
        """Whether somebody has removed our file, or replaced it."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # the permission to look was taken away; what is open can still be written to
            return False

    def release(self) -> None:
        """Let go of the lock by which others see that the writer lives."""
        os.close(self._descriptor)

    def set_base(self, base: int) -> None:
        """Note at which byte of the stream the current segment file began.

        Negative when the segment holds more than ever went through the ring.
        """
        self._put(_BASE, base)

    # These two may be called in any thread, without the owner's serialising, but not both at once.

    def skip(self, reason: str, total: int) -> None:
        """Publish how many trajectories were left out for ``reason``."""
        self._put(_SKIPS + 8 * SKIP_REASONS.index(reason), total)

    def drop(self, step: str, validate: bool, reason: str) -> None:
        """Count a span of a step that was not recorded for ``reason``."""
        at = self._row_of(step, validate) + _ROW_DROPS + 8 * DROP_REASONS.index(reason)
        (number,) = _number.unpack_from(self._map, at)
        self._put(at, number + 1)

    def _row_of(self, step: str, validate: bool) -> int:
        """Where the row of a step begins. There are few: a process may go on for a million steps."""
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
        self._map[row] = len(name) + 1  # last: from here on the row exists
        return row

    def _view_of_started(self) -> memoryview:
        return memoryview(self._map)[_STARTED : _STARTED + 8].cast("Q")

    def _put(self, at: int, value: int) -> None:
        self._map[at : at + 8] = _number.pack(value)


def reserved(path: Path, size: int) -> mmap.mmap:
    """A new file of so many bytes, mapped.

    Raises:
        OSError: when it exists, or its space cannot be reserved.
    """
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        # Reserved now: a page that cannot be backed later would be SIGBUS in the training process.
        os.posix_fallocate(descriptor, 0, size)
        with standard_streams_taken():  # the map keeps a duplicate of the descriptor
            return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    """A descriptor that holds the file's lock, for as long as it is open in this process."""
    descriptor = open_private(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@dataclass(frozen=True)
class JournalState:
    """What a journal says, read from outside while its writer lives or after its death."""

    written: int
    recorded: int
    started: int
    base: int
    sequence: int
    drops_of_steps: dict[tuple[str, bool], dict[str, int]]
    """Step, and whether it is one of validation → dropped spans by reason."""
    skips: dict[str, int]

    @property
    def drops(self) -> dict[str, int]:
        """Dropped spans of all steps, by reason."""
        total = Counter(dict.fromkeys(DROP_REASONS, 0))
        for drops in self.drops_of_steps.values():
            total.update(drops)
        return dict(total)


def read_state(path: Path) -> JournalState | None:
    """Read a journal's header; None when there is no file of this user's, or it is not (yet) a journal."""
    try:
        opened = open(path, "rb", buffering=0, opener=open_private)  # noqa: SIM115
    except (FileNotFoundError, ForeignFileError):
        return None
    with opened as file:
        header = file.read(HEADER_BYTES)
        for _ in range(_READ_ATTEMPTS):  # until it was not written to in between
            file.seek(0)
            before, header = header, file.read(HEADER_BYTES)
            if header == before:
                break
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return None
    _, active, *rest = _HEADER.unpack_from(header)
    written, recorded = rest[2:4] if active else rest[:2]
    started, base, sequence, *skips = rest[4:]
    skipped = dict(zip(SKIP_REASONS, skips, strict=True))
    return JournalState(written, recorded, started, base, sequence, _drops_in(header), skipped)


def _drops_in(header: bytes) -> dict[tuple[str, bool], dict[str, int]]:
    found = {}
    for row in range(_ROWS, HEADER_BYTES, _ROW_BYTES):
        end = row + _NAME + header[row] - 1
        if row + _NAME <= end <= row + _ROW_DROPS:
            key = header[row + _NAME : end].decode("utf-8", "replace"), bool(header[row + 1])
            drops = _DROPS.unpack_from(header, row + _ROW_DROPS)
            found[key] = dict(zip(DROP_REASONS, drops, strict=True))
    return found


def owed_bytes(path: Path, state: JournalState, segment_bytes: int) -> bytes:
    """What a dead writer's current segment, ``segment_bytes`` long, still lacks."""
    missing = state.written - state.base - segment_bytes
    size = path.stat().st_size - HEADER_BYTES
    if not 0 < missing <= size:
        return b""
    with open(path, "rb", opener=open_private) as file:
        ring = memoryview(file.read())[HEADER_BYTES:]
    at = (state.written - missing) % size
    first = min(missing, size - at)
    return bytes(ring[at : at + first]) + bytes(ring[: missing - first])
