"""Decode OTLP in JSON, as other programs send it, into spans of lines, and encode the answers in JSON.

A value is checked as protobuf would check it: its type and its range. Making protobuf's messages of the JSON
would take twice the time of everything else.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from otel_rollout.otlp import received
from otel_rollout.otlp.json_values import (
    MAX_DEPTH,
    TOO_DEEP,
    bytes_of_base64,
    double_of_json,
    integer_of,
    text_of,
)
from otel_rollout.otlp.received import (
    Entry,
    Fields,
    ReceivedScope,
    RedactResource,
    RefusedSpanError,
)
from otel_rollout.otlp.span import UNREADABLE, Span

_UINT32: Final = (0, 1 << 32)
_INT32: Final = (-(1 << 31), 1 << 31)
_UINT64: Final = (0, 1 << 64)
_INT64: Final = (-(1 << 63), 1 << 63)


def scopes_of(request: Any, redact: RedactResource | None = None) -> Iterator[ReceivedScope]:
    """Yield the scopes of a request.

    Args:
        request: the parsed JSON.
        redact: redacts the attributes of a resource.

    Raises:
        ValueError: the JSON is no request of OTLP; a single wrong span raises nothing here.
    """
    try:
        for of_resource in request.get("resourceSpans") or ():
            sent = _attributes((of_resource.get("resource") or {}).get("attributes"))
            resource = received.resource_of(sent, text_of(of_resource.get("schemaUrl")), redact)
            for of_scope in of_resource.get("scopeSpans") or ():
                spans = of_scope.get("spans") or ()
                if not isinstance(spans, list) and spans:
                    raise TypeError("the spans are no list")
                name, head = _scope(of_scope)
                yield ReceivedScope(resource, name, head, spans, span_of)
    except UNREADABLE as error:
        raise ValueError("it has fields that OTLP does not have there") from error


def _scope(of_scope: Mapping[str, Any]) -> tuple[str, bytes]:
    scope = of_scope.get("scope") or {}
    name, schema_url = text_of(scope.get("name")), text_of(of_scope.get("schemaUrl"))
    attributes = _attributes(scope.get("attributes"))
    return name, received.scope_head(name, text_of(scope.get("version")), attributes, schema_url)


def span_of(given: Any) -> Span:
    """Return a parsed span as a span of a line.

    Raises:
        RefusedSpanError: the span has wrong values, or no valid ids or times.
    """
    try:
        return Span(_fields_of(given))
    except RefusedSpanError:
        raise
    except UNREADABLE as error:
        raise RefusedSpanError("has a field of a wrong type or value, or no valid ids") from error


def _fields_of(given: Mapping[str, Any]) -> Fields:
    get = given.get
    parent_id = get("parentSpanId") or ""
    span = received.fields_of(
        (_id(get("traceId")), _id(get("spanId")), _id(parent_id) if parent_id.strip("0") else b""),
        (_integer(get("startTimeUnixNano"), _UINT64), _integer(get("endTimeUnixNano"), _UINT64)),
        _integer(get("flags"), _UINT32),
        text_of(get("name")),
        _integer(get("kind"), _INT32),
        _attributes(get("attributes")),
    )
    _add_details(span, given)
    return span


def _add_details(span: Fields, given: Mapping[str, Any]) -> None:
    """Add the fields that few spans have."""
    get = given.get
    if events := get("events"):
        span["events"] = [_event(event) for event in events]
    if links := get("links"):
        span["links"] = [_link(link) for link in links]
    names = ("droppedAttributesCount", "droppedEventsCount", "droppedLinksCount")
    dropped = [_integer(get(name), _UINT32) for name in names]
    if any(dropped):
        span.update(received.dropped_counts(*dropped))
    if status := get("status"):
        code, message = _integer(status.get("code"), _INT32), text_of(status.get("message"))
        if code or message:
            span["status"] = {"code": code, "message": message}
    if trace_state := text_of(get("traceState")):
        span["traceState"] = trace_state


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    return received.event_of(
        _integer(event.get("timeUnixNano"), _UINT64),
        text_of(event.get("name")),
        _attributes(event.get("attributes")),
        _integer(event.get("droppedAttributesCount"), _UINT32),
    )


def _link(link: Mapping[str, Any]) -> dict[str, Any]:
    return received.link_of(
        (_id(link.get("traceId")), _id(link.get("spanId"))),
        text_of(link.get("traceState")),
        _integer(link.get("flags"), _UINT32),
        _attributes(link.get("attributes")),
        _integer(link.get("droppedAttributesCount"), _UINT32),
    )


def json_response(refused: int, sentence: str) -> bytes:
    """Return an ``ExportTraceServiceResponse``."""
    partial = {"rejectedSpans": str(refused), "errorMessage": sentence}
    return orjson.dumps({"partialSuccess": partial} if refused else {})


def json_status(code: int, sentence: str) -> bytes:
    """Return a ``google.rpc.Status``."""
    return orjson.dumps({"code": code, "message": sentence})


# --- values -------------------------------------------------------------------------------------------------


def _attributes(given: Iterable[Mapping[str, Any]] | None, depth: int = 0) -> list[Entry]:
    """Return attributes, or the entries of a map; the last one of equal keys."""
    found: dict[str, Entry] = {}
    for entry in given or ():
        key = text_of(entry.get("key"))
        found[key] = {"key": key, "value": _value(entry.get("value"), depth)}
    return list(found.values())


def _value(value: Mapping[str, Any] | None, depth: int) -> dict[str, Any]:
    for type_, content in value.items() if value is not None else ():
        if content is None:
            continue
        if type_ == "stringValue":
            return {type_: text_of(content)}
        if type_ == "intValue":
            return {type_: str(_integer(content, _INT64))}
        if type_ == "doubleValue":
            return {type_: received.double_of(double_of_json(content))}
        if type_ == "boolValue":
            if type(content) is not bool:
                raise TypeError("a boolean expected")
            return {type_: content}
        if type_ == "bytesValue":
            return {type_: base64.b64encode(bytes_of_base64(content)).decode()}
        if type_ in ("arrayValue", "kvlistValue"):
            return {"stringValue": TOO_DEEP} if depth >= MAX_DEPTH else _nested(type_, content, depth)
    return {}  # none, or of a newer version of OTLP


def _nested(type_: str, content: Mapping[str, Any], depth: int) -> dict[str, Any]:
    values = content.get("values")
    if type_ == "kvlistValue":
        return {type_: {"values": received.kept(_attributes(values, depth + 1))}}
    return {type_: {"values": [_value(entry, depth + 1) for entry in values or ()]}}


def _integer(value: Any, range_: tuple[int, int]) -> int:
    """Return an integer, which may be text or have a decimal point; 0 for none."""
    return 0 if value is None else integer_of(value, *range_)


def _id(text: Any) -> bytes:
    return bytes.fromhex(text) if text is not None else b""
