"""Bringing what another machine recorded to the one whose file it has to be written to.

A target that is a file, such as ``sqlite:///``, is written by the run's home machine alone. Other machines'
node directories are copied there piece by piece, and the copy is delivered like any directory. A copy is
made while its writers may live: it holds what their journals' headers said when its last piece was made.
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
"""Bytes of segments in one piece, so that neither machine has to hold a whole run in memory."""


class Piece(NamedTuple):
    """A part of a node directory.

    Attributes:
        segments: segment file → bytes that follow those the copy has. Empty in the last piece.
        others: other file → its bytes. What its writers promise comes with the last piece, so that an
            incomplete copy promises nothing it does not hold.
    """

    segments: dict[str, bytes]
    others: dict[str, bytes]


def copy_directory(spool_dir: Path, run_id: str, place: str) -> Path:
    """Where the copy of another machine's node directory lies on this machine."""
    return layout.node_directory(spool_dir, run_id, Path(place).name + layout.COPY_SUFFIX)


def next_piece(node_dir: Path, have: Mapping[str, int]) -> Piece:
    """What a copy lacks that has ``have`` bytes of each segment file."""
    promised = _promises(node_dir)  # read first: what ends from here on is not promised, or comes along
    states = {writer: _state(node_dir, writer) for writer in layout.journals(node_dir)}
    missing: dict[str, bytes] = {}
    room = PIECE_BYTES
    for name in layout.segments(node_dir):
        if room > 0:
            data = _bytes_from(node_dir, name, states.get(name.writer), have.get(name.file, 0), room)
            if data:
                missing[name.file] = data
                room -= len(data)
    tokenizers = [str(path.relative_to(node_dir)) for path in layout.tokenizer_files(node_dir)]
    whole = _read(node_dir, [layout.MANIFEST, layout.TRACKERS, *tokenizers])
    return Piece(missing, whole if missing else whole | promised)


def add_piece(copy_dir: Path, piece: Piece) -> None:
    """Add a piece to a copy.

    Raises:
        OSError: when the directory cannot be written to.
    """
    for file, data in piece.others.items():  # first: whoever reads a segment needs its tokenizers
        (copy_dir / file).parent.mkdir(mode=0o700, exist_ok=True)
        layout.write_whole(copy_dir / file, data)  # a forwarder at work on the copy may be reading it
    for file, data in piece.segments.items():
        with open(copy_dir / file, "ab", opener=open_private) as segment:
            segment.write(data)


def held(copy_dir: Path) -> dict[str, int]:
    """How many bytes of each segment a copy has."""
    return {name.file: (copy_dir / name.file).stat().st_size for name in layout.segments(copy_dir)}


def _promises(node_dir: Path) -> dict[str, bytes]:
    """Tables of open trajectories, and the headers of journals, read in this order.

    A trajectory that ends in between is in the table as well as in its segment, and counts as ended.
    """
    writers = layout.journals(node_dir)
    tables = _read(node_dir, [writer + layout.OPEN_SUFFIX for writer in writers])
    headers = _read(node_dir, [writer + layout.JOURNAL_SUFFIX for writer in writers], journal.HEADER_BYTES)
    return tables | headers


def _read(node_dir: Path, files: Iterable[str], limit: int = -1) -> dict[str, bytes]:
    """The beginnings of those files that exist: a writer that is dead and done with has no table."""
    found: dict[str, bytes] = {}
    for file in files:
        if (node_dir / file).exists():
            with open(node_dir / file, "rb", opener=open_private) as opened:
                found[file] = opened.read(limit)
    return found


def _bytes_from(
    node_dir: Path, name: SegmentName, state: journal.JournalState | None, start: int, limit: int
) -> bytes:
    """Whole lines of a segment from byte ``start``, of ``limit`` bytes; its journal has the last ones.

    Whole, because a forwarder may be at work on the copy, and takes half a line without a journal for damage.
    """
    path = node_dir / name.file
    with open(path, "rb", opener=open_private) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        data = file.read(limit)
    end = start + len(data)
    if state is not None and name.sequence == state.sequence and end >= size:
        owed = journal.owed_bytes(node_dir / (name.writer + layout.JOURNAL_SUFFIX), state, size)
        data += owed[end - size :]  # of these, too, the copy may have some
    whole = data[: data.rfind(b"\n") + 1]
    return whole or (data if len(data) >= limit else b"")  # a line of which more comes with the next piece


def _state(node_dir: Path, writer: str) -> journal.JournalState | None:
    return journal.read_state(node_dir / (writer + layout.JOURNAL_SUFFIX))
