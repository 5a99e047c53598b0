"""Decode OTLP in protobuf, as other programs send it, into spans of lines."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

from otel_rollout.otlp import received
from otel_rollout.otlp.json_values import MAX_DEPTH, TOO_DEEP
from otel_rollout.otlp.received import Entry, Fields, ReceivedScope, RedactResource
from otel_rollout.otlp.span import Span


def scopes_of(request: Any, redact: RedactResource | None = None) -> Iterator[ReceivedScope]:
    """Yield the scopes of an ``ExportTraceServiceRequest``.

    Args:
        request: the decoded request.
        redact: redacts the attributes of a resource.
    """
    for of_resource in request.resource_spans:
        sent = _attributes(of_resource.resource.attributes)
        resource = received.resource_of(sent, of_resource.schema_url, redact)
        for of_scope in of_resource.scope_spans:
            scope = of_scope.scope
            head = received.scope_head(
                scope.name, scope.version, _attributes(scope.attributes), of_scope.schema_url
            )
            yield ReceivedScope(resource, scope.name, head, of_scope.spans, span_of)


def span_of(message: Any) -> Span:
    """Return a message as a span of a line.

    Raises:
        RefusedSpanError: the span has no valid ids or times.
    """
    span = received.fields_of(
        (message.trace_id, message.span_id, message.parent_span_id),
        (message.start_time_unix_nano, message.end_time_unix_nano),
        message.flags,
        message.name,
        message.kind,
        _attributes(message.attributes),
    )
    _add_details(span, message)
    return Span(span)


def _add_details(span: Fields, message: Any) -> None:
    """Add the fields that few spans have."""
    if message.events:
        span["events"] = [
            received.event_of(
                event.time_unix_nano,
                event.name,
                _attributes(event.attributes),
                event.dropped_attributes_count,
            )
            for event in message.events
        ]
    if message.links:
        span["links"] = [
            received.link_of(
                (link.trace_id, link.span_id),
                link.trace_state,
                link.flags,
                _attributes(link.attributes),
                link.dropped_attributes_count,
            )
            for link in message.links
        ]
    dropped = message.dropped_attributes_count, message.dropped_events_count, message.dropped_links_count
    if any(dropped):
        span.update(received.dropped_counts(*dropped))
    status = message.status
    if status.code or status.message:
        span["status"] = {"code": status.code, "message": status.message}
    if message.trace_state:
        span["traceState"] = message.trace_state


def _attributes(given: Iterable[Any], depth: int = 0) -> list[Entry]:
    """Return attributes, or the entries of a map; the last one of equal keys."""
    found = {entry.key: {"key": entry.key, "value": _value(entry.value, depth)} for entry in given}
    return list(found.values())


def _value(value: Any, depth: int) -> dict[str, Any]:
    type_ = value.WhichOneof("value")
    if type_ == "string_value":
        return {"stringValue": value.string_value}
    if type_ == "int_value":
        return {"intValue": str(value.int_value)}
    if type_ == "bool_value":
        return {"boolValue": value.bool_value}
    if type_ == "double_value":
        return {"doubleValue": received.double_of(value.double_value)}
    return {} if type_ is None else _nested(type_, value, depth)


def _nested(type_: str, value: Any, depth: int) -> dict[str, Any]:
    if type_ == "bytes_value":
        return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
    if depth >= MAX_DEPTH:
        return {"stringValue": TOO_DEEP}
    if type_ == "array_value":
        return {"arrayValue": {"values": [_value(entry, depth + 1) for entry in value.array_value.values]}}
    if type_ == "kvlist_value":
        return {"kvlistValue": {"values": received.kept(_attributes(value.kvlist_value.values, depth + 1))}}
    return {}  # of a newer version of OTLP
