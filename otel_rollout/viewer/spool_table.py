"""Put the spans of a spool into a table for a moment, so that the table's views can be asked."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from otel_rollout.exporting.batching import chunks
from otel_rollout.spool import segments
from otel_rollout.spool.private_files import open_private
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store
from otel_rollout.viewer.errors import ViewerError
from otel_rollout.viewer.spool_source import SpoolSource

_ROWS: Final = 20_000
"""Maximum rows of a commit."""
_PREFIX: Final = "otel-rollout-query-"
_LOCK: Final = "lock"
"""File that the process locks while it uses the directory."""
_MINIMUM_AGE: Final = 60.0
"""Seconds after which a directory without lock is abandoned: its process has been killed."""


@contextmanager
def table_of(source: SpoolSource) -> Iterator[Store]:
    """Yield a table of a spool's spans, in a private temporary directory that is removed afterwards.

    A process that is killed leaves its directory behind; the next call removes it.

    Raises:
        ViewerError: the spool holds no span.
    """
    _remove_abandoned()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as directory,
        open(Path(directory) / _LOCK, "wb", opener=open_private) as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = Store(location_of(str(Path(directory) / "table")))
        if not fill(store, source):
            raise ViewerError(f"There is no trajectory in {source.location}.")
        yield store


def _remove_abandoned() -> None:
    """Remove the directories of this user's processes that were killed."""
    for directory in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        try:
            state = directory.lstat()
        except OSError:  # removed just now
            continue
        is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
        is_old = time.time() - state.st_mtime > _MINIMUM_AGE
        if is_ours and is_old and not segments.is_being_written(directory / _LOCK):
            shutil.rmtree(directory, ignore_errors=True)


def fill(store: Store, source: SpoolSource) -> int:
    """Append the spans of a spool to a table; return the number of commits."""
    number = 0
    for number, spans in enumerate(chunks(source.every_span(), _ROWS), start=1):
        store.append([batch_of(rows_of(spans))], "spool", number)
    return number
