"""Read segments while they are written; repair those of dead writers.

A batch of scores is one line of a segment and counts as many spans as it has scores. A position
``n`` bytes after the line's beginning means that ``n`` of these spans are done. So a cursor of bytes also
says which scores of a batch are done.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from otel_rollout.otlp.scan import end_time_of
from otel_rollout.otlp.score_batch import batch_in
from otel_rollout.spool import journal, layout
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import ForeignFileError, open_private

_Read = TypeVar("_Read")
MAX_OPEN: Final = 64
"""Maximum writers whose files are read at once."""
READ_BYTES = 1 << 20
"""Bytes read at once in the search for a newline."""
_BUFFER_BYTES = 1 << 16
"""Bytes read at once of lines in order."""
MAX_LINE_BYTES = 128 << 20
"""Maximum bytes read of one line. No span is that large, but a damaged file may have no newline."""


def is_being_written(path: Path) -> bool:
    """Return whether the process that writes a segment or journal is alive.

    That process holds the file's lock until its death. A pid or a time would prove less: pids are reused, and
    clocks are set.
    """
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except (FileNotFoundError, ForeignFileError):  # removed after use, or another user's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def living_writers(node_dir: Path) -> set[str]:
    """Return the writers that may still write into a node directory."""
    return {writer for writer in layout.journals(node_dir) if not is_dead(node_dir, writer)}


def is_dead(node_dir: Path, writer: str) -> bool:
    """Return whether a writer will certainly write no more.

    A writer locks its journal soon after its creation. It holds the lock of one segment at any time; it locks
    the first segment before it has a journal. The journal names the current segment. When the writer switches
    to the next segment, it unlocks the last one. So read the journal before and after the check of the
    segment's lock.
    """
    if is_being_written(layout.journal_of(node_dir, writer)):
        return False
    before = _sequence(node_dir, writer)
    held = [node_dir / SegmentName(writer, before).file] if before else _segments_of(node_dir, writer)
    if any(map(is_being_written, held)):
        return False
    return _sequence(node_dir, writer) == before


def _sequence(node_dir: Path, writer: str) -> int:
    """Return the number of a writer's current segment; 0 without a journal, or before the first segment."""
    state = journal.read_state(layout.journal_of(node_dir, writer))
    return state.sequence if state is not None else 0


def _segments_of(node_dir: Path, writer: str) -> list[Path]:
    return [node_dir / name.file for name in layout.segments(node_dir) if name.writer == writer]


def writers(node_dir: Path) -> set[str]:
    """Return the writers that have a journal or segments in a node directory."""
    return {*layout.journals(node_dir), *(name.writer for name in layout.segments(node_dir))}


def repair(node_dir: Path, writer: str) -> None:
    """Complete the last segment of a dead writer from its journal.

    Half a line at the segment's end is cut off. Half a line at the end of another segment is damage. It gets
    a newline, and so becomes an unreadable line. Only the holder of the forwarder's lock may call this
    function. Repeated calls change nothing more.
    """
    path = layout.journal_of(node_dir, writer)
    state = journal.read_state(path)
    for name in layout.segments(node_dir):
        if name.writer == writer and (state is None or name.sequence <= state.sequence):
            with open(node_dir / name.file, "r+b", opener=open_private) as segment:
                if state is None or name.sequence < state.sequence:
                    _end_last_line(segment)
                else:
                    segment.write(journal.owed_bytes(path, state, segment.seek(0, os.SEEK_END)))
                    segment.truncate(_end_of_last_line(segment, segment.seek(0, os.SEEK_END)))


def discard_buffers(node_dir: Path, writer: str) -> None:
    """Free the space of a dead writer's journal and root table; the counts stay.

    Call this function when the writer's segments are complete and its trajectories have ended. A journal that
    cannot be read, for example of a newer version, stays unchanged.
    """
    path = layout.journal_of(node_dir, writer)
    if journal.read_state(path) is not None:
        fresh = path.with_suffix(".new")  # never truncate: SIGBUS in a process that has mapped the file
        with open(path, "rb", opener=open_private) as old, open(fresh, "wb", opener=open_private) as file:
            file.write(old.read(journal.HEADER_BYTES))
        fresh.replace(path)
    (node_dir / (writer + layout.OPEN_SUFFIX)).unlink(missing_ok=True)


def _end_last_line(segment: BinaryIO) -> None:
    if segment.seek(0, os.SEEK_END):
        segment.seek(-1, os.SEEK_END)
        if segment.read(1) != b"\n":
            segment.write(b"\n")


def _end_of_last_line(segment: BinaryIO | FileIO, end: int, most: int = sys.maxsize) -> int:
    """Return where the last whole line before ``end`` ends; at most about ``most`` bytes before ``end``."""
    position = end
    while position > max(0, end - most):
        # Nearly always a line ends there, so one byte is read first.
        start = max(0, position - (1 if position == end else READ_BYTES))
        segment.seek(start)
        newline = segment.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return position


def append_line(path: Path, line: bytes) -> None:
    """Append a line, whole or not at all.

    Half a line at the file's end, left by a process that was killed, is cut off first.

    Raises:
        OSError: when the line cannot be written.
    """
    with open(path, "a+b", opener=open_private) as file:
        end = _end_of_last_line(file, file.seek(0, os.SEEK_END))
        file.truncate(end)
        try:
            file.write(line)
            file.flush()
        except OSError:
            os.ftruncate(file.fileno(), end)  # works on a full disk, too
            raise


def complete_lines(path: Path, position: int, limit: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines of a segment from ``position`` on, each with its end.

    At least one line is yielded, then lines up to ``limit`` bytes in all. A line without a newline is not
    complete and not yielded. Of a line longer than ``MAX_LINE_BYTES``, only the beginning is yielded, without
    a newline.
    """
    try:
        file = open(path, "rb", _BUFFER_BYTES, opener=open_private)  # noqa: SIM115
    except FileNotFoundError:  # removed after use
        return
    with file:
        begin = file.seek(position)
        while line := file.readline(MAX_LINE_BYTES):
            end = begin + len(line)
            if not line.endswith(b"\n"):
                rest = _rest_of_line(file) if len(line) == MAX_LINE_BYTES else 0
                if not rest:
                    return
                line, end = line[:READ_BYTES], end + rest
            if begin > position and end - position > limit:
                return
            yield line, end
            begin = end


def _rest_of_line(file: BinaryIO) -> int:
    """Return the number of bytes through the next newline; 0 without a newline."""
    length = 0
    while piece := file.readline(READ_BYTES):
        length += len(piece)
        if piece.endswith(b"\n"):
            return length
    return 0


def recorded_lines(path: Path, position: int, limit: int) -> Iterator[tuple[bytes, int]]:
    """Yield the spans of a segment from ``position`` on, each as a line and with its end.

    The segment's lines are read as :func:`complete_lines` does. A batch that is damaged is yielded as it is.
    """
    begin, passed = place_of(path, position)
    for line, end in complete_lines(path, begin, limit):
        batch = batch_in(line)
        if batch is None:
            yield line[passed:], end
        else:
            for number, span in enumerate(batch.lines(passed), passed + 1):
                yield span, end if number == len(batch) else begin + number
        begin, passed = end, 0


def place_of(path: Path, position: int) -> tuple[int, int]:
    """Return where the line begins that holds a position, and how many bytes of it precede the position."""
    if not position:
        return 0, 0
    try:
        with open(path, "rb", buffering=0, opener=open_private) as file:
            begin = _end_of_last_line(file, position, MAX_LINE_BYTES)
    except FileNotFoundError:  # removed after use
        return position, 0
    return begin, position - begin


def merged(of_writers: Sequence[Iterable[_Read]], line_of: Callable[[_Read], bytes]) -> Iterator[_Read]:
    """Yield what is read from writers in the order in which spans ended; each writer's in its own order.

    So a turn comes after the turn that it continues, whichever process recorded that.

    Args:
        of_writers: what is read from each; at most ``MAX_OPEN`` at once, which have files open.
        line_of: returns the line of what was read.
    """

    def end_of(read: _Read) -> int:
        return end_time_of(line_of(read)) or 0

    for start in range(0, len(of_writers), MAX_OPEN):
        some = of_writers[start : start + MAX_OPEN]
        yield from heapq.merge(*some, key=end_of) if len(some) > 1 else some[0]
