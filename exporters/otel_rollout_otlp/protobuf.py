"""Convert recorded spans from OTLP/JSON to protobuf.

The conversion makes no SDK spans, which would cost more than all other work. Google's JSON parser would cost
ten times as much, and it reads ids as base64 where OTLP has hex.

Fields that this module does not know are ignored, as OTLP demands. A wrong value in a known field raises an
exception, either from protobuf, which checks types and ranges, or from this module.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_parse: Final = partial(Parse, ignore_unknown_fields=True)
_MAX_DEPTH: Final = 24
"""Maximum levels of nesting in an attribute's value; deeper values are replaced by a text.

Protobuf stops at 100, and counts three for each level.
"""


class RecordedSpan(NamedTuple):
    """A span, and its resource and scope with their schemas, as decoded JSON."""

    resource: bytes
    scope: bytes
    span: Mapping[str, Any]


def spans_in(lines: Iterable[bytes]) -> Iterator[RecordedSpan]:
    """Yield the spans of OTLP JSON Lines, one at a time."""
    for line in lines:
        for of_resource in orjson.loads(line)["resourceSpans"]:
            scopes = of_resource.pop("scopeSpans", None) or ()
            resource = orjson.dumps(of_resource)
            for of_scope in scopes:
                spans = of_scope.pop("spans", None) or ()
                scope = orjson.dumps(of_scope)
                for span in spans:
                    yield RecordedSpan(resource, scope, span)


def request_of(spans: Iterable[RecordedSpan]) -> ExportTraceServiceRequest:
    """Make one request of spans, with each resource and scope once."""
    request = ExportTraceServiceRequest()
    resources: dict[bytes, ResourceSpans] = {}
    scopes: dict[tuple[bytes, bytes], ScopeSpans] = {}
    for resource, scope, span in spans:
        if (resource, scope) not in scopes:
            if resource not in resources:
                resources[resource] = _parse(resource, request.resource_spans.add())
            scopes[resource, scope] = _parse(scope, resources[resource].scope_spans.add())
        scopes[resource, scope].spans.add(**_span(span))
    return request


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span as keyword arguments for protobuf, its fastest constructor.

    None means unset.
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
        "attributes": _entries(get("attributes")),
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
        "attributes": _entries(event.get("attributes")),
        "dropped_attributes_count": _integer(event.get("droppedAttributesCount")),
    }


def _link(link: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": _id(link.get("traceId"), _TRACE_ID_BYTES, may_be_zero=True),
        "span_id": _id(link.get("spanId"), _SPAN_ID_BYTES, may_be_zero=True),
        "trace_state": link.get("traceState"),
        "attributes": _entries(link.get("attributes")),
        "dropped_attributes_count": _integer(link.get("droppedAttributesCount")),
        "flags": _integer(link.get("flags")),
    }


def _status(status: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if status is None:
        return None
    return {"code": _integer(status.get("code")), "message": status.get("message")}


def _entries(entries: Sequence[Mapping[str, Any]] | None, depth: int = 0) -> list[dict[str, Any]]:
    """Convert attributes or the entries of a map."""
    return [
        {"key": entry.get("key"), "value": _any_value(entry.get("value"), depth)} for entry in entries or ()
    ]


def _any_value(value: Mapping[str, Any] | None, depth: int) -> dict[str, Any] | None:
    if value is None:
        return None
    if depth > _MAX_DEPTH:
        return {"string_value": "… (nested too deeply)"}
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
            return {"double_value": float(content)}
        if type_ == "bytesValue":
            return {"bytes_value": _bytes(content)}
        if type_ == "arrayValue":
            return {
                "array_value": {"values": [_any_value(v, depth + 1) for v in content.get("values") or ()]}
            }
        if type_ == "kvlistValue":
            return {"kvlist_value": {"values": _entries(content.get("values"), depth + 1)}}
    return {}


def _integer(value: Any) -> int | None:
    """Convert an integer; JSON may hold it as text or with a decimal point."""
    if value is None or type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str:
        return int(value)
    raise ValueError(f"an integer expected, not {value!r}")


def _bytes(text: str) -> bytes:
    """Decode base64 in either alphabet, padded or not."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _id(text: Any, size: int, may_be_zero: bool = False) -> bytes:
    """Decode an id in hex; only the id of a link may be all zeros."""
    found = bytes.fromhex(text)
    if len(found) != size or not (may_be_zero or any(found)):
        raise ValueError(f"no id of {size} bytes in hex: {text!r}")
    return found


def _parent_id(text: str | None) -> bytes | None:
    """Decode the parent's id; None if the id is missing or all zeros."""
    return _id(text, _SPAN_ID_BYTES) if text and text.strip("0") else None
