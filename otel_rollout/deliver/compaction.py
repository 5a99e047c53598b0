"""Remove or archive the segments that every exporter, and every other target of the run, is done with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import reads_spool
from otel_rollout.exporting.entry_points import installed
from otel_rollout.spool import journal, layout
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import open_private

_ZSTD_LEVEL = 9
"""zstd level: any level finds resent text; this one makes new text smaller than the fastest level does."""
_ZSTD_WINDOW_LOG = 27
"""log2 of the zstd window in bytes (128 MiB): resent text is found anywhere in a segment."""


def retire(
    node_dir: Path, is_done: Callable[[SegmentName, int], bool], keep: bool, ended: Collection[str] = ()
) -> None:
    """Remove or archive segments that every exporter is done with.

    A segment that may still grow stays. A segment that crash recovery wrote stays too: the delivery report
    counts its few lines. Call this only while holding the forwarder's lock.

    Args:
        node_dir: holds the segments.
        is_done: returns whether every exporter is done with a segment, given its name and its size in bytes.
        keep: whether to compress segments into the archive before removal.
        ended: dead writers whose segments are complete and grow no more. A process that began and was killed
            meanwhile is not among them: all its spans may be in its journal, beside an empty segment.
    """
    for name in layout.segments(node_dir):
        if name.sequence == layout.CLOSING_SEQUENCE:
            continue
        path = node_dir / name.file
        state = path.stat()
        is_old = time.time() - state.st_mtime > waits().segment_age
        if is_done(name, state.st_size) and (name.writer in ended or (is_old and _is_past(node_dir, name))):
            if keep and state.st_size:
                archive(path)
            path.unlink()


def _is_past(node_dir: Path, name: SegmentName) -> bool:
    """Return whether a segment is older than its writer's last two.

    The last two may hold spans of open trajectories, which crash recovery reads.
    """
    state = journal.read_state(layout.journal_of(node_dir, name.writer))
    return state is not None and state.sequence - name.sequence >= 2


def archive(path: Path) -> Path:
    """Compress a whole segment into the archive beside it; return the archived file."""
    from otel_rollout.spool import zstd

    directory = path.parent / layout.ARCHIVE
    directory.mkdir(mode=0o700, exist_ok=True)
    target = directory / (path.name + layout.COMPRESSED_SUFFIX)
    fresh = target.with_suffix(".new")
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: _ZSTD_LEVEL,
        parameter.window_log: _ZSTD_WINDOW_LOG,
        parameter.enable_long_distance_matching: 1,
    }
    with (
        open(path, "rb", opener=open_private) as plain,
        open(fresh, "wb", opener=open_private) as file,
        zstd.ZstdFile(file, "w", options=options) as compressed,
    ):
        shutil.copyfileobj(plain, compressed)
    fresh.replace(target)
    return target


class OtherTargets:
    """The targets in a run's manifest to which this forwarder does not deliver.

    ``otel-rollout forward --to delta`` delivers to one target of a run, or to one that the run does not have.
    The others may be down meanwhile, and get their spans later.

    Args:
        node_dir: a node directory of the run.
        delivered_to: names of the exporters of this forwarder.
    """

    def __init__(self, node_dir: Path, delivered_to: Collection[str]) -> None:
        self._node_dir = node_dir
        manifest = layout.read_manifest(node_dir)
        self._names = [name for name in manifest.exporters if name not in delivered_to] if manifest else []
        self._need_all = any(map(_may_need_all, self._names))
        self._cursors: Mapping[str, Mapping[str, int]] = {}

    def refresh(self) -> None:
        """Read the cursors of the other targets, which only another forwarder moves.

        Raises:
            sqlite3.OperationalError: the ledger cannot be read at present.
        """
        if self._names:
            self._cursors = read_ledger(self._node_dir).cursors

    def are_done_with(self, name: SegmentName, size: int) -> bool:
        """Return whether none of the other targets needs a segment of ``size`` bytes."""
        return not self._need_all and all(
            self._cursors.get(target, {}).get(name.stem, 0) >= size for target in self._names
        )


def _may_need_all(name: str) -> bool:
    """Return whether another program may read an exporter's spans from the segments."""
    try:
        return reads_spool(installed()[name].load())
    except Exception:  # noqa: BLE001 - a foreign package, or none: nobody knows what it needs
        return True
