"""Reading what recording processes write, while they write it and after they died."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from otel_rollout import spool
from otel_rollout.record import journal
from otel_rollout.spool import SegmentName

READ_BYTES = 1 << 20
STILLBORN_AGE = 60.0
"""Seconds after which a writer that has not begun its first segment is taken for dead."""


def is_being_written(path: Path) -> bool:
    """Whether the process that writes this segment lives: it holds a lock that dies with it.

    Never a pid: those are reused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def living_writers(node_dir: Path) -> set[str]:
    """The writers that may still write into this directory."""
    return {writer for writer in spool.journals(node_dir) if not is_dead(node_dir, writer)}


def is_dead(node_dir: Path, writer: str) -> bool:
    """Whether a writer will certainly write no more.

    Death is proven on the segment its journal names, looked at before and after: a writer that is being
    born has no segment yet, and one that begins the next segment lets go of the last.
    """
    path = node_dir / (writer + spool.JOURNAL_SUFFIX)
    before = journal.read_state(path)
    if before is None or before.sequence == 0:
        return time.time() - path.stat().st_mtime > STILLBORN_AGE
    segment = node_dir / SegmentName(writer, before.sequence).file
    if segment.exists() and is_being_written(segment):
        return False
    after = journal.read_state(path)
    return after is not None and after.sequence == before.sequence


def heal(node_dir: Path, writer: str) -> None:
    """Complete the last segment of a dead writer from its journal; cut off a line that was never finished.

    Idempotent. To be called by the holder of the forwarder's lock, so by one process at a time.
    """
    state = journal.read_state(node_dir / (writer + spool.JOURNAL_SUFFIX))
    name = SegmentName(writer, state.sequence) if state else None
    if state is None or name is None or not (node_dir / name.file).exists():
        return
    with (node_dir / name.file).open("r+b") as segment:
        size = segment.seek(0, os.SEEK_END)
        segment.write(journal.owed_bytes(node_dir / (writer + spool.JOURNAL_SUFFIX), state, size))
        segment.truncate(_end_of_last_line(segment))


def discard_buffers(node_dir: Path, writer: str) -> None:
    """Give back the space of a dead writer's journal and table; its counts stay.

    To be called when its segments are complete and its trajectories ended.
    """
    os.truncate(node_dir / (writer + spool.JOURNAL_SUFFIX), journal.HEADER_BYTES)
    (node_dir / (writer + spool.OPEN_SUFFIX)).unlink(missing_ok=True)


def _end_of_last_line(segment: BinaryIO) -> int:
    position = segment.seek(0, os.SEEK_END)
    while position > 0:
        start = max(0, position - READ_BYTES)
        segment.seek(start)
        newline = segment.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def complete_lines(path: Path, position: int, limit: int) -> Iterator[bytes]:
    """Whole lines of a segment from byte ``position``, each with its newline.

    Stops after ``limit`` bytes, but not before the first line; what follows the last newline is not
    finished and not yielded.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:  # everybody is done with it
        return
    with file:
        file.seek(position)
        taken = 0
        for line in file:
            if not line.endswith(b"\n") or (taken and taken + len(line) > limit):
                return
            taken += len(line)
            yield line
