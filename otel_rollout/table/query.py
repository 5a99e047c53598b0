"""Run queries on the rollout table and its views, with the engine that deltalake has (DataFusion)."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.table import schema, trajectory_store, views
from otel_rollout.table.query_errors import in_words
from otel_rollout.table.select import QueryError, literal, query

if TYPE_CHECKING:
    from arro3.core import RecordBatch, RecordBatchReader, Table
    from deltalake import DeltaTable

_TYPES: Final = {
    "text": "VARCHAR",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMP",
}
_SESSION: Final = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.sql_parser.enable_ident_normalization": "true",
    "datafusion.execution.target_partitions": str(max(2, len(os.sched_getaffinity(0)))),
}
"""At least two partitions: with one, DataFusion 55.1 refuses its own plan of view ``newest_scores``."""
_CONDITION: Final = "reward < 0.1 AND tool_errors > 0"
_EXAMPLE: Final = f"SELECT path, reward FROM trajectories WHERE {_CONDITION}"  # noqa: S608
_NOT_SHOWN: Final = "Interval"
"""Arrow type without a Python value; arro3 panics on it."""
_SHARED_KEPT: Final = frozenset({"trajectories"})
"""Further views whose rows a shared engine keeps: so a list of 100,000 trajectories takes milliseconds."""
_SHARED_SESSION: Final = {"datafusion.optimizer.repartition_file_scans": "false"}
"""Rows of a table in memory are read by one thread, which keeps their order."""
_OPEN_PART: Final = "open_part"
"""Schema of the views that compute the rows of open traces."""
_IS_WHOLE: Final = "true"
"""SQL condition of all rows."""
_logger = logging.getLogger(__name__)
_OF_TABLES: Final = ("CREATE ", "DROP ")
"""Beginnings of statements that have no rows: they make or drop a table."""


class Engine:
    """An engine that runs one query at a time on one version of the table and its views.

    Args:
        table: the opened table.
        keep: further views whose rows are kept in memory, for many queries.
        session: further settings of the engine, by their names in DataFusion.
        rows: SQL condition of the rows that the views see; all by default.
        are_trajectories: whether a trace without identity counts as a trajectory, too.
        may_merge: whether to read stored rows of trajectories, if there are any.
        anew: SQL condition of spans whose traces are computed though their rows are stored.
    """

    def __init__(
        self,
        table: DeltaTable,
        keep: frozenset[str] = frozenset(),
        session: Mapping[str, str] = MappingProxyType({}),
        rows: str = _IS_WHOLE,
        are_trajectories: bool = False,
        may_merge: bool = True,
        anew: str = "",
    ) -> None:
        from deltalake import QueryBuilder

        self._table = table
        self._rows = rows
        self._are_trajectories = are_trajectories
        self._kept = views.SMALL | views.SLOW | keep
        self._made: set[str] = set()
        self._sql_of: views.Definition = views.sql_of
        self._anew = anew
        self._may_merge = may_merge and rows == _IS_WHOLE and not are_trajectories
        self._builder = QueryBuilder({**_SESSION, **session})
        self._builder.register(views.STORED_ROWS, table)

    @property
    def is_merged(self) -> bool:
        """Whether the engine reads stored rows of trajectories; known after the first query on them."""
        return self._sql_of is views.of_merged_rows

    def narrowed(
        self, rows: str, in_memory: bool = False, are_trajectories: bool = False, traces: Collection[str] = ()
    ) -> Engine:
        """Return an engine on some rows of the same version of the table, for several queries.

        Args:
            rows: SQL condition of the rows.
            in_memory: whether to read these rows once, with their content, and keep them.
            are_trajectories: whether a trace without identity counts as a trajectory, too.
            traces: ids of traces whose other rows are read, too.
        """
        if traces:
            rows += " OR trace_id IN (SELECT column1 FROM whole_traces)"
        kept = frozenset({views.RECORDED} if in_memory else ())
        narrowed = Engine(self._table, kept, rows=rows, are_trajectories=are_trajectories)
        if traces:  # a list of thousands in the condition would be planned for each view
            narrowed.keep("whole_traces", "VALUES " + ", ".join(f"({literal(trace)})" for trace in traces))
        return narrowed

    def check(self, sql: str) -> str:
        """Plan a text that a user has written, without running it; return the query.

        Raises:
            QueryError: the text is no query, or a wrong one.
        """
        checked = query(sql)
        try:
            self.run(f"EXPLAIN SELECT * FROM (\n{checked}\n)")  # noqa: S608 - parses only if it is a query
        except QueryError:
            self.run(f"EXPLAIN\n{checked}")  # raises with the right place, which the parentheses hide
            raise
        return checked

    def check_condition(self, condition: str, source: str) -> None:
        """Plan a user's condition alone, so that an error names its place in the condition.

        Args:
            condition: the text, which is one expression.
            source: the view or query whose rows have the columns.

        Raises:
            QueryError: the condition is wrong.
        """
        self.run(f"EXPLAIN SELECT * FROM {source} WHERE\n{condition}", example=_CONDITION)  # noqa: S608

    def run(self, sql: str, limit: int | None = None, example: str = _EXAMPLE) -> Table:
        """Run a statement that this package has made or checked.

        Args:
            sql: the statement.
            limit: number of rows after which the engine stops; all by default or with 0.
            example: a correct query or condition, for the error about a wrong one.

        Raises:
            QueryError: the query is wrong, or the table cannot be read.
        """
        try:
            self._make(sql)
            return self._rows_of(sql, limit)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the engine is no Exception
            raise QueryError(in_words(str(error), example)) from error

    def dicts(self, sql: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a statement that this package has made or checked; see :meth:`run`."""
        return dicts_of(self.run(sql, limit))

    def count(self, source: str) -> int:
        """Return the number of rows of an SQL source, which may have a condition after it."""
        return int(self.run(f"SELECT count(*) AS number FROM {source}")["number"][0].as_py())  # noqa: S608

    @property
    def kept_as(self) -> str:
        """Kind of object that keeps a query's rows: a view if stored rows are read anew, else a table."""
        return "VIEW" if self.is_merged and not _SHARED_KEPT & self._kept else "TABLE"

    def keep(self, name: str, sql: str) -> None:
        """Keep the rows of a query that this package has made, for further queries of this engine.

        Args:
            name: name of the table or view that has the rows; no other view has it.
            sql: the query.

        Raises:
            QueryError: the query is wrong, or the table cannot be read.
        """
        if name not in self._made:
            self.run(f"CREATE OR REPLACE {self.kept_as} {name} AS {sql}")
            self._made.add(name)

    def batches(self, sql: str) -> Iterator[RecordBatch]:
        """Yield the rows of a statement that this package has made, while the engine runs it.

        Raises:
            QueryError: the query is wrong, or the table cannot be read.
        """
        try:
            self._make(sql)
            yield from self._builder.execute(sql)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of the engine is no Exception
            raise QueryError(in_words(str(error), _EXAMPLE)) from error

    def columns_of(self, view: str) -> list[str]:
        """Return the names of a view's columns."""
        return list(self.run(f"SELECT * FROM {view} LIMIT 0").column_names)  # noqa: S608

    def definitions(self) -> Iterator[tuple[str, str]]:
        """Return name and SQL of the views for users, for another engine that has the table's rows."""
        plain, names = Engine(self._table, may_merge=False), views.needed_by(f"FROM {', '.join(views.NAMES)}")
        return ((name, plain._definition(name)) for name in names)

    def trace_rows(self, directory: str) -> RecordBatchReader:
        """Return the rows of view ``trace_rows``, as a reader for deltalake.

        The rows are computed in pieces, unless most of them are stored.

        Args:
            directory: holds the computed pieces, because no statement can run while deltalake writes.

        Raises:
            QueryError: the table cannot be read, or the directory cannot be written.
        """
        self._merge()
        if self.is_merged:
            self.run(f"EXPLAIN SELECT * FROM {views.TRACE_ROWS}")  # noqa: S608
            return self._builder.execute(f"SELECT * FROM {views.TRACE_ROWS}")  # noqa: S608
        chosen = enumerate(trajectory_store.pieces(self.run, f"{directory}/units"))
        for view, (number, piece) in itertools.product((views.KNOWN_RUNS, views.TRACE_ROWS), chosen):
            computed = self._compute_open(trajectory_store.opened(self.run, piece), view)
            runs = f"CREATE OR REPLACE TABLE {views.KEPT_RUNS} AS SELECT * FROM {computed}"  # noqa: S608
            rows = f"COPY {computed} TO {literal(f'{directory}/rows/{number}.parquet')} STORED AS PARQUET"
            self._execute(runs if view == views.KNOWN_RUNS else rows)
            self._execute(f"DROP SCHEMA {_OPEN_PART} CASCADE")
        self.run(f"CREATE EXTERNAL TABLE computed STORED AS PARQUET LOCATION {literal(f'{directory}/rows/')}")
        return self._builder.execute("SELECT * FROM computed")

    def write_parquet(self, sql: str, path: Path, limit: int | None = None) -> None:
        """Write the rows of a query that a user has written to a new Parquet file.

        Raises:
            QueryError: the text is no query, a wrong one, or the file cannot be written.
        """
        if limit:
            raise QueryError("A Parquet file gets all rows: write LIMIT in the SELECT, not --limit.")
        self.run(f"COPY (\n{self.check(sql)}\n) TO {literal(str(path.absolute()))} STORED AS PARQUET")

    def _rows_of(self, sql: str, limit: int | None) -> Table:
        """Return the rows of a statement whose views are made."""
        reader = self._builder.execute(sql)
        return _first_rows(reader, limit) if limit else reader.read_all()

    def _make(self, sql: str) -> None:
        """Make the views that a query reads."""
        if not views.OF_STORED_ROWS.isdisjoint(views.needed_by(sql)):
            self._merge()
        for name in views.needed_by(sql, self._sql_of):
            if name not in self._made:
                kind = "TABLE" if name in self._kept else "VIEW"
                self._execute(f"CREATE {kind} {name} AS {self._definition(name)}")
                self._made.add(name)

    def _merge(self) -> None:
        """Use the stored rows of trajectories, and compute only those of open traces, if that is less work.

        If anything is wrong with the stored rows, all rows are computed from the spans.
        """
        if not self._may_merge:
            return
        self._may_merge = False
        try:
            self._merge_stored_rows()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the engine is no Exception
            _logger.debug("the rows of trajectories are computed, not read", exc_info=True)

    def _merge_stored_rows(self) -> None:
        stored = trajectory_store.stored_rows(self._table)
        if stored is None:
            return
        self._builder.register(trajectory_store.STORED, stored.table)
        self._execute(f"SELECT count(DISTINCT validate) FROM {trajectory_store.STORED}")  # noqa: S608 - opens each file
        traces = f"SELECT * FROM {trajectory_store.STORED}"  # noqa: S608
        if recent := " OR ".join(filter(None, (stored.recent, self._anew))):
            self._make(f"FROM {views.RECORDED}")
            opened = trajectory_store.open_traces(self._execute, recent)
            if opened is None:
                return
            computed = self._compute_open(opened)
            traces += f"{trajectory_store.NOT_OPEN} UNION ALL SELECT * FROM {computed}"  # noqa: S608
        self._execute(f"CREATE VIEW {views.MERGED_TRACES} AS {traces}")
        trajectories = f"SELECT * EXCLUDE (named_trace, names, repeated) FROM {views.MERGED_TRACES}"  # noqa: S608
        self._execute(f"CREATE VIEW {views.MERGED} AS {trajectories} WHERE state IS NOT NULL")
        self._sql_of = views.of_merged_rows
        self._kept -= views.SLOW

    def _compute_open(self, rows: str, view: str = views.TRACE_ROWS) -> str:
        """Compute the rows of a view on open traces, with views of their own; return its name."""
        self._execute(f"CREATE SCHEMA {_OPEN_PART}")
        for name in (views.STORED_ROWS, views.KEPT_RUNS, trajectory_store.OPEN):
            self._execute(f"CREATE VIEW {_OPEN_PART}.{name} AS SELECT * FROM {name}")  # noqa: S608
        part = copy.copy(self)
        part._made, part._rows, part._sql_of = set(), rows, views.of_open_rows
        part._kept = views.SMALL if view == views.KNOWN_RUNS else frozenset(views.order()) - views.WIDE
        self._execute(f"SET datafusion.catalog.default_schema = '{_OPEN_PART}'")
        try:
            part._make(f"FROM {view}")
        finally:
            self._execute("SET datafusion.catalog.default_schema = 'public'")
        return f"{_OPEN_PART}.{view}"

    def _definition(self, name: str) -> str:
        if name == views.RECORDED:
            columns = (
                "* REPLACE (CASE WHEN trace_id IS NOT NULL THEN coalesce(validate, false) END AS validate)"
                if self._are_trajectories
                else "*"
            )
            columns += self._missing_columns()
            stored = f"(SELECT {columns} FROM {views.STORED_ROWS}) AS {views.STORED_ROWS}"  # noqa: S608
            return f"{views.sql_of(name).replace(views.STORED_ROWS, stored)} WHERE {self._rows}"
        # Only spans that have several rows have to be compared.
        if name == views.SPANS and not self.count(views.REPEATED):
            return f"SELECT * FROM {views.RECORDED}"  # noqa: S608
        # Only if an engine's requests are recorded, what they took has to be computed.
        request = f"(SELECT 1 FROM {views.RECORDED} WHERE name = 'llm_request' LIMIT 1) AS one"  # noqa: S608
        if name == views.REQUESTS and not self.count(request):
            return f"SELECT * FROM ({views.sql_of(name)}) AS no_requests WHERE false"  # noqa: S608
        return self._sql_of(name)

    def _missing_columns(self) -> str:
        """Return the columns that an older table lacks, as nulls."""
        present = {field.name for field in self._table.schema().fields}
        missing = [column for column in schema.COLUMNS if column.name not in present]
        return "".join(f", CAST(NULL AS {_TYPES[column.type_]}) AS {column.name}" for column in missing)

    def _execute(self, sql: str) -> Table:
        return self._builder.execute(sql).read_all()


def dicts_of(table: Table | RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table as dicts.

    Raises:
        QueryError: a column has a type without a Python value.
    """
    names: list[str] = table.column_names
    for field in map(table.schema.field, names):
        if _NOT_SHOWN in str(field.type):
            raise QueryError(f"Column {field.name!r} is an interval: write CAST(… AS VARCHAR) to show it.")
    columns = [column.to_pylist() for column in table.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _first_rows(reader: RecordBatchReader, limit: int) -> Table:
    """Read the first rows of a query, in its order."""
    from arro3.core import Table

    batches, left = [], limit
    for batch in reader:
        batches.append(batch.slice(0, min(left, batch.num_rows)))
        left -= batches[-1].num_rows
        if not left:
            break
    return Table.from_batches(batches, schema=reader.schema)


class SharedEngine(Engine):
    """An engine that several threads may use at once.

    A thread that reads rows holds the GIL while the engine computes them, so no other thread runs. A
    statement that makes a table does not. So each query makes a table, whose rows are read at once.

    Args:
        table: the opened table.
    """

    def __init__(self, table: DeltaTable) -> None:
        super().__init__(table, keep=_SHARED_KEPT, session=_SHARED_SESSION)
        self._making = threading.RLock()
        self._keeping = threading.Lock()
        self._numbers = itertools.count()
        self._merge()  # it changes the session, which threads share

    def keep(self, name: str, sql: str) -> None:
        """Keep the rows of a query; see :meth:`Engine.keep`. Two threads do not compute them twice."""
        with self._keeping:
            super().keep(name, sql)

    def _rows_of(self, sql: str, limit: int | None) -> Table:
        if sql.startswith(_OF_TABLES):
            return super()._rows_of(sql, limit)
        answer = f"answer_{next(self._numbers)}"
        self._execute(f"CREATE TABLE {answer} AS (\n{sql}\n)")
        try:
            return super()._rows_of(f"SELECT * FROM {answer}", limit)  # noqa: S608
        finally:
            self._execute(f"DROP TABLE {answer}")

    def _make(self, sql: str) -> None:
        if self._made.issuperset(views.needed_by(sql, self._sql_of)):  # usual, also while a thread makes one
            return
        with self._making:
            super()._make(sql)
