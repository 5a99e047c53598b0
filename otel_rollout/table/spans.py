"""Make spans from rows of the table, as exporters got them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.table import rows
from otel_rollout.table.rows import Row

_CODES: Final = {text: code for code, text in rows.STATUS.items()}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def span_of(row: Row) -> ReadableSpan:
    """Return the span of a row that has all columns of the table."""
    start, duration = int(row["start_ns"]), row["duration_ns"]
    parent, message = row["parent_span_id"], row["error_message"]
    code = _CODES.get(row["status"], StatusCode.UNSET)
    return ReadableSpan(
        name=row["name"] or "",
        context=_context(row["trace_id"], row["span_id"]),
        parent=_context(row["trace_id"], parent) if parent else None,
        resource=Resource({**_with_held(row, rows.OF_RESOURCE), **_json(row["resource"], {})}),
        attributes=_attributes(row),
        events=[
            Event(event["name"], event["attributes"], event["time_ns"]) for event in _json(row["events"], [])
        ],
        links=[
            Link(_context(link["trace_id"], link["span_id"]), link["attributes"])
            for link in _json(row["links"], [])
        ],
        instrumentation_scope=InstrumentationScope(row["scope"] or ""),
        status=Status(code, message if code is StatusCode.ERROR else None),
        start_time=start,
        end_time=None if duration is None else start + int(duration),
    )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)


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
    """Return a dataset row as a number if it was one; text of digits is in column ``attributes``."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def _json(text: str | None, default: Any) -> Any:
    return default if text is None else orjson.loads(text)
