"""Compare the stored rows of trajectories with what the table's spans say."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from otel_rollout.table import views
from otel_rollout.table.query import Engine

_TOLERANCE: Final = 1e-9
"""Relative difference of two sums of fractions that were added in another order."""
_ROWS: Final = f"SELECT * EXCLUDE (names) FROM {views.TRACE_ROWS} ORDER BY named_trace, span_id"  # noqa: S608
_TRACE: Final = "named_trace"

Row = dict[str, Any]


class Difference(NamedTuple):
    """A figure that is stored otherwise than the spans say.

    Attributes:
        trace_id: the trace.
        column: the figure of its trajectory; empty if one of both has no row.
        stored: the value that queries see.
        recomputed: the value that the spans give.
    """

    trace_id: str
    column: str
    stored: Any
    recomputed: Any


def differences(usual: Engine, computing: Engine) -> Iterator[Difference]:
    """Yield the differences between the rows that queries see and those that the spans give, by trace.

    Args:
        usual: reads stored rows.
        computing: reads spans alone, of the same version of the table.

    Raises:
        QueryError: the table cannot be read.
    """
    by_key = heapq.merge(_keyed_rows(usual, True), _keyed_rows(computing, False), key=itemgetter(0))
    for (trace_id, _), found in groupby(by_key, key=itemgetter(0)):
        rows = {is_stored: row for _, is_stored, row in found}
        if len(rows) == 2:
            yield from _of_rows(rows[True], rows[False])
        else:
            yield Difference(trace_id, "", True in rows, False in rows)


def _keyed_rows(engine: Engine, is_stored: bool) -> Iterator[tuple[tuple[str, str], bool, Row]]:
    """Yield the rows of an engine in the order of their keys."""
    for batch in engine.batches(_ROWS):
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(batch.schema.names, values, strict=True))
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
