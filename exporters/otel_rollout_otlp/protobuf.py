"""Recorded spans, as OTLP/JSON has them, as protobuf.

They come without the SDK's objects between, which cost most of what a span did. Google's parser of JSON would
cost ten times as much as this, and reads ids as base64 where OTLP has hex.

As OTLP wants it, fields of newer versions are passed over. What is wrong in one that we know raises an error,
protobuf's where it checks types and ranges, else ours.
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
"""Levels of nesting kept of an attribute. Protobuf stops at 100, and counts three for each of ours."""


class Recorded(NamedTuple):
    """A span, and what stands above it: its resource and its scope, each with its schema, as JSON."""

    resource: bytes
    scope: bytes
    span: Mapping[str, Any]


def spans_in(lines: Iterable[bytes]) -> Iterator[Recorded]:
    """The spans of lines of OTLP JSON Lines, one at a time: to hold all costs as much as to read them."""
    for line in lines:
        for of_resource in orjson.loads(line)["resourceSpans"]:
            scopes = of_resource.pop("scopeSpans", None) or ()
            resource = orjson.dumps(of_resource)
            for of_scope in scopes:
                spans = of_scope.pop("spans", None) or ()
                scope = orjson.dumps(of_scope)
                for span in spans:
                    yield Recorded(resource, scope, span)


def request_of(spans: Iterable[Recorded]) -> ExportTraceServiceRequest:
    """One request of spans. What they have in common above them is in it once."""
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
    """Protobuf's fields, in plain dicts: it makes its messages of them faster than we can. None is unset."""
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
        "trace_id": _id(link.get("traceId"), _TRACE_ID_BYTES, may_be_none=True),
        "span_id": _id(link.get("spanId"), _SPAN_ID_BYTES, may_be_none=True),
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
    """Attributes, or what is in a map."""
    return [
        {"key": entry.get("key"), "value": _any_value(entry.get("value"), depth)} for entry in entries or ()
    ]


def _any_value(value: Mapping[str, Any] | None, depth: int) -> dict[str, Any] | None:
    if value is None:
        return None
    if depth > _MAX_DEPTH:
        return {"string_value": "… (nested too deeply)"}
    for kind, held in value.items():
        if held is None:
            continue
        if kind == "stringValue":
            return {"string_value": held}
        if kind == "boolValue":
            return {"bool_value": held}
        if kind == "intValue":
            return {"int_value": _integer(held)}
        if kind == "doubleValue":
            return {"double_value": float(held)}
        if kind == "bytesValue":
            return {"bytes_value": _bytes(held)}
        if kind == "arrayValue":
            return {"array_value": {"values": [_any_value(v, depth + 1) for v in held.get("values") or ()]}}
        if kind == "kvlistValue":
            return {"kvlist_value": {"values": _entries(held.get("values"), depth + 1)}}
    return {}


def _integer(held: Any) -> int | None:
    """An integer, which JSON may have as text, or with a point."""
    if held is None or type(held) is int:
        return held
    if type(held) is float and held.is_integer():
        return int(held)
    if type(held) is str:
        return int(held)
    raise ValueError(f"an integer expected, not {held!r}")


def _bytes(held: str) -> bytes:
    """Base64 in either alphabet, padded or not."""
    return base64.urlsafe_b64decode(held + "=" * (-len(held) % 4))


def _id(held: Any, size: int, may_be_none: bool = False) -> bytes:
    """An id in hex; all zeros are none (W3C Trace Context), as only links may have, for their attributes."""
    found = bytes.fromhex(held)
    if len(found) != size or not (may_be_none or any(found)):
        raise ValueError(f"no id of {size} bytes in hex: {held!r}")
    return found


def _parent_id(held: str | None) -> bytes | None:
    """The parent's id; None where there is none, which some writers spell as zeros."""
    return _id(held, _SPAN_ID_BYTES) if held and held.strip("0") else None
