"""List running trajectories in a memory-mapped table that outlives the process.

A root span ends last, or never if its worker is killed. So while a root span runs, a slot of the table holds
the line that is recorded if the process dies. A reader sees which trajectories are running, and which
trajectories a dead process never finished. A slot keeps its line after the trajectory has ended, until
another trajectory takes the slot. The slot that has been free for longest is taken first. So a reader that
looks from time to time also sees trajectories that ran between two looks.

File layout: slots of ``SLOT_BYTES``, each with a version, a length and a line, in the machine's byte order.
The version is odd while a process writes to the slot, so that a reader recognizes half a line. The length is
0 after the trajectory's end. The file grows; slots never move.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from otel_rollout.spool.private_files import ForeignFileError, open_private, reserved

SLOTS = 256
"""Slots of a new table. The table doubles when few slots are free."""
MAX_SLOTS = 1 << 15
"""Slots of the largest table, 128 MiB. Further trajectories are recorded, but not visible while they run."""
SLOT_BYTES = 4096
"""Bytes of a slot: a page."""
_HEAD = struct.Struct("=II")
MAX_LINE = SLOT_BYTES - _HEAD.size
"""Maximum bytes of a line in a slot."""


class RootTable:
    """The writing end of a table.

    Several threads may use a table at once, but only one of them may call :meth:`grow` and
    :meth:`begin_anew`.

    Args:
        path: file to create; must not exist.

    Raises:
        OSError: when the file cannot be created, or its space cannot be reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map = reserved(path, SLOTS * SLOT_BYTES)
        self._file = os.stat(path)
        self._free = deque(range(SLOTS))
        self._versions = [0] * SLOTS
        self._most = MAX_SLOTS

    @property
    def is_short(self) -> bool:
        """Whether few slots are free, and the table may grow."""
        slots = len(self._versions)
        return len(self._free) < slots // 4 and slots < self._most

    def enter(self, line: bytes) -> int | None:
        """Store the line, of at most MAX_LINE bytes, of a running trajectory.

        Returns:
            The slot, for :meth:`leave`; None if the table is full.
        """
        try:
            slot = self._free.popleft()
        except IndexError:
            return None
        at = slot * SLOT_BYTES
        version = self._versions[slot] + 2
        self._versions[slot] = version
        table = self._map
        _HEAD.pack_into(table, at, version - 1, 0)
        table[at + _HEAD.size : at + _HEAD.size + len(line)] = line
        _HEAD.pack_into(table, at, version, len(line))
        return slot

    def leave(self, slot: int) -> None:
        """Free the slot of a trajectory."""
        _HEAD.pack_into(self._map, slot * SLOT_BYTES, self._versions[slot], 0)
        self._free.append(slot)

    def grow(self) -> None:
        """Double the table.

        Raises:
            OSError: when there is no disk space, or somebody has removed the file. The table keeps its size.
        """
        slots = len(self._versions)
        try:
            self._map = self._mapped(2 * slots * SLOT_BYTES)
        except OSError:
            self._most = slots
            raise
        self._versions += [0] * slots
        self._free.extend(range(slots, 2 * slots))

    def _mapped(self, size: int) -> mmap.mmap:
        """Enlarge and map the file; writes to the old mapping still reach the file."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not os.path.samestat(os.fstat(descriptor), self._file):
                raise FileNotFoundError(errno.ENOENT, "somebody has put another file in its place")
            os.posix_fallocate(descriptor, 0, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def begin_anew(self) -> None:
        """Continue in a new file, which replaces the old one.

        Raises:
            OSError: when the new file cannot be created; the old file is removed even then.
        """
        self._path.unlink(missing_ok=True)
        fresh = reserved(self._path, len(self._versions) * SLOT_BYTES)
        fresh[:] = self._map[:]
        self._map, self._file, self._most = fresh, os.stat(self._path), MAX_SLOTS


def read_open(path: Path, seen: MutableMapping[int, int] | None = None) -> Iterator[bytes]:
    """Read the lines in a table, while its writer is alive or after its death.

    Args:
        path: the table.
        seen: slot → version that was read, empty for the first call and updated by each. With it, lines of
            ended trajectories are read too, each once.
    """
    try:
        with open(path, "rb", opener=open_private) as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ForeignFileError, ValueError):  # missing, not ours, or still empty
        return
    with table:
        for slot, version, length in _used(table, seen):
            begin = slot * SLOT_BYTES + _HEAD.size
            line = bytes(table[begin : begin + (length or MAX_LINE)])
            if _HEAD.unpack_from(table, begin - _HEAD.size) == (version, length):
                if seen is not None:
                    seen[slot] = version
                yield line if length else line[: line.find(b"\n") + 1]


def _used(table: mmap.mmap, seen: Mapping[int, int] | None) -> list[tuple[int, int, int]]:
    """Return slot, version and length of the slots to read; few of many slots have changed."""
    with memoryview(table) as whole, whole[: len(whole) // SLOT_BYTES * SLOT_BYTES].cast("I") as words:
        versions, lengths = (words[part :: SLOT_BYTES // 4].tolist() for part in (0, 1))
    return [
        (slot, version, length)
        for slot, (version, length) in enumerate(zip(versions, lengths, strict=True))
        if (length or (seen is not None and seen.get(slot, 0) != version))
        and length <= MAX_LINE
        and not version % 2
    ]
