"""Merge small files of a table into sorted ones, and remove files and log entries that nobody needs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rollout.table.data_files import DIRECTORY, DataFile, FileReader, bins, files_of
from otel_rollout.table.errors import TableError
from otel_rollout.table.lease import Lease
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store, vacuum
from otel_rollout.table.trajectory_store import store_rows

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

RETENTION_HOURS: Final = 24
"""Default hours for which replaced files stay, for readers that opened the table before."""
_logger = logging.getLogger(__name__)
Announce = Callable[[str], object]
"""Function that shows a line of progress to a person."""


class Compacted(NamedTuple):
    """What a compaction has done.

    Attributes:
        files_before: files of the table before.
        files_after: files of the table afterwards.
        bytes_before: total bytes of the files before.
        bytes_after: total bytes of the files afterwards.
        removed: files of earlier versions that were removed.
    """

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    removed: int


def compact(
    store: Store,
    retention_hours: int = RETENTION_HOURS,
    say: Announce = print,
    before: Callable[[Lease], object] = lambda _: None,
) -> Compacted:
    """Merge small files, sorted by run and step; then remove old files and log entries.

    Forwarders may append meanwhile. Files that come meanwhile are left for the next compaction.

    Args:
        store: the table.
        retention_hours: hours for which replaced files stay.
        say: gets a line per step.
        before: called first, with the lease, to remove rows. So the rows that are left are rewritten once.

    Raises:
        LeaseHeldError: another process compacts or prunes.
        LeaseLostError: another process has taken over, because this one paused for minutes.
        TableError: the table cannot be read or written.
    """
    with closing(Lease.acquire(store)) as lease:
        before(lease)
        table = store.open()
        files = files_of(store, table)
        merged = _merge(store, table, lease, files, say)
        store_trajectories(store, table, merged, retention_hours)
        removed = clean(store, retention_hours)
        after = files_of(store, store.open())
    return Compacted(len(files), len(after), _size(files), _size(after), removed)


def _merge(store: Store, table: DeltaTable, lease: Lease, files: list[DataFile], say: Announce) -> set[str]:
    """Merge small files of one run and of neighbouring steps; return the paths of all files afterwards."""
    merged: set[str] = {file.path for file in files}
    found = set(merged)
    while True:
        small = (file for file in files_of(store, table) if file.path in merged)
        chosen = [each for each in bins(small) if len(each) > 1]
        if not chosen:
            return found
        reader, merged = FileReader(store, table), set()
        for each in chosen:
            added = reader.rewritten(each)
            lease.commit([file.removal(is_change=False) for file in each], added)
            settle(store, added)
            merged |= {action.path for action in added}
            found -= {file.path for file in each}
            say(f"{len(each)} files became {len(added)}")
        found |= merged
        table = store.open()


def store_trajectories(
    store: Store, table: DeltaTable, files: Collection[str], retention_hours: int, may_merge: bool = True
) -> None:
    """Store the rows of all trajectories. If that fails, queries compute the rows from the spans.

    Args:
        store: the table.
        table: the version from which the rows are computed.
        files: paths of the files that hold the spans of this version now.
        retention_hours: hours for which replaced files stay.
        may_merge: whether to take over rows that are stored already.
    """
    engine = Engine(table, may_merge=may_merge)
    try:
        with TemporaryDirectory() as directory, store.describing():
            store_rows(store, engine.trace_rows(directory), files, retention_hours)
    except (TableError, OSError) as error:
        if engine.is_merged:  # perhaps the stored rows are damaged
            store_trajectories(store, table, files, retention_hours, may_merge=False)
            return
        _logger.warning("what trajectories came to is not stored: %s", error)


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.size for file in files)


def settle(store: Store, added: list[AddAction]) -> None:
    """Remove the log beside each new file, if the table is in a directory.

    In object stores, :func:`clean` removes these logs.
    """
    if store.location.path is not None:
        for action in added:
            shutil.rmtree((store.location.path / action.path).parent / "_delta_log", ignore_errors=True)


def clean(store: Store, retention_hours: int) -> int:
    """Remove files that no version needs any more, and old entries of the log; return the number of files.

    Args:
        store: the table.
        retention_hours: hours for which replaced files stay.
    """
    removed = 0
    try:
        with store.describing():
            removed = vacuum(store.open(), retention_hours)
            table = store.open()
            table.create_checkpoint()
            table.cleanup_metadata()
    except TableError as error:  # if temporary, another commit came first, or an answer was lost
        if not error.is_temporary:
            raise
    if store.location.path is not None:
        for directory in store.location.path.glob(f"{DIRECTORY}/*"):
            with suppress(OSError):  # it has files
                directory.rmdir()
    return removed
