"""A ring of bytes in a memory-mapped file: what is appended survives the death of the process.

Appending is a copy into shared memory, without a system call: a system call would release the GIL, and
with one busy Python thread in the process the caller would wait for the interpreter's switch interval, 5 ms,
to get it back. The kernel keeps the pages when the process is killed at any point, and the length
is published after the bytes, so a reader finds whole appends only.

File layout, little-endian::

    0     8   magic
    8     8   which of the two places below holds (0 or 1)
    16    24  place 0: written (bytes ever appended), recorded (lines), started (spans ever started)
    40    24  place 1: the same
    64    8   base: value of `written` at which the current segment file began (signed)
    72    8   sequence of the current segment file; 0 while the writer is being born
    80    8×n dropped spans, in the order of DROP_REASONS, then trajectories left out, in that of SKIP_REASONS
    4096  …   the ring; byte i of the stream lies at 4096 + i % size

Length and counts are written to the place that does not hold, then one byte says that it does: a kill never
parts them. (``struct.pack_into`` would not do: it clears its target first.)

`written` minus `base` minus the segment's length is what a dead writer still owes its segment. It is all
in the ring, because a writer overwrites nothing its segment does not have.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"ORJRNL03"
HEADER_BYTES = 4096
_ACTIVE, _PLACES, _BASE, _SEQUENCE, _COUNTS = 8, (16, 40), 64, 72, 80
_published = struct.Struct("<3Q")
_number = struct.Struct("<q")

DROP_REASONS = ("journal_full", "disk", "encoding", "spool_limit", "redaction")
"""Why a span that ended was not recorded: the ring was full and stayed full; the segment could not be
written; the span could not be encoded; the run has as much on this machine as it may; what was to make
secrets unreadable failed."""
SKIP_REASONS = ("switched_off", "sampled_out", "application_sampler", "caller")
"""Why a trajectory was left out on purpose: by ``trace=False``; by ``OTEL_TRACES_SAMPLER``; by the sampler
of the application's own OpenTelemetry; because its caller, in another process, is not recorded."""
_COUNTED = (*DROP_REASONS, *SKIP_REASONS)
_HEADER = struct.Struct(f"<8sQ6Q2q{len(_COUNTED)}q")
_READ_ATTEMPTS = 1000
_NEWLINE = ord("\n")


class Journal:
    """The writing end. Not thread-safe: the owner serialises calls.

    Args:
        path: file to create; must not exist.
        size: bytes of the ring.

    Raises:
        OSError: when the file cannot be created or its space not be reserved.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._map = reserved(path, HEADER_BYTES + size)
        self._descriptor = _locked(path)
        for page in range(0, HEADER_BYTES + size, mmap.PAGESIZE):
            self._map[page] = 0  # fault the pages in here rather than in somebody's span
        self._map[: len(MAGIC)] = MAGIC
        self._active = 0
        self.size = size
        self.written = 0
        self.flushed = 0
        self.recorded = 0
        self.started = 0

    @property
    def room(self) -> int:
        """Bytes that fit before the owner has to flush."""
        return self.size - (self.written - self.flushed)

    def append(self, head: bytes, body: bytes) -> bool:
        """Append two pieces as one line; False when there is no room."""
        written, size, ring = self.written, self.size, self._map
        length = len(head) + len(body)
        if written + length - self.flushed > size:
            return False
        at = written % size
        if at + length <= size:
            at += HEADER_BYTES
            middle = at + len(head)
            ring[at:middle] = head
            ring[middle : at + length] = body
        else:
            line = head + body
            first = size - at
            ring[HEADER_BYTES + at : HEADER_BYTES + size] = line[:first]
            ring[HEADER_BYTES : HEADER_BYTES + length - first] = line[first:]
        self.written = written + length
        self.recorded += 1
        self.publish()  # after the copy: this is what makes the line exist
        return True

    def publish(self) -> None:
        """Make length and counts visible outside."""
        place = 1 - self._active
        at = _PLACES[place]
        self._map[at : at + 24] = _published.pack(self.written, self.recorded, self.started)
        self._map[_ACTIVE] = self._active = place

    def unflushed(self, limit: int) -> memoryview:
        """The oldest bytes the segment lacks, at most ``limit``; to be released before the next append."""
        at = self.flushed % self.size
        length = min(self.written - self.flushed, self.size - at, limit)
        return memoryview(self._map)[HEADER_BYTES + at : HEADER_BYTES + at + length]

    def begin_segment(self, sequence: int) -> None:
        """Note that the bytes from here on belong to segment ``sequence``."""
        self.set_base(self.written)
        self._put(_SEQUENCE, sequence)

    def move(self, path: Path, sequence: int, forget: bool) -> None:
        """Go on in a new file, with segment ``sequence``, after the segment was removed.

        It has what no segment had yet, from the beginning of a line. It appears at once, locked.

        Args:
            path: the file.
            sequence: number of the segment.
            forget: count no more what segments had: the account of what became of it was removed as well.

        Raises:
            OSError: when the file cannot be created; then nothing has changed.
        """
        hidden = path.with_suffix(".new")
        hidden.unlink(missing_ok=True)
        fresh = reserved(hidden, HEADER_BYTES + self.size)
        descriptor = _locked(hidden)
        fresh[:] = self._map[:]
        self._map = fresh
        at = self.flushed % self.size
        ring = fresh[HEADER_BYTES:]
        waiting = (ring[at:] + ring[:at])[: self.written - self.flushed]
        if self.flushed and ring[at - 1] != _NEWLINE:
            half = waiting.find(b"\n") + 1
            self.flushed, waiting = self.flushed + half, waiting[half:]
        if forget:
            gone = self.recorded - waiting.count(b"\n")
            self.recorded -= gone
            self.started -= gone
        self.set_base(self.flushed)
        self._put(_SEQUENCE, sequence)
        self.publish()
        hidden.replace(path)
        self.release()
        self._descriptor = descriptor

    def is_at(self, path: Path) -> bool:
        """Whether that is our file, or somebody has removed or replaced it."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go of the lock by which others see that the writer lives."""
        os.close(self._descriptor)

    def set_base(self, base: int) -> None:
        """Note at which byte of the stream the current segment file began.

        Negative when the segment holds more than ever went through the ring.
        """
        self._put(_BASE, base)

    def count(self, reason: str, total: int) -> None:
        """Publish how often something was not recorded for ``reason``; in any thread, so nothing else."""
        self._put(_COUNTS + 8 * _COUNTED.index(reason), total)

    def _put(self, at: int, value: int) -> None:
        self._map[at : at + 8] = _number.pack(value)


def reserved(path: Path, size: int) -> mmap.mmap:
    """A new file of so many bytes, mapped.

    Raises:
        OSError: when it exists, or its space cannot be reserved.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Reserved now: a page that cannot be backed later would be SIGBUS in the training process.
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    """A descriptor that holds the file's lock, for as long as it is open in this process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
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
    drops: dict[str, int]
    skips: dict[str, int]


def read_state(path: Path) -> JournalState | None:
    """Read a journal's header; None when the file is not (yet) a journal."""
    with path.open("rb", buffering=0) as file:
        header = file.read(_HEADER.size)
        for _ in range(_READ_ATTEMPTS):  # until it was not written to in between
            file.seek(0)
            before, header = header, file.read(_HEADER.size)
            if header == before:
                break
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        return None
    _, active, *rest = _HEADER.unpack(header)
    written, recorded, started = rest[3:6] if active else rest[:3]
    base, sequence, *counts = rest[6:]
    drops = dict(zip(DROP_REASONS, counts, strict=False))
    skips = dict(zip(SKIP_REASONS, counts[len(DROP_REASONS) :], strict=True))
    return JournalState(written, recorded, started, base, sequence, drops, skips)


def owed_bytes(path: Path, state: JournalState, segment_bytes: int) -> bytes:
    """What a dead writer's current segment, ``segment_bytes`` long, still lacks."""
    missing = state.written - state.base - segment_bytes
    size = path.stat().st_size - HEADER_BYTES
    if not 0 < missing <= size:
        return b""
    with path.open("rb") as file:
        ring = memoryview(file.read())[HEADER_BYTES:]
    at = (state.written - missing) % size
    first = min(missing, size - at)
    return bytes(ring[at : at + first]) + bytes(ring[: missing - first])
