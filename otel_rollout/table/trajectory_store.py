"""Store the rows of trajectories, and find the traces whose rows later spans may change.

The rows are in a Delta table below the rollout table. The commit that wrote them names the data files from
which they were computed, and a digest of the views. If one of these files is gone, or the digest is another
one, the rows do not count. So rows that count are exact.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rollout.table import schema, views
from otel_rollout.table.data_files import GROUP_ROWS, files_of
from otel_rollout.table.errors import TableError
from otel_rollout.table.location import location_of
from otel_rollout.table.select import literal
from otel_rollout.table.store import Store, vacuum, writer_properties

if TYPE_CHECKING:
    from arro3.core import RecordBatchReader, Table
    from deltalake import DeltaTable

DIRECTORY: Final = "_trajectories"
"""Directory of the stored rows, inside the rollout table's. Vacuum skips names that begin with ``_``."""
STORED: Final = "stored_traces"
"""Name of the stored rows in an engine."""
OPEN: Final = "open_traces"
"""Name of the open traces, whose rows are computed, in an engine."""
_NOT_IN: Final = (
    " WHERE NOT EXISTS (SELECT trace_id FROM {traces} AS other WHERE other.trace_id = named_trace)"
)
"""Condition of the stored rows of other traces. With NOT IN, an engine would hold these rows in memory."""
NOT_OPEN: Final = _NOT_IN.format(traces=OPEN)
"""Condition of the stored rows of traces that are not open."""
_COVERED: Final = "rollout.trajectories.files"
_DEFINITIONS: Final = "rollout.trajectories.definitions"
_VACUUM: Final = "VACUUM"
"""Beginning of the operations that change no row."""
_SEARCHED: Final = 20
"""Newest commits among which the one that wrote the rows is looked for. A query reads each commit's entry."""
_MOST_OPEN: Final = 0.25
"""Maximum share of the table that is open. Above it, computing all rows is faster."""
_PIECE_SPANS: Final = 400_000
"""Spans whose traces are computed together. A piece has more if its groups cannot be told apart."""
_MIXED: Final = "SELECT count(*) FROM all_names WHERE beginning LIKE '%-'"
"""Query that counts the group names which a trajectory without a step may have too."""
_RANGES: Final = 16
"""Maximum ranges of a condition; more of them cost more than they save."""


class StoredRows(NamedTuple):
    """The stored rows that count for a version of the table.

    Attributes:
        table: has the rows.
        recent: SQL condition that holds for all rows of the other files; empty without such files.
        covered: paths of the files from which the rows were computed.
    """

    table: DeltaTable
    recent: str
    covered: frozenset[str]


def stored_rows(table: DeltaTable) -> StoredRows | None:
    """Return the stored rows that count for a table's version; None without any."""
    with suppress(TableError, ValueError):
        store = Store(location_of(table.table_uri))
        if store.location.path is not None and not (store.location.path / DIRECTORY).is_dir():
            return None
        with store.describing():
            return _counting(store, table)
    return None


def _counting(store: Store, table: DeltaTable) -> StoredRows | None:
    from deltalake import DeltaTable

    found = DeltaTable(_address(store), storage_options=store.options)
    commits = (each for each in found.history(_SEARCHED) if not each["operation"].startswith(_VACUUM))
    written = next(commits, {})
    covered = frozenset(json.loads(written.get(_COVERED, "[null]")))
    files = files_of(store, table)
    if written.get(_DEFINITIONS) != _definitions() or not covered.issubset(file.path for file in files):
        return None
    recent = [file for file in files if file.path not in covered]
    bounds = [(file.least["start_ns"], file.most["start_ns"]) for file in recent]
    is_much = sum(file.size for file in recent) > _MOST_OPEN * sum(file.size for file in files)
    if is_much:
        return None
    return StoredRows(found, _within("start_ns", bounds) if recent else "", covered)


def store_rows(store: Store, rows: RecordBatchReader, covered: Collection[str], retention_hours: int) -> None:
    """Store the rows of all traces in place of earlier ones.

    Args:
        store: the rollout table.
        rows: of view ``trace_rows``.
        covered: paths of the files from which the rows were computed.
        retention_hours: hours for which the replaced rows stay for those who read them.

    Raises:
        TableError: the rows cannot be written.
    """
    from deltalake import CommitProperties, DeltaTable, write_deltalake

    described = {_COVERED: json.dumps(sorted(covered)), _DEFINITIONS: _definitions()}
    with store.describing():
        write_deltalake(
            _address(store),
            rows,
            mode="overwrite",
            schema_mode="overwrite",
            storage_options=store.options,
            writer_properties=writer_properties(GROUP_ROWS),
            commit_properties=CommitProperties(custom_metadata=described),
        )
        vacuum(DeltaTable(_address(store), storage_options=store.options), retention_hours)


def open_traces(ask: Callable[[str], Table], recent: str) -> str | None:
    """Make the table of the open traces; return the SQL condition of their rows, or None for too many.

    The engine holds the first side of a join in memory: so the names of all traces are the second side.

    A trace is open in three cases:

    - It has a recent row.
    - It names a run that may get its first trajectory or lose its last one. This decides which trajectories
      the run's scores by identity fit.
    - It names a step that an open trace names, because scores by identity name steps.

    Args:
        ask: runs a statement.
        recent: see :class:`StoredRows`.
    """
    names = "trace_id, run_id, project, experiment, step, beginning, may_be_trajectory"
    parts = ", ".join(f"named['{name.strip()}'] AS {name.strip()}" for name in names.split(",")[1:])
    changed = "(SELECT DISTINCT trace_id FROM recent_names)"
    ask(f"CREATE TABLE recent_names AS {views.sql_of(views.SPAN_NAMES)} WHERE {recent}")
    ask(
        f"CREATE VIEW all_names AS SELECT {names} FROM recent_names UNION ALL SELECT trace_id, {parts} "  # noqa: S608
        f"FROM (SELECT named_trace AS trace_id, unnest(names) AS named FROM {STORED}) AS of_stored"
    )
    ask(
        f"CREATE TABLE {OPEN} AS SELECT trace_id FROM recent_names UNION SELECT trace_id FROM ("  # noqa: S608
        f"SELECT run_id FROM {changed} AS changed JOIN all_names USING (trace_id) WHERE may_be_trajectory "
        f"EXCEPT {_runs_without(changed)}) AS appeared JOIN all_names USING (run_id)"
    )
    (stored,), found = _values(ask(f"SELECT count(*) AS number FROM {STORED}")), -1  # noqa: S608
    while found < (found := next(_values(ask(f"SELECT count(*) AS number FROM {OPEN}")))):  # noqa: S608
        if found > _MOST_OPEN * stored:
            return None
        ask(
            f"CREATE OR REPLACE TABLE {OPEN} AS SELECT trace_id FROM {OPEN} UNION "  # noqa: S608
            "SELECT trace_id FROM (SELECT DISTINCT project, experiment, beginning "
            f"FROM {OPEN} JOIN all_names USING (trace_id)"
            ") AS opened JOIN all_names USING (project, experiment, beginning)"
        )
    if next(_values(ask(_MIXED))):
        return None
    ask(f"CREATE TABLE {views.KEPT_RUNS} AS {_runs_without(OPEN)}")
    names = f"{OPEN} JOIN all_names USING (trace_id)"
    steps = ask(f"SELECT DISTINCT step FROM {names} WHERE step IS NOT NULL")  # noqa: S608
    return _rows_of_open((step, step) for step in _values(steps))


def pieces(ask: Callable[[str], Table], directory: str) -> Iterator[str]:
    """Make the table ``units``, which has a row for each trace; yield the condition of each piece of it.

    Scores by identity tie the traces of a group together. So all traces that name a step are in one piece. If
    the step has too many spans, only the traces of a group are sure to be in one piece. A trace that names
    several steps joins these steps, and all steps between them. The table is in files. Each statement
    computes its rows for a part of the traces, so that memory is bounded.

    Args:
        ask: runs a statement.
        directory: gets the files of the table.
    """
    ask(f"CREATE TABLE {views.KEPT_RUNS} AS SELECT '' AS run_id WHERE false")
    large = ask(f"SELECT place FROM placed_spans GROUP BY place HAVING count(*) > {_PIECE_SPANS}")  # noqa: S608
    listed = ", ".join(map(literal, filter(None, _values(large)))) or "NULL"
    unit = f"place || '/' || CASE WHEN place IN ({listed}) THEN left(md5(member), 2) ELSE '' END"
    digits = "ascii(right(trace_id, 1)) + 10 * ascii(substr(trace_id, 31, 1))"
    parts = next(_values(ask("SELECT count(*) AS number FROM placed_spans"))) // (20 * _PIECE_SPANS) + 1
    for part in range(parts):
        ask(
            f"COPY (SELECT trace_id, coalesce(min({unit}), left(trace_id, 2)) AS first, max({unit}) AS last, "  # noqa: S608
            "min(step) AS least, max(step) AS most, count(*) AS spans FROM placed_spans "
            f"WHERE ({digits}) % {parts} = {part} GROUP BY trace_id) "
            f"TO {literal(f'{directory}/{part}.parquet')} STORED AS PARQUET"
        )
    ask(f"CREATE EXTERNAL TABLE units STORED AS PARQUET LOCATION {literal(f'{directory}/')}")
    sizes = ask("SELECT first, max(last), sum(spans) FROM units GROUP BY first ORDER BY first")
    begin, end, size = "", "", 0
    for first, last, spans in zip(*(column.to_pylist() for column in sizes.columns), strict=True):
        if size >= _PIECE_SPANS and first > end:
            yield f"first BETWEEN {literal(begin)} AND {literal(end)}"
            begin, size = first, 0
        end, size = max(end, first, last or ""), size + spans
    yield f"first BETWEEN {literal(begin)} AND {literal(end)}"


def opened(ask: Callable[[str], Table], piece: str) -> str:
    """Make the table of open traces from the traces of a piece; return the SQL condition of their rows."""
    ask(f"CREATE OR REPLACE TABLE {OPEN} AS SELECT trace_id FROM units WHERE {piece}")  # noqa: S608
    steps = ask(f"SELECT DISTINCT least, most FROM units WHERE {piece} AND least IS NOT NULL")  # noqa: S608
    return _rows_of_open(zip(*(column.to_pylist() for column in steps.columns), strict=True))


def _rows_of_open(steps: Iterable[tuple[int, int]]) -> str:
    """Return the SQL condition of the rows of the open traces.

    Args:
        steps: ranges that contain all steps which these rows name.
    """
    is_open = f"trace_id IN (SELECT trace_id FROM {OPEN})"  # noqa: S608
    within = _within("step", steps)
    return f"({within} OR step IS NULL) AND {is_open}" if within else is_open


def _runs_without(traces: str) -> str:
    """Return the query of the runs that have a stored trajectory in other traces."""
    others = _NOT_IN.format(traces=traces)
    return f"SELECT DISTINCT coalesce(run_id, '') AS run_id FROM {STORED}{others} AND state IS NOT NULL"  # noqa: S608


def _address(store: Store) -> str:
    return f"{store.location.uri}/{DIRECTORY}"


def _values(found: Table) -> Iterator[Any]:
    return iter(found.column(0).to_pylist())


def _within(column: str, ranges: Iterable[tuple[int, int]]) -> str:
    """Return the condition that a column is in one of several ranges, or in a small gap between two."""
    ordered = sorted(ranges)
    ends = list(itertools.accumulate((end for _, end in ordered), max))
    gaps = ((ordered[place][0] - end, place) for place, end in enumerate(ends[:-1], 1))
    cuts = sorted(place for gap, place in heapq.nlargest(_RANGES - 1, gaps) if gap > 0)
    parts = zip([0, *cuts], [*cuts, len(ordered)], strict=True)
    listed = " OR ".join(f"{column} BETWEEN {ordered[i][0]} AND {ends[j - 1]}" for i, j in parts if ordered)
    return f"({listed})" if listed else ""


def _definitions() -> str:
    """Return a digest of what the rows depend on besides the spans: the views and the schema's version."""
    texts = [*map(views.sql_of, views.order()), str(schema.SCHEMA_VERSION)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
