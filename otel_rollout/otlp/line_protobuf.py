"""Convert the JSON of lines to protobuf's fields; protobuf is not imported.

The conversion makes no ``Span`` objects, which would take a tenth more time. Google's JSON parser would take
ten times as long, and it reads ids as base64 where OTLP has hex.

Fields that this module does not know are ignored, as OTLP demands. A wrong value in a known field raises an
exception, either from protobuf, which checks types and ranges, or from this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from otel_rollout.otlp.json_values import MAX_DEPTH, TOO_DEEP, bytes_of_base64, double_of_json, integer_of

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8

InLine = tuple[bytes, bytes, Mapping[str, Any]]
"""The encoded JSON of a resource and of a scope, each with its schema, and the JSON of a span."""


def spans_in(lines: Iterable[bytes]) -> Iterator[InLine]:
    """Yield the spans of OTLP JSON Lines, one at a time."""
    for line in lines:
        for of_resource in orjson.loads(line)["resourceSpans"]:
            scopes = of_resource.pop("scopeSpans", None) or ()
            resource = orjson.dumps(of_resource)
            for of_scope in scopes:
                spans = of_scope.pop("spans", None) or ()
                scope = orjson.dumps(of_scope)
                for span in spans:
                    yield resource, scope, span


def fields_of(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span as keyword arguments for its protobuf message, which is the fastest way to make one.

    A value of None means that the field is unset.
    """
    get = span.get
    return {
        "trace_id": _id(get("traceId"), _TRACE_ID_BYTES),
        "span_id": _id(get("spanId"), _SPAN_ID_BYTES),
        "trace_state": get("traceState"),
        "parent_span_id": _parent_id(get("parentSpanId")),
        "flags": _integer(get("flags")),
        "name": get("name"),
        "kind": _integer(get("kind")),
        "start_time_unix_nano": _integer(get("startTimeUnixNano")),
        "end_time_unix_nano": _integer(get("endTimeUnixNano")),
        "attributes": entries_of(get("attributes")),
        "dropped_attributes_count": _integer(get("droppedAttributesCount")),
        "events": [_event(event) for event in get("events") or ()],
        "dropped_events_count": _integer(get("droppedEventsCount")),
        "links": [_link(link) for link in get("links") or ()],
        "dropped_links_count": _integer(get("droppedLinksCount")),
        "status": _status(get("status")),
    }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time_unix_nano": _integer(event.get("timeUnixNano")),
        "name": event.get("name"),
        "attributes": entries_of(event.get("attributes")),
        "dropped_attributes_count": _integer(event.get("droppedAttributesCount")),
    }


def _link(link: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": _id(link.get("traceId"), _TRACE_ID_BYTES, may_be_zero=True),
        "span_id": _id(link.get("spanId"), _SPAN_ID_BYTES, may_be_zero=True),
        "trace_state": link.get("traceState"),
        "attributes": entries_of(link.get("attributes")),
        "dropped_attributes_count": _integer(link.get("droppedAttributesCount")),
        "flags": _integer(link.get("flags")),
    }


def _status(status: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if status is None:
        return None
    return {"code": _integer(status.get("code")), "message": status.get("message")}


def entries_of(entries: Sequence[Mapping[str, Any]] | None, depth: int = 0) -> list[dict[str, Any]]:
    """Convert attributes or the entries of a map."""
    return [
        {"key": entry.get("key"), "value": _any_value(entry.get("value"), depth)} for entry in entries or ()
    ]


def _any_value(value: Mapping[str, Any] | None, depth: int) -> dict[str, Any] | None:
    if value is None:
        return None
    if depth > MAX_DEPTH:
        return {"string_value": TOO_DEEP}
    for type_, content in value.items():
        if content is None:
            continue
        if type_ == "stringValue":
            return {"string_value": content}
        if type_ == "boolValue":
            return {"bool_value": content}
        if type_ == "intValue":
            return {"int_value": _integer(content)}
        if type_ == "doubleValue":
            return {"double_value": double_of_json(content)}
        if type_ == "bytesValue":
            return {"bytes_value": bytes_of_base64(content)}
        if type_ == "arrayValue":
            return {
                "array_value": {"values": [_any_value(v, depth + 1) for v in content.get("values") or ()]}
            }
        if type_ == "kvlistValue":
            return {"kvlist_value": {"values": entries_of(content.get("values"), depth + 1)}}
    return {}


def _integer(value: Any) -> int | None:
    """Convert an integer; JSON may hold it as text or with a decimal point."""
    return value if value is None or type(value) is int else integer_of(value, -(1 << 63), 1 << 64)


def _id(text: Any, size: int, may_be_zero: bool = False) -> bytes:
    """Decode an id in hex; only the id of a link may be all zeros."""
    found = bytes.fromhex(text)
    if len(found) != size or not (may_be_zero or any(found)):
        raise ValueError(f"no id of {size} bytes in hex: {text!r}")
    return found


def _parent_id(text: str | None) -> bytes | None:
    """Decode the parent's id; None if the id is missing or all zeros."""
    return _id(text, _SPAN_ID_BYTES) if text and text.strip("0") else None
