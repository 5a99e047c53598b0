"""Which trajectories are running, in a memory-mapped table that outlives the process.

A root span ends last, or never if its worker is killed. So its start is a fact of its own: the line it would
be if the process ended now lies in a slot of this table from its start to its end. Whoever looks at the
table sees what is running; of a dead process, what it never finished.

File layout: slots of ``SLOT_BYTES``, each a version, a length and a line, little-endian. The version is odd
while a slot is being written, so that a reader can tell a whole line from half of one. The file grows; a slot
stays where it is.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from otel_rollout.spool.journal import reserved
from otel_rollout.spool.private_files import ForeignFileError, open_private

SLOTS = 256
"""Trajectories for which a table has room at first. It doubles when few slots are left."""
MAX_SLOTS = 1 << 15
"""Trajectories of one process that can be seen running at once, in 128 MiB. Others are recorded only."""
SLOT_BYTES = 4096
_HEAD = struct.Struct("<II")
MAX_LINE = SLOT_BYTES - _HEAD.size
"""Bytes of the longest line."""


class RootTable:
    """The writing end, usable from several threads; :meth:`grow` and :meth:`begin_anew` from one at a time.

    Args:
        path: file to create; must not exist.

    Raises:
        OSError: when the file cannot be created or its space not be reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map = reserved(path, SLOTS * SLOT_BYTES)
        self._file = os.stat(path)
        self._free = list(range(SLOTS - 1, -1, -1))
        self._versions = [0] * SLOTS
        self._most = MAX_SLOTS

    @property
    def is_short(self) -> bool:
        """Whether few slots are left, and there may be more."""
        slots = len(self._versions)
        return len(self._free) < slots // 4 and slots < self._most

    def enter(self, line: bytes) -> int | None:
        """Put a trajectory's line, of at most MAX_LINE bytes, into the table.

        Returns:
            Its slot, for :meth:`leave`; None when the table is full.
        """
        try:
            slot = self._free.pop()
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
        """Take a trajectory out of the table."""
        _HEAD.pack_into(self._map, slot * SLOT_BYTES, self._versions[slot], 0)
        self._free.append(slot)

    def grow(self) -> None:
        """Double the table.

        Raises:
            OSError: when there is no room, or somebody has removed the file. It stays as large as it is.
        """
        slots = len(self._versions)
        try:
            self._map = self._mapped(2 * slots * SLOT_BYTES)
        except OSError:
            self._most = slots
            raise
        self._versions += [0] * slots
        self._free[:0] = range(2 * slots - 1, slots - 1, -1)

    def _mapped(self, size: int) -> mmap.mmap:
        """The file, made larger. Who writes into the old mapping at this moment writes into the same file."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not os.path.samestat(os.fstat(descriptor), self._file):
                raise FileNotFoundError(errno.ENOENT, "somebody has put another file in its place")
            os.posix_fallocate(descriptor, 0, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def begin_anew(self) -> None:
        """Go on in a new file, after this one was removed, or instead of it.

        Raises:
            OSError: when it cannot be created; then nothing has changed but that the old one is gone.
        """
        self._path.unlink(missing_ok=True)
        fresh = reserved(self._path, len(self._versions) * SLOT_BYTES)
        fresh[:] = self._map[:]
        self._map, self._file, self._most = fresh, os.stat(self._path), MAX_SLOTS


def read_open(path: Path) -> Iterator[bytes]:
    """The lines of the trajectories that are in a table, while its writer lives or after its death."""
    try:
        with open(path, "rb", opener=open_private) as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ForeignFileError, ValueError):  # not there, not ours, or just being made
        return
    with table:
        for at in range(0, len(table) - SLOT_BYTES + 1, SLOT_BYTES):
            version, length = _HEAD.unpack_from(table, at)
            if not 0 < length <= MAX_LINE or version % 2:
                continue
            line = bytes(table[at + _HEAD.size : at + _HEAD.size + length])
            if _HEAD.unpack_from(table, at) == (version, length):
                yield line
