"""Recognise damaged journals and segments from a few bytes of each.

The middle of a segment is not read. Its damage becomes visible in the dead-letter file, when the forwarder
reaches it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from otel_rollout.otlp.scan import LINE_HEAD
from otel_rollout.spool import journal, layout
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.recorded_lines import place_of


class JournalFile(NamedTuple):
    """A journal's header, and the size of its ring; a journal that is done with has no ring."""

    path: Path
    state: journal.JournalState | None
    ring: int

    @classmethod
    def read(cls, path: Path) -> JournalFile:
        """Read a journal's header."""
        state = journal.read_state(path)
        return cls(path, state, max(0, os.lstat(path).st_size - journal.HEADER_BYTES))

    def owed_bytes(self, segment_bytes: int) -> int:
        """Return how many bytes a segment of ``segment_bytes`` will get from the journal."""
        return len(journal.owed_bytes(self.path, self.state, segment_bytes)) if self.state else 0


def journal_damage(file: JournalFile, sizes: Mapping[layout.SegmentName, int]) -> Iterator[str]:
    """Yield what is wrong with the journal of a dead writer.

    Args:
        file: the journal, read before the sizes: a forwarder completes segments and then removes the ring.
        sizes: sizes of the writer's segments.
    """
    state = file.state
    if state is None:
        if any(sizes.values()) or _has_content(file.path):  # else its process died while it made the file
            yield f"{file.path} is no journal that this version can read"
    elif state.recorded > state.started or state.base > state.written:
        yield f"the counts in {file.path} contradict each other"
    else:
        for name, size in sizes.items():
            lacking = state.written - state.base - size
            if name.sequence == state.sequence and lacking > file.ring:
                yield f"{file.path.with_name(name.file)} lacks {lacking} bytes that its journal does not hold"


def segment_damage(path: Path, size: int, cursor: int, is_complete: bool) -> str | None:
    """Return what is wrong with a segment.

    Args:
        path: the segment.
        size: its size.
        cursor: position of the exporter that is furthest behind.
        is_complete: whether its writer has begun another segment since.
    """
    if size < cursor:
        return f"{path} has {size} bytes, fewer than the {cursor} that were delivered"
    if size == cursor:
        return None
    begin, _ = place_of(path, cursor)
    with open(path, "rb", buffering=0, opener=open_private) as file:
        head = os.pread(file.fileno(), len(LINE_HEAD), begin)
        last = os.pread(file.fileno(), 1, size - 1)
    if not LINE_HEAD.startswith(head):  # a flush may have ended within the first bytes
        return f"{path} has no span at byte {begin}"
    return f"{path} ends within a span" if is_complete and last != b"\n" else None


def _has_content(path: Path) -> bool:
    with open(path, "rb", buffering=0, opener=open_private) as file:
        return any(file.read(journal.HEADER_BYTES))
