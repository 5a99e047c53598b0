"""Convert spans to protobuf's fields, and read spans from protobuf's own JSON, without protobuf itself."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanKind

from otel_rollout.otlp.span import Event, Link, Span

_NO_VALUE: Final = (TypeError, ValueError, RecursionError)
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_STATUS_CODES: Final = {"STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_KINDS: Final = {f"SPAN_KIND_{kind.name}": kind.value + 1 for kind in SpanKind}
_logger = logging.getLogger(__name__)


def fields_of(span: Span) -> dict[str, Any]:
    """Return a complete span as keyword arguments for its protobuf message, the fastest way to make one."""
    attributes, events, links = span.dropped
    return {
        "trace_id": bytes.fromhex(span.trace_id),
        "span_id": bytes.fromhex(span.span_id),
        "trace_state": span.trace_state or None,
        "parent_span_id": bytes.fromhex(span.parent_id) if span.parent_id else None,
        "flags": span.flags,
        "name": span.name,
        "kind": span.kind,
        "start_time_unix_nano": span.start_ns,
        "end_time_unix_nano": span.end_ns,
        "attributes": entries_of(span.attributes),
        "dropped_attributes_count": attributes or None,
        "events": [_event(event) for event in span.events] if span.events else None,
        "dropped_events_count": events or None,
        "links": [_link(link) for link in span.links] if span.links else None,
        "dropped_links_count": links or None,
        "status": {"code": span.status, "message": span.message},
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "time_unix_nano": event.time_ns,
        "attributes": entries_of(event.attributes),
        "dropped_attributes_count": event.dropped,
    }


def _link(link: Link) -> dict[str, Any]:
    return {
        "trace_id": bytes.fromhex(link.trace_id),
        "span_id": bytes.fromhex(link.span_id),
        "trace_state": link.trace_state,
        "attributes": entries_of(link.attributes),
        "dropped_attributes_count": link.dropped,
        "flags": link.flags,
    }


def entries_of(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as keyword arguments for protobuf, without those that OTLP cannot hold."""
    try:
        # Most attributes are text, and a call takes longer than the rest of the loop.
        return [
            {"key": key, "value": {"string_value": value} if type(value) is str else _any_value(value)}
            for key, value in attributes.items()
        ]
    except _NO_VALUE as error:
        if len(attributes) == 1:
            _logger.warning("the attribute %r cannot be encoded: %s", *attributes, error)
            return []
        return [entry for key, value in attributes.items() for entry in entries_of({key: value})]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value} has more than 64 bits")
        return {"int_value": value}
    if isinstance(value, float):
        return {"double_value": value}
    if value is None:
        return {}
    if isinstance(value, bytes):
        return {"bytes_value": value}
    if isinstance(value, Mapping):
        entries = [{"key": str(key), "value": _any_value(entry)} for key, entry in value.items()]
        return {"kvlist_value": {"values": entries}}
    if isinstance(value, Sequence):
        return {"array_value": {"values": [_any_value(entry) for entry in value]}}
    raise TypeError(f"OTLP has no type for {type(value).__name__}")


def _ids_to_hex(holder: dict[str, Any]) -> None:
    for key in _IDS:
        if holder.get(key):
            holder[key] = base64.b64decode(holder[key]).hex()


def span_without_links(stored: Mapping[str, Any], renamed: Mapping[str, str]) -> Span:
    """Convert a span from protobuf's JSON with field names in snake_case; leave out its links.

    Args:
        stored: the span. A field with protobuf's default may be missing.
        renamed: name of an attribute → its name in the result.
    """
    span: dict[str, Any] = _camel_case(stored)
    _ids_to_hex(span)
    for entry in span.get("attributes", ()):
        entry["key"] = renamed.get(entry["key"], entry["key"])
    status = span.get("status") or {}
    status["code"] = _STATUS_CODES.get(str(status.get("code")), 0)
    span["status"] = status
    span["kind"] = _KINDS.get(str(span.get("kind")), 0)
    span.setdefault("startTimeUnixNano", 0)
    span.setdefault("endTimeUnixNano", span["startTimeUnixNano"])
    span.pop("links", None)
    return Span(span)


def _camel_case(message: Any) -> Any:
    if isinstance(message, Mapping):
        return {_camel(name): _camel_case(value) for name, value in message.items()}
    return [_camel_case(entry) for entry in message] if isinstance(message, list) else message


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
