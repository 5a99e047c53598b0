"""What becomes of segments that every exporter is done with: they are removed, or kept compressed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from otel_rollout.spool import journal, layout, segments
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import open_private

MINIMUM_AGE = 60.0
"""Seconds since the last line of a segment before it goes while the run is going on."""
_LEVEL = 9
"""What is new in a conversation takes less than at the fastest levels; what is resent is found at any."""
_WINDOW_LOG = 27
"""128 MiB: a conversation that is resent turn by turn is found again in the whole segment."""


def retire(node_dir: Path, is_done: Callable[[SegmentName, int], bool], keep: bool, at_end: bool) -> None:
    """Remove segments that will not grow and are done with, or move them to the archive.

    What ended for dead writers stays: a few lines, by which the account knows them.

    To be called by the holder of the forwarder's lock.

    Args:
        node_dir: where they lie.
        is_done: whether every exporter is done with a segment of that many bytes.
        keep: compress them into the archive.
        at_end: whether no writer lives and everything is complete.
    """
    for name in layout.segments(node_dir):
        if name.sequence == layout.CLOSING_SEQUENCE:
            continue
        path = node_dir / name.file
        if at_end and segments.is_being_written(path):  # of a writer that was born just now
            continue
        state = path.stat()
        is_old = time.time() - state.st_mtime > MINIMUM_AGE
        if is_done(name, state.st_size) and (at_end or (is_old and _is_past(node_dir, name))):
            if keep and state.st_size:
                archive(path)
            path.unlink()


def _is_past(node_dir: Path, name: SegmentName) -> bool:
    """Whether its writer is past it by more than one: trajectories in its last may still have to be ended."""
    state = journal.read_state(node_dir / (name.writer + layout.JOURNAL_SUFFIX))
    return state is not None and state.sequence - name.sequence >= 2


def archive(path: Path) -> Path:
    """Compress a segment into the archive beside it; the whole file or nothing."""
    import zstandard

    directory = path.parent / layout.ARCHIVE
    directory.mkdir(mode=0o700, exist_ok=True)
    target = directory / (path.name + layout.COMPRESSED_SUFFIX)
    fresh = target.with_suffix(".new")
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True
    )
    with open(path, "rb", opener=open_private) as plain, open(fresh, "wb", opener=open_private) as compressed:
        zstandard.ZstdCompressor(compression_params=parameters).copy_stream(plain, compressed)
    fresh.replace(target)
    return target
