"""Compare the stored rows of trajectories with what the table's spans say."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rollout.table import views
from otel_rollout.table.query import Engine, dicts_of
from otel_rollout.table.select import literal

if TYPE_CHECKING:
    from deltalake import DeltaTable

_TOLERANCE: Final = 1e-9
"""Relative difference of two sums of fractions that were added in another order."""
_TRACE: Final = "named_trace"

Row = dict[str, Any]


class Difference(NamedTuple):
    """A stored value that differs from the one computed from the spans.

    Attributes:
        trace_id: the trace.
        column: the column that differs; empty if only one side has a row. Then ``stored`` and ``recomputed``
            say whether each side has one.
        stored: the value that queries see.
        recomputed: the value that the spans give.
    """

    trace_id: str
    column: str
    stored: Any
    recomputed: Any


def differences(usual: Engine, computing: Engine, traces: str = "true") -> Iterator[Difference]:
    """Yield the differences between the rows that queries see and those that the spans give, by trace.

    Args:
        usual: reads stored rows.
        computing: reads spans alone, of the same version of the table.
        traces: SQL condition of the compared rows; all by default.

    Raises:
        QueryError: the table cannot be read.
    """
    query = f"SELECT * EXCLUDE (names) FROM {views.TRACE_ROWS} WHERE {traces} ORDER BY {_TRACE}, span_id"  # noqa: S608
    by_key = heapq.merge(_keyed(usual, query, True), _keyed(computing, query, False), key=itemgetter(0))
    for (trace_id, _), found in groupby(by_key, key=itemgetter(0)):
        rows = {is_stored: row for _, is_stored, row in found}
        if len(rows) == 2:
            yield from _of_rows(rows[True], rows[False])
        else:
            yield Difference(trace_id, "", True in rows, False in rows)


def of_sample(table: DeltaTable, number: int) -> Iterator[Difference]:
    """Yield the differences of traces drawn at random; their whole steps are computed from the spans."""
    usual = Engine(table)
    drawn = usual.run(f"SELECT {_TRACE} FROM {views.TRACE_ROWS} ORDER BY random() LIMIT {number}")  # noqa: S608
    listed = ", ".join(map(literal, drawn[_TRACE].to_pylist()))
    return differences(usual, Engine(table, anew=f"trace_id IN ({listed})"), f"{_TRACE} IN ({listed})")


def _keyed(engine: Engine, query: str, is_stored: bool) -> Iterator[tuple[tuple[str, str], bool, Row]]:
    """Yield the rows of a query in the order of their keys."""
    for batch in engine.batches(query):
        for row in dicts_of(batch):
            # A trace without a trajectory comes last, as null does.
            yield (row[_TRACE], row["span_id"] or "~"), is_stored, row


def _of_rows(stored: Row, recomputed: Row) -> Iterator[Difference]:
    for column, value in recomputed.items():
        if not _is_same(stored[column], value):
            yield Difference(recomputed[_TRACE], column, stored[column], value)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):  # in any order
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return bool(one == other)
