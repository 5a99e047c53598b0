"""Reading what recording processes write, while they write it and after they died."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from otel_rollout import spool
from otel_rollout.record import journal
from otel_rollout.spool import SegmentName

READ_BYTES = 1 << 20


def is_being_written(path: Path) -> bool:
    """Whether the process that writes this segment or journal lives: it holds a lock that dies with it.

    Never a pid: those are reused. Never an age: clocks are set.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # done with, and removed
        return False
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

    It holds its journal from shortly after that appears, and one segment at any time, the first before it has
    a journal. Which one the journal says, looked at before and after: with the next it lets go of the last.
    """
    if is_being_written(node_dir / (writer + spool.JOURNAL_SUFFIX)):
        return False
    before = _sequence(node_dir, writer)
    if is_being_written(node_dir / SegmentName(writer, max(before, 1)).file):
        return False
    return _sequence(node_dir, writer) == before


def _sequence(node_dir: Path, writer: str) -> int:
    """Number of the segment that a writer is at; 0 while it is being born."""
    state = journal.read_state(node_dir / (writer + spool.JOURNAL_SUFFIX))
    return state.sequence if state is not None else 0


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

    To be called when its segments are complete and its trajectories ended. A journal that cannot be read is
    left as it is: that of a newer version, say.
    """
    path = node_dir / (writer + spool.JOURNAL_SUFFIX)
    if journal.read_state(path) is None:
        return
    fresh = path.with_suffix(".new")  # never cut a file: should a process have it mapped, that would kill it
    with path.open("rb") as old, open(fresh, "wb", opener=spool.open_private) as file:
        file.write(old.read(journal.HEADER_BYTES))
    fresh.replace(path)
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


def append_line(path: Path, line: bytes) -> None:
    """Append a line, whole or not at all; half of one, of a process that was killed in it, is cut off first.

    Raises:
        OSError: when it cannot be written.
    """
    with open(path, "a+b", opener=spool.open_private) as file:
        end = _end_of_last_line(file)
        file.truncate(end)
        try:
            file.write(line)
            file.flush()
        except OSError:
            os.truncate(path, end)  # freeing space does not fail for lack of it
            raise


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
