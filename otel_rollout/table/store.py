"""Open, begin and extend a table at an address."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.base.waits import waits
from otel_rollout.table import errors, schema
from otel_rollout.table.errors import NO_TABLE, IncompleteListingError, NoTableError, TableError
from otel_rollout.table.location import Location

if TYPE_CHECKING:
    from arro3.core import RecordBatch
    from deltalake import DeltaTable

_COMMIT_RETRIES: Final = 100
"""Times that deltalake tries one commit again while other writers commit."""
_ATTEMPTS: Final = 5
"""Attempts to open a table that changes, to begin one, or to add columns, beside other writers."""
_COMPRESSION_LEVEL: Final = 3
_MAX_PAGE_BYTES: Final = 4 << 20
"""Maximum bytes of a column that are compressed together: conversations repeat what other rows have."""
_LOG_RETENTION: Final = "interval 2 days"
"""Age of a log entry that compaction may remove: forwarders of eight nodes write 70,000 entries a day."""
_UNKNOWN_HOURS: Final = 7 * 24
"""Hours after which a file that belongs to no version of a table is removed: its writer was killed."""
_PARQUET_SUFFIX: Final = ".parquet"
_LOG: Final = "_delta_log"
_logger = logging.getLogger(__name__)


class Store:
    """A rollout table, which may not exist yet.

    Each method opens the table anew, because another process may have written or removed it.

    Args:
        location: the table's address.

    Attributes:
        options: deltalake's storage options.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.options = location.storage_options(os.environ)
        self._was_seen = False

    def open(self) -> DeltaTable:
        """Open the table.

        Raises:
            TableError: there is no table, or it is not readable, not a rollout table, newer or damaged.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._opened()
            except IncompleteListingError:
                time.sleep(random.SystemRandom().uniform(0, waits().table_retry))
        return self._opened()

    def opened_or_begun(self) -> DeltaTable:
        """Open the table; begin it if it is missing.

        Raises:
            TableError: the table cannot be read, or cannot be begun.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self.open()
            except NoTableError:
                if self._was_seen:
                    _logger.warning("the table at %s was removed; it is begun anew", self.location.uri)
                    self._was_seen = False
            try:
                self._begin()
            except TableError:  # another writer may have begun it
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(random.SystemRandom().uniform(0, waits().table_retry))
        return self.open()

    def _opened(self) -> DeltaTable:
        with self.describing():
            from deltalake import DeltaTable

            self._check_path()
            table = DeltaTable(self.location.uri, storage_options=self.options)
            self._check(table)
            self._was_seen = True
            return table

    def committed(self, writer: str) -> int | None:
        """Return the number of a writer's newest batch in the table; None without any.

        Raises:
            TableError: the table cannot be read. A missing table is no error.
        """
        try:
            table = self.open()
        except NoTableError:
            return None
        with self.describing():
            return table.transaction_version(writer)

    def append(self, batches: Iterable[RecordBatch], writer: str, number: int) -> None:
        """Append rows in one commit, which also holds the writer's number; begin the table if it is missing.

        Args:
            batches: with all columns of the table.
            writer: id of the writer.
            number: number of the writer's batch.

        Raises:
            TableError: the rows were not added, or it is unknown whether they were; :meth:`committed` tells.
        """
        table = self.opened_or_begun()
        from arro3.core import Table
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction, write_deltalake

        known = [field.name for field in table.schema().fields]
        has_all = known == list(schema.NAMES)
        rows = Table.from_batches(list(batches), schema=schema.arrow_schema())
        if not has_all:
            rows = rows.with_schema(schema.arrow_schema(without_meaning=frozenset(known)))
        with self._describing_changes_of(table):
            write_deltalake(
                table,
                rows,
                mode="append",
                schema_mode=None if has_all else "merge",
                writer_properties=writer_properties(),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(app_id=writer, version=number)],
                    max_commit_retries=_COMMIT_RETRIES,
                ),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )

    @contextmanager
    def _describing_changes_of(self, table: DeltaTable) -> Iterator[None]:
        """Turn errors of a commit into a ``TableError``, temporary if the table was removed meanwhile.

        deltalake reports a removal in many ways, as damage too. The next attempt opens the table first, so it
        finds a table that is in fact damaged.
        """
        version = table.version()
        try:
            with self.describing():
                yield
        except TableError as error:
            if error.is_temporary or self._is_intact(version):
                raise
            raise TableError(str(error), is_temporary=True) from error

    def _is_intact(self, version: int) -> bool:
        """Return whether the table can be opened and has reached a version."""
        try:
            with self.describing():
                return self.open().version() >= version
        except TableError:
            return False

    def _begin(self) -> None:
        """Begin an empty table; a new directory is readable for this user only."""
        with self.describing():
            from deltalake import DeltaTable

            if self.location.path is not None:
                self.location.path.parent.mkdir(parents=True, exist_ok=True)
                self.location.path.mkdir(mode=0o700, exist_ok=True)
            DeltaTable.create(
                self.location.uri,
                schema.arrow_schema(),
                mode="error",
                name="rollouts",
                configuration={
                    schema.VERSION_PROPERTY: str(schema.SCHEMA_VERSION),
                    schema.STATISTICS_PROPERTY: ",".join(schema.STATISTICS),
                    "delta.logRetentionDuration": _LOG_RETENTION,
                },
                storage_options=self.options,
                raise_if_key_not_exists=False,  # the version is a property that Delta does not define
            )

    def _check_path(self) -> None:
        """Check that a local path can be a table's.

        Raises:
            TableError: the path is a file, cannot be read, or is a directory with other files.
        """
        path = self.location.path
        if path is None or not os.path.lexists(path):
            return
        if path.is_file():
            raise TableError(f"{path} is a file, and no table: name a directory.")
        log = path / _LOG
        try:
            os.scandir(log if os.path.lexists(log) else path).close()
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError)  # perhaps removed just now
            message = f"{error.filename} cannot be read: {error.strerror}."
            raise TableError(message, is_temporary=is_gone) from error
        if os.path.lexists(log):
            return
        others = [entry for entry in os.listdir(path) if _PARQUET_SUFFIX not in entry]
        if _LOG in others:  # another process has begun the table meanwhile
            return
        if others:
            raise TableError(
                f"{path} holds {sorted(others)[0]!r} and no table: name a table's directory; a new table "
                "needs one that is empty or missing."
            )
        raise NoTableError(NO_TABLE.format(self.location.with_origin))

    def _check(self, table: DeltaTable) -> None:
        """Check that a table is a rollout table that this software can read and write."""
        from deltalake import Schema as DeltaSchema

        uri = self.location.uri
        version = table.metadata().configuration.get(schema.VERSION_PROPERTY) or ""
        known = {field.name: field.type for field in table.schema().fields}
        if not version.isdecimal() or not {"trace_id", "span_id"} <= known.keys():
            raise TableError(f"The table at {uri} is no rollout table: name another address.")
        if int(version) > schema.SCHEMA_VERSION:
            raise TableError(
                f"The table at {uri} has version {version} of the columns, and this software knows version "
                f"{schema.SCHEMA_VERSION}: update otel-rollout."
            )
        for field in DeltaSchema.from_arrow(schema.arrow_schema()).fields:
            if field.name in known and known[field.name] != field.type:
                raise TableError(
                    f"Column {field.name} of the table at {uri} has type {known[field.name]}, not "
                    f"{field.type}: move the table away."
                )

    @contextmanager
    def describing(self) -> Iterator[None]:
        """Turn errors of deltalake into a ``TableError``, also its panics, which are no ``Exception``."""
        try:
            yield
        except (TableError, KeyboardInterrupt, SystemExit, ModuleNotFoundError):
            raise
        except BaseException as error:
            raise errors.described(error, self.location) from error


def writer_properties(max_group_rows: int | None = None) -> Any:
    """Return how deltalake compresses the rows of a file.

    Args:
        max_group_rows: maximum rows of a row group; deltalake's default without it.
    """
    from deltalake import WriterProperties

    return WriterProperties(
        compression="ZSTD",
        compression_level=_COMPRESSION_LEVEL,
        data_page_size_limit=_MAX_PAGE_BYTES,
        max_row_group_size=max_group_rows,
    )


def vacuum(table: DeltaTable, retention_hours: int) -> int:
    """Remove files that no version of a table needs any more; return their number.

    Args:
        table: the table.
        retention_hours: hours for which replaced files stay.
    """
    removed = table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False)
    return len(removed) + len(table.vacuum(_UNKNOWN_HOURS, dry_run=False, full=True))
