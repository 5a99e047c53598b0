"""Decode OTLP in protobuf, as other programs send it, into spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from otel_rollout.otlp import received
from otel_rollout.otlp.json_values import MAX_DEPTH, TOO_DEEP
from otel_rollout.otlp.received import ReceivedScope, RedactResource, RefusedSpanError
from otel_rollout.otlp.span import Event, Link, Span

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_SCALARS: Final = frozenset({"string_value", "int_value", "bool_value", "double_value", "bytes_value"})


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
    """Convert a protobuf message to a span.

    Raises:
        RefusedSpanError: the span has no valid ids or times.
    """
    trace_id, span_id, parent_id = message.trace_id, message.span_id, message.parent_span_id
    if len(trace_id) != _TRACE_ID_BYTES or not any(trace_id):
        raise RefusedSpanError("has no valid trace id")
    if len(span_id) != _SPAN_ID_BYTES or not any(span_id):
        raise RefusedSpanError("has no valid span id")
    if len(parent_id) not in (0, _SPAN_ID_BYTES):
        raise RefusedSpanError("has no valid parent id")
    span = Span.made(
        (trace_id.hex(), span_id.hex(), parent_id.hex() if any(parent_id) else ""),
        message.name,
        (message.start_time_unix_nano, message.end_time_unix_nano),
        _attributes(message.attributes),
        flags=message.flags,
        trace_state=message.trace_state,
        kind=message.kind,
        events=[_event(event) for event in message.events],
        links=[_link(link) for link in message.links],
        dropped=(
            message.dropped_attributes_count,
            message.dropped_events_count,
            message.dropped_links_count,
        ),
        status=message.status.code,
        message=message.status.message,
    )
    return received.accepted(span)


def _event(event: Any) -> Event:
    attributes = _attributes(event.attributes)
    return Event(event.name, event.time_unix_nano, attributes, event.dropped_attributes_count)


def _link(link: Any) -> Link:
    if len(link.trace_id) != _TRACE_ID_BYTES or len(link.span_id) != _SPAN_ID_BYTES:
        raise RefusedSpanError("has a link without valid ids")
    return Link(
        link.trace_id.hex(),
        link.span_id.hex(),
        _attributes(link.attributes),
        link.trace_state,
        link.flags,
        link.dropped_attributes_count,
    )


def _attributes(given: Iterable[Any], depth: int = 0) -> dict[str, Any]:
    """Return attributes, or the entries of a map, as a dict; of equal keys, the last entry counts."""
    return {entry.key: _value(entry.value, depth) for entry in given}


def _value(value: Any, depth: int) -> Any:
    type_ = value.WhichOneof("value")
    if type_ in _SCALARS:
        return getattr(value, type_)
    if depth >= MAX_DEPTH and type_ is not None:
        return TOO_DEEP
    if type_ == "array_value":
        return [_value(entry, depth + 1) for entry in value.array_value.values]
    if type_ == "kvlist_value":
        return _attributes(value.kvlist_value.values, depth + 1)
    return None  # none, or of a newer version of OTLP
