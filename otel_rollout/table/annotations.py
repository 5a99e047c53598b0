"""Append scores of trajectories to a table, from a DataFrame."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.suggest import did_you_mean
from otel_rollout.exporting.batching import chunks
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.origin import Resource, SpanScope
from otel_rollout.otlp.span import Span, with_utf8
from otel_rollout.table.errors import TableError
from otel_rollout.table.filters import equals
from otel_rollout.table.query import Engine, dicts_of
from otel_rollout.table.rows import IN_TEXT, batch_of, row_of
from otel_rollout.table.store import Store

_TRACE_ID: Final = "trace_id"
_TRACES_AT_ONCE: Final = 500
"""Trajectories that are looked up with one query."""
_ROWS_AT_ONCE: Final = 5_000
_SHOWN_CHARS: Final = 40
"""Maximum characters of a name in an error."""
_IDENTITY: Final = {
    semconv.PROJECT_NAME: "project",
    semconv.EXPERIMENT_NAME: "experiment",
    semconv.STEP: "step",
    semconv.SAMPLE_INDEX: "sample_index",
    semconv.ROLLOUT_N: "rollout_n",
    semconv.VALIDATE: "validate",
}
"""Attribute → column of a trajectory's identity."""


class GivenScore(NamedTuple):
    """A score of a trajectory.

    Attributes:
        trace_id: id of the trajectory's trace.
        name: the score's name.
        value: a finite or infinite number, a bool or a label.
        comment: the reason, in words.
    """

    trace_id: str
    name: str
    value: evaluations.Value
    comment: str | None


def scores_in(frame: Any, names: Sequence[str], comment: str | None) -> list[GivenScore]:
    """Read scores from a DataFrame, an Arrow table or dicts; see ``RolloutTable.annotate``.

    Raises:
        TableError: a column is missing, a name or value is no score, or a trajectory has two scores of one
            name.
    """
    rows = _rows(frame)
    known = list(dict.fromkeys(name for row in rows for name in row))
    names = names or [name for name in known if name not in (_TRACE_ID, comment)]
    for name in (_TRACE_ID, *names, *([comment] if comment else [])) if rows else ():
        if name not in known:
            raise TableError(f"The frame has no column {name!r}.{did_you_mean(name, known)}")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= semconv.MAX_SCORE_NAME_CHARS:
            raise TableError(
                f"Column {str(name)[:_SHOWN_CHARS]!r} is no score: a name has 1 to "
                f"{semconv.MAX_SCORE_NAME_CHARS} characters."
            )
    scores = [
        GivenScore(str(row.get(_TRACE_ID)), name, _score(name, row[name]), _comment(row, comment))
        for row in rows
        for name in names
        if row.get(name) is not None
    ]
    _check_repeated(scores)
    return scores


def append(store: Store, engine: Engine, scores: Sequence[GivenScore]) -> int:
    """Append scores in one commit; return their number.

    Raises:
        TableError: a trajectory is not in the table, or the table cannot be written.
    """
    roots = _roots(engine, sorted({score.trace_id for score in scores}))
    unknown = [score.trace_id for score in scores if score.trace_id not in roots]
    if unknown:
        raise TableError(
            f"The table lacks {len(set(unknown))} of the frame's trajectories, such as {unknown[0]!r}."
        )
    now = time.time_ns()
    rows = (row_of(_span(score, roots[score.trace_id], now)) for score in scores)
    batches = [batch_of(part) for part in chunks(rows, _ROWS_AT_ONCE)]
    if batches:
        store.append(batches, secrets.token_hex(16), 1)
    return len(scores)


def _rows(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame.

    Raises:
        TableError: the frame has no rows, or Arrow has no type for one of its columns.
    """
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            from arro3.core import Table

            return dicts_of(Table.from_arrow(frame))
        if not isinstance(frame, (str, Mapping)):
            return [dict(row) for row in frame]
    except (TypeError, ValueError) as error:  # of Arrow: pyarrow's are ValueErrors
        raise TableError(f"The {type(frame).__name__} cannot be read as rows: {error}") from error
    raise TableError(f"A {type(frame).__name__} has no rows: give a DataFrame or a list of dicts.")


def _check_repeated(scores: Sequence[GivenScore]) -> None:
    """Raise TableError if a trajectory has two scores of one name: none of them would be the newest."""
    for (trace_id, name), number in Counter((score.trace_id, score.name) for score in scores).items():
        if number > 1:
            raise TableError(f"The frame has several scores {name!r} of trajectory {trace_id!r}; give one.")


def _score(name: str, value: Any) -> evaluations.Value:
    if not isinstance(value, (bool, int, float, str)) and hasattr(value, "item"):
        value = value.item()  # a scalar of numpy
    if not isinstance(value, (bool, int, float, str)):
        raise TableError(
            f"Column {name!r} of the frame holds {type(value).__name__}: a score is a number, a bool or text."
        )
    return value


def _comment(row: Mapping[str, Any], column: str | None) -> str | None:
    value = row.get(column) if column else None
    return None if value is None else str(value)


def _roots(engine: Engine, traces: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return span id, run and identity of each trajectory that is in the table.

    A score has all of the identity: one with another path would be of a trajectory inside.
    """
    columns = ", ".join((_TRACE_ID, "span_id", "run_id", *_IDENTITY.values(), *IN_TEXT.values()))
    found: dict[str, dict[str, Any]] = {}
    for part in chunks(traces, _TRACES_AT_ONCE):
        condition = equals(_TRACE_ID, part)
        rows = engine.dicts(f"SELECT {columns} FROM roots WHERE {condition}")  # noqa: S608
        found |= {row[_TRACE_ID]: row for row in rows}
    return found


def _span(score: GivenScore, root: Mapping[str, Any], time_ns: int) -> Span:
    """Return the evaluation span of a score, as a program outside the trajectory would record it."""
    columns = (*_IDENTITY.items(), *IN_TEXT.items())
    attributes = {name: root[column] for name, column in columns if root[column] is not None}
    attributes[semconv.SPAN_KIND] = semconv.KIND_EVALUATOR
    attributes |= evaluations.attributes_of(score.name, score.value, score.comment, semconv.ORIGIN_OUTSIDE)
    return Span.made(
        (score.trace_id, secrets.token_hex(8), root["span_id"]),
        with_utf8(f"score {score.name}"),
        (time_ns, time_ns),
        with_utf8(attributes),
        resource=Resource({semconv.RUN_ID: root["run_id"]} if root["run_id"] is not None else {}),
        scope=SpanScope(semconv.SCOPE),
    )
