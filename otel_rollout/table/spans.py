"""Make spans, as exporters got them, from rows of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.origin import Resource, SpanScope
from otel_rollout.otlp.span import Event, Link, Span
from otel_rollout.table import rows
from otel_rollout.table.rows import Row

_CODES: Final = {text: code for code, text in rows.STATUS.items()}


def span_of(row: Row) -> Span:
    """Return the span of a row that has all columns of the table."""
    start, duration = int(row["start_ns"]), row["duration_ns"]
    return Span.made(
        (row["trace_id"], row["span_id"], row["parent_span_id"] or ""),
        row["name"] or "",
        (start, start + int(duration or 0)),
        _attributes(row),
        is_running=duration is None,
        resource=Resource({**_with_held(row, rows.OF_RESOURCE), **_json(row["resource"], {})}),
        events=[Event(*map(event.get, Event._fields[:3])) for event in _json(row["events"], [])],
        links=[Link(*map(link.get, Link._fields[:3])) for link in _json(row["links"], [])],
        scope=SpanScope(row["scope"] or ""),
        status=_CODES.get(row["status"], 0),
        message=row["error_message"] or "",
    )


def _attributes(row: Row) -> dict[str, Any]:
    found = _with_held(row, rows.OF_SPAN)
    if row["sample_index"] is not None:
        found[semconv.SAMPLE_INDEX] = _sample_index(row["sample_index"])
    if row["error_type"] is not None:
        found[semconv.ERROR_TYPE] = row["error_type"]
    for column, name in rows.MIME_TYPES.items():
        if row[column] is not None:
            found[name] = semconv.JSON_MIME_TYPE
    for score in row["scores"] or ():
        found[semconv.SCORE_PREFIX + score["name"]] = evaluations.value_of(score["value"], score["label"])
        if score["time_ns"] is not None:
            found[semconv.SCORE_TIME_PREFIX + score["name"]] = score["time_ns"]
    if row["score_name"] is not None:
        found |= {name: row[column] for name, column in rows.OF_SCORE.items() if row[column] is not None}
        if row["score_value"] is not None:
            found[semconv.GEN_AI_EVALUATION_SCORE_VALUE] = row["score_value"]
    found |= _json(row["attributes"], {})
    return {name: value for name, value in found.items() if value is not None}


def _with_held(row: Row, held: Mapping[str, rows.Held]) -> dict[str, Any]:
    """Return the attributes that columns hold."""
    return {name: row[holder.column] for name, holder in held.items() if row[holder.column] is not None}


def _sample_index(text: str) -> int | str:
    """Return a dataset row of digits as a number. Column ``attributes`` has such a row if it was text."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def _json(text: str | None, default: Any) -> Any:
    return default if text is None else orjson.loads(text)
