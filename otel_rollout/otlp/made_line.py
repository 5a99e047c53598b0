"""Make lines of spans that no recorder has recorded, such as those of another tool's files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

_ERROR: Final = 2
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


class MadeSpan(NamedTuple):
    """A span.

    Attributes:
        trace_id, span_id, parent_id: ids in hex; the parent's is empty for a root.
        name: its name.
        start_ns, end_ns: its times.
        attributes: text, booleans, integers of 64 bits, numbers, and lists of text.
        error: why it failed; empty if it did not.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    error: str = ""


def line_of(resource: Mapping[str, str], scope: str, spans: Iterable[MadeSpan]) -> bytes:
    """Return spans of one resource and scope as a line."""
    of_scope = {"scope": {"name": scope}, "spans": [_json_of(span) for span in spans]}
    of_resource = {"resource": {"attributes": _entries(resource)}, "scopeSpans": [of_scope]}
    return orjson.dumps({"resourceSpans": [of_resource]}) + b"\n"


def is_trace_data(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is OTLP's."""
    return "resourceSpans" in record


def _json_of(span: MadeSpan) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _entries(span.attributes),
        "status": {"code": _ERROR, "message": span.error} if span.error else {},
    }


def _entries(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(entry) for entry in value]}}
    return {"intValue": str(value)}
