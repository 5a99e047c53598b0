"""Copy node directories to the machine that owns the target file.

A target that is a file, such as ``sqlite:///``, is written only by the run's home machine. Node directories
of other machines are copied there piece by piece, and each copy is delivered like any node directory. Writers
may record during the copy. The copy holds every span that the journal headers in its last piece count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from otel_rollout.spool import journal, layout
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import open_private

PIECE_BYTES = 32 << 20
"""Bytes of segments in one piece: neither machine holds a whole run in memory."""


class CopiedPiece(NamedTuple):
    """A part of a node directory.

    Attributes:
        segments: segment file → bytes to append to the copy's file. Empty in the last piece.
        others: other file → its content. Root tables and journal headers count spans: they are only in the
            last piece, so that an incomplete copy counts no span that it lacks.
    """

    segments: dict[str, bytes]
    others: dict[str, bytes]


def copy_directory(spool_dir: Path, run_id: str, node_dir: str) -> Path:
    """Return the directory for the copy of another machine's ``node_dir``."""
    return layout.node_directory(spool_dir, run_id, Path(node_dir).name + layout.COPY_SUFFIX)


def next_piece(node_dir: Path, copied: Mapping[str, int]) -> CopiedPiece:
    """Return the next piece for a copy with ``copied`` bytes of each segment file."""
    counts = _counts(node_dir)  # read before the segments, so that these hold every counted span
    states = {
        writer: journal.read_state(layout.journal_of(node_dir, writer))
        for writer in layout.journals(node_dir)
    }
    missing: dict[str, bytes] = {}
    room = PIECE_BYTES
    for name in layout.segments(node_dir):
        if room > 0:
            data = _bytes_from(node_dir, name, states.get(name.writer), copied.get(name.file, 0), room)
            if data:
                missing[name.file] = data
                room -= len(data)
    tokenizers = [str(path.relative_to(node_dir)) for path in layout.tokenizer_files(node_dir)]
    whole = _read(node_dir, [layout.MANIFEST, layout.TRACKERS, *tokenizers])
    return CopiedPiece(missing, whole if missing else whole | counts)


def add_piece(copy_dir: Path, piece: CopiedPiece) -> None:
    """Add a piece to a copy.

    Raises:
        OSError: the directory cannot be written to.
    """
    for file, data in piece.others.items():  # tokenizers before segments: readers of segments need them
        (copy_dir / file).parent.mkdir(mode=0o700, exist_ok=True)
        layout.write_whole(copy_dir / file, data)  # atomically: a forwarder may be reading the copy
    for file, data in piece.segments.items():
        with open(copy_dir / file, "ab", opener=open_private) as segment:
            segment.write(data)


def copied_bytes(copy_dir: Path) -> dict[str, int]:
    """Return how many bytes of each segment file a copy has."""
    return {name.file: (copy_dir / name.file).stat().st_size for name in layout.segments(copy_dir)}


def _counts(node_dir: Path) -> dict[str, bytes]:
    """Read root tables, then journal headers.

    A trajectory that ends in between is both in its table and in its segment; readers count it as ended.
    """
    writers = layout.journals(node_dir)
    tables = _read(node_dir, [writer + layout.OPEN_SUFFIX for writer in writers])
    headers = _read(node_dir, [writer + layout.JOURNAL_SUFFIX for writer in writers], journal.HEADER_BYTES)
    return tables | headers


def _read(node_dir: Path, files: Iterable[str], limit: int = -1) -> dict[str, bytes]:
    """Read up to ``limit`` bytes of each file that exists."""
    found: dict[str, bytes] = {}
    for file in files:
        if (node_dir / file).exists():
            with open(node_dir / file, "rb", opener=open_private) as opened:
                found[file] = opened.read(limit)
    return found


def _bytes_from(
    node_dir: Path, name: SegmentName, state: journal.JournalState | None, start: int, limit: int
) -> bytes:
    """Read whole lines of a segment from byte ``start``, up to ``limit`` bytes.

    The last lines may still be in the writer's journal. Only whole lines are read, because a forwarder takes
    half a line in the copy for damage. A line longer than ``limit`` is read in parts.
    """
    path = node_dir / name.file
    with open(path, "rb", opener=open_private) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        data = file.read(limit)
    end = start + len(data)
    if state is not None and name.sequence == state.sequence and end >= size:
        owed = journal.owed_bytes(layout.journal_of(node_dir, name.writer), state, size)
        data += owed[end - size :]  # the copy may already have some of these bytes
    whole = data[: data.rfind(b"\n") + 1]
    return whole or (data if len(data) >= limit else b"")  # a line longer than a piece is sent in parts
