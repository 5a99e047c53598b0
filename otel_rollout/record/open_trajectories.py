"""Which trajectories are running, in a memory-mapped table that outlives the process.

A root span ends last, or never if its worker is killed. So its start is a fact of its own: the line it would
be if the process ended now lies in a slot of this table from its start to its end. Whoever looks at the
table sees what is running; of a dead process, what it never finished.

File layout: slots of ``SLOT_BYTES``, each a version, a length and a line, little-endian. The version is odd
while a slot is being written, so that a reader can tell a whole line from half of one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from otel_rollout.private_files import ForeignFileError, open_private
from otel_rollout.record.journal import reserved

SLOTS = 512
"""Trajectories of one process that can be seen running at once; further ones are recorded all the same."""
SLOT_BYTES = 2048
_HEAD = struct.Struct("<II")


class OpenTrajectories:
    """The writing end, usable from several threads.

    Args:
        path: file to create; must not exist.

    Raises:
        OSError: when the file cannot be created or its space not be reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map = reserved(path, SLOTS * SLOT_BYTES)
        self._free = list(range(SLOTS - 1, -1, -1))
        self._versions = [0] * SLOTS

    def enter(self, line: bytes) -> int | None:
        """Put a trajectory's line into the table.

        Returns:
            Its slot, for :meth:`leave`; None when the table is full or the line too long.
        """
        if _HEAD.size + len(line) > SLOT_BYTES:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        at = slot * SLOT_BYTES
        version = self._versions[slot] + 2
        self._versions[slot] = version
        _HEAD.pack_into(self._map, at, version - 1, 0)
        self._map[at + _HEAD.size : at + _HEAD.size + len(line)] = line
        _HEAD.pack_into(self._map, at, version, len(line))
        return slot

    def begin_anew(self) -> None:
        """Go on in a new file, after this one was removed, or instead of it.

        Raises:
            OSError: when it cannot be created; then nothing has changed but that the old one is gone.
        """
        self._path.unlink(missing_ok=True)
        fresh = reserved(self._path, SLOTS * SLOT_BYTES)
        fresh[:] = self._map[:]
        self._map = fresh

    def leave(self, slot: int) -> None:
        """Take a trajectory out of the table."""
        _HEAD.pack_into(self._map, slot * SLOT_BYTES, self._versions[slot], 0)
        self._free.append(slot)


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
            if not 0 < length <= SLOT_BYTES - _HEAD.size or version % 2:
                continue
            line = bytes(table[at + _HEAD.size : at + _HEAD.size + length])
            if _HEAD.unpack_from(table, at) == (version, length):
                yield line
