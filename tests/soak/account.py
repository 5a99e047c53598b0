"""Count a writer's spans in shared memory, which survives its SIGKILL."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

KINDS = ("root", "started", "ended")
"""Roots begun; operations begun; both, ended."""
_CAPACITY = 4096
_HEADER = 8 * len(KINDS)


class Account:
    """The writing end, one per thread.

    Args:
        directory: where accounts lie.
        writer: number of the writer in the schedule.
        thread: number of the thread in the writer.
    """

    def __init__(self, directory: Path, writer: int, thread: int) -> None:
        path = directory / f"{writer}.{thread}.{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(descriptor, _HEADER + 8 * _CAPACITY * len(KINDS))
        self._map = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self._counts = [0] * len(KINDS)

    def note(self, kind: str, span_id: int) -> None:
        """Enter a span; the number of entries last, so that every entry counted is whole."""
        of = KINDS.index(kind)
        at = _HEADER + 8 * (_CAPACITY * of + self._counts[of])
        self._map[at : at + 8] = span_id.to_bytes(8, "little")
        self._counts[of] += 1
        self._map[8 * of : 8 * of + 8] = self._counts[of].to_bytes(8, "little")


@dataclass(frozen=True)
class Entries:
    """What one thread's account says."""

    writer: int
    pid: int
    root: frozenset[int]
    started: frozenset[int]
    ended: frozenset[int]


def read(directory: Path) -> list[Entries]:
    """All accounts there are."""
    found = []
    for path in sorted(directory.iterdir()):
        writer, _, pid = map(int, path.name.split("."))
        data = path.read_bytes()
        if len(data) > _HEADER:  # not just being made
            found.append(Entries(writer, pid, *(_entries(data, of) for of in range(len(KINDS)))))
    return found


def ended(directory: Path) -> dict[int, int]:
    """How many spans each writer has ended so far."""
    counts: dict[int, int] = {}
    for path in directory.iterdir():
        writer = int(path.name.partition(".")[0])
        with path.open("rb") as file:
            header = file.read(_HEADER)
        counts[writer] = counts.get(writer, 0) + _count(header, KINDS.index("ended"))
    return counts


def _count(data: bytes, of: int) -> int:
    return int.from_bytes(data[8 * of : 8 * of + 8], "little")


def _entries(data: bytes, of: int) -> frozenset[int]:
    begin = _HEADER + 8 * _CAPACITY * of
    return frozenset(
        int.from_bytes(data[at : at + 8], "little") for at in range(begin, begin + 8 * _count(data, of), 8)
    )
