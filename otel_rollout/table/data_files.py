"""Read the rows of some of a table's files, and write them into new files."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rollout.exporting.batching import batches
from otel_rollout.table import schema
from otel_rollout.table.errors import TableError
from otel_rollout.table.select import literal
from otel_rollout.table.store import Store, writer_properties

if TYPE_CHECKING:
    from arro3.core import Table
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

DIRECTORY: Final = "compacted"
"""Directory of the table with the files that compaction has written."""
_ORDER: Final = ("run_id", "validate", "step", "sample_index", "rollout_n", "trace_id", "start_ns")
"""Columns by which the rows of a written file are sorted."""
GROUP_ROWS: Final = 100_000
"""Maximum rows of a row group. A query skips the groups that it does not need."""
_BIN_BYTES: Final = 16 << 20
"""Maximum bytes of the files whose rows are sorted together. Memory holds the decoded rows three times."""
_BIN_FILES: Final = 100
_STEPS: Final = "steps_of_traces"
_IS_ROOT: Final = "is_root AND validate IS NOT NULL"
_STEP_OF_TRACE: Final = (
    f"SELECT trace_id AS of_trace, CASE WHEN bool_or({_IS_ROOT}) THEN max(step) FILTER (WHERE {_IS_ROOT}) "  # noqa: S608
    "ELSE min(step) END AS step_of_trace FROM whole_table GROUP BY trace_id "
    "HAVING count(step) BETWEEN 1 AND count(*) - 1 OR min(step) < max(step)"
)
"""SQL of the step of each trajectory with rows of another step or of none, such as a score by id."""
_SESSION: Final = {"datafusion.execution.parquet.schema_force_view_types": "false"}


class DataFile(NamedTuple):
    """A file of a table.

    Attributes:
        path: path inside the table.
        size: its bytes.
        least: lower bounds of columns, by name.
        most: upper bounds.
    """

    path: str
    size: int
    least: dict[str, Any]
    most: dict[str, Any]

    @property
    def order(self) -> tuple[str, int, int]:
        """Key that sorts files of one run and of neighbouring steps together."""
        step, start = self.least.get("step"), self.least.get("start_ns")
        return self.least.get("run_id") or "", -1 if step is None else step, start or 0

    def removal(self, is_change: bool) -> RemoveAction:
        """Return the entry of the log that removes the file.

        Args:
            is_change: whether the table loses the file's rows; False if other files have them now.
        """
        from deltalake.transaction import RemoveAction

        return RemoveAction(self.path, is_change, time.time_ns() // 1_000_000, self.size, {})


def files_of(store: Store, table: DeltaTable) -> list[DataFile]:
    """Return the files of a table's version.

    Raises:
        TableError: the files alone do not say which rows the table has.
    """
    with store.describing():
        protocol = table.protocol()
        if protocol.min_reader_version > 1 or table.metadata().partition_columns:
            raise TableError(
                f"Another program has given the table at {store.location.uri} features or partitions that "
                "otel-rollout does not write: use that program to compact or prune it."
            )
        found = table.get_add_actions()
        columns = [found.column(name).to_pylist() for name in ("path", "size_bytes", "min", "max")]
    return [
        DataFile(path, size, least or {}, most or {})
        for path, size, least, most in zip(*columns, strict=True)
    ]


def bins(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Group files by run and neighbouring steps, in groups as large as memory allows."""
    in_order = sorted(files, key=lambda file: file.order)
    return batches(in_order, lambda file: file.size, _BIN_BYTES, _BIN_FILES)


class FileReader:
    """Reads and rewrites some files of a table's version.

    Args:
        store: the table.
        table: the version.
        has_steps: whether rows have a further column ``of_step``, the step of their trajectory.
    """

    def __init__(self, store: Store, table: DeltaTable, has_steps: bool = False) -> None:
        from deltalake import QueryBuilder

        self._store = store
        self._names = [field.name for field in table.schema().fields]
        self._statistics = table.metadata().configuration.get(schema.STATISTICS_PROPERTY)
        self._builder = QueryBuilder(_SESSION)
        self._builder.register("whole_table", table)  # the engine gets the store's credentials with the table
        self._has_steps = has_steps
        if has_steps:
            with store.describing():
                self._builder.execute(f"CREATE TABLE {_STEPS} AS {_STEP_OF_TRACE}").read_all()

    def rewritten(self, files: Sequence[DataFile], condition: str = "true") -> list[AddAction]:
        """Write the rows of files into new files, sorted; return the log entries that add the new files.

        Args:
            files: the files.
            condition: SQL condition of the rows to write.
        """
        with self._store.describing():
            columns, rows = self._rows(files)
            order = ", ".join(f"{name} NULLS FIRST" for name in _ORDER if name in columns)
            query = f"SELECT {', '.join(columns)} FROM ({rows}) WHERE {condition} ORDER BY {order}"  # noqa: S608
            return self._written(query)

    def _written(self, query: str) -> list[AddAction]:
        """Write a query's rows as a separate table, so that deltalake reports the files' sizes and bounds."""
        from deltalake import DeltaTable, write_deltalake

        directory = f"{DIRECTORY}/{secrets.token_hex(16)}"
        address = f"{self._store.location.uri}/{directory}"
        try:
            write_deltalake(
                address,
                self._builder.execute(query),
                mode="error",
                configuration={schema.STATISTICS_PROPERTY: self._statistics} if self._statistics else None,
                storage_options=self._store.options,
                writer_properties=writer_properties(GROUP_ROWS),
            )
        except BaseException:
            if self._store.location.path is not None:  # a full disk gets its room back
                shutil.rmtree(self._store.location.path / directory, ignore_errors=True)
            raise
        written = DeltaTable(address, storage_options=self._store.options)
        return list(_additions(written.get_add_actions(), directory))

    def select(self, files: Sequence[DataFile], columns: str, groups: str) -> list[dict[str, Any]]:
        """Run ``SELECT columns … GROUP BY file, groups``; column ``file`` is the file's index."""

        with self._store.describing():
            _, rows = self._rows(files)
            query = f"SELECT {columns} FROM ({rows}) GROUP BY file, {groups}"  # noqa: S608
            return list(self._builder.execute(query).read_all().to_struct_array().to_pylist())

    def _rows(self, files: Sequence[DataFile]) -> tuple[list[str], str]:
        """Return the columns of files, and the SELECT of all their rows."""
        present = [self._columns(index, file) for index, file in enumerate(files)]
        columns = [name for name in self._names if any(name in names for names in present)]
        listed = (
            ", ".join(name if name in names else f"NULL AS {name}" for name in columns) for names in present
        )
        selects = [f"SELECT {names}, {i} AS file FROM file_{i}" for i, names in enumerate(listed)]  # noqa: S608
        rows = _union(selects)
        if self._has_steps:
            step = "CASE WHEN of_trace IS NULL THEN step ELSE step_of_trace END AS of_step"
            rows = f"SELECT found.*, {step} FROM ({rows}) AS found LEFT JOIN {_STEPS} ON trace_id = of_trace"  # noqa: S608
        return columns, rows

    def _columns(self, index: int, file: DataFile) -> frozenset[str]:
        """Make a file readable as a table; return its columns."""
        name, path = f"file_{index}", literal(f"{self._store.location.uri}/{file.path}")
        create = f"CREATE OR REPLACE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION {path}"
        self._builder.execute(create).read_all()
        return frozenset(self._builder.execute(f"SELECT * FROM {name} LIMIT 0").schema.names)  # noqa: S608


def _union(selects: Sequence[str]) -> str:
    """Join SELECTs as a balanced tree: the engine's time grows with the square of the tree's depth."""
    if len(selects) == 1:
        return selects[0]
    middle = len(selects) // 2
    return f"({_union(selects[:middle])}) UNION ALL ({_union(selects[middle:])})"


def _additions(files: Table, directory: str) -> Iterator[AddAction]:
    """Yield the entries of the log for written files; files without rows are left out."""
    from deltalake.transaction import AddAction

    names = ("path", "size_bytes", "num_records", "min", "max", "null_count")
    now = time.time_ns() // 1_000_000
    for path, size, rows, *bounds in zip(*(files.column(name).to_pylist() for name in names), strict=True):
        if not rows:
            continue
        stated = dict(zip(("minValues", "maxValues", "nullCount"), map(_plain, bounds), strict=True))
        statistics = json.dumps({"numRecords": rows, **stated})
        yield AddAction(f"{directory}/{path}", size, {}, now, data_change=False, stats=statistics)


def _plain(bounds: dict[str, Any] | None) -> dict[str, Any]:
    """Return known bounds as values of JSON."""
    return {
        name: f"{value:%Y-%m-%dT%H:%M:%S.%fZ}" if isinstance(value, datetime) else value
        for name, value in (bounds or {}).items()
        if value is not None
    }
