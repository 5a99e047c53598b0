"""A line of a segment → OTel SDK spans, as every span exporter takes them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_rollout.record.otlp_json import IS_REMOTE


class UnreadableLineError(ValueError):
    """A line that is not OTLP/JSON trace data."""


def spans_of(line: bytes) -> list[ReadableSpan]:
    """Decode one line of OTLP JSON Lines. Fields and values of newer versions are passed over.

    Raises:
        UnreadableLineError: when it is none.
    """
    try:
        data = orjson.loads(line)
        return list(_spans(data["resourceSpans"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableLineError(f"not OTLP/JSON trace data: {type(error).__name__}: {error}") from error


def _spans(resource_spans: Sequence[Mapping[str, Any]]) -> Iterator[ReadableSpan]:
    for of_resource in resource_spans:
        resource = Resource(_attributes(of_resource.get("resource", {})))
        for of_scope in of_resource.get("scopeSpans", ()):
            described = of_scope.get("scope", {})
            scope = InstrumentationScope(
                described.get("name", ""), described.get("version"), of_scope.get("schemaUrl")
            )
            for span in of_scope.get("spans", ()):
                yield _span(span, resource, scope)


def _span(span: Mapping[str, Any], resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    flags = int(span.get("flags", 1))
    state = TraceState.from_header([span["traceState"]]) if span.get("traceState") else None
    trace_id = int(span["traceId"], 16)
    parent = span.get("parentSpanId")
    status = span.get("status") or {}
    return ReadableSpan(
        name=span.get("name", ""),
        context=_context(trace_id, int(span["spanId"], 16), flags, state, is_remote=False),
        parent=_context(trace_id, int(parent, 16), flags, state, bool(flags & IS_REMOTE)) if parent else None,
        resource=resource,
        attributes=_attributes(span),
        events=[_event(event) for event in span.get("events", ())],
        links=[_link(link) for link in span.get("links", ())],
        kind=SpanKind(max(int(span.get("kind", 1)) - 1, 0)),
        instrumentation_scope=scope,
        status=Status(StatusCode(status.get("code", 0)), status.get("message") or None),
        start_time=int(span["startTimeUnixNano"]),
        end_time=int(span["endTimeUnixNano"]),
    )


def _context(
    trace_id: int, span_id: int, flags: int, state: TraceState | None, is_remote: bool
) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(flags & 0xFF), state)


def _event(event: Mapping[str, Any]) -> Event:
    return Event(event.get("name", ""), _attributes(event), int(event["timeUnixNano"]))


def _link(link: Mapping[str, Any]) -> Link:
    flags = int(link.get("flags", 0))
    state = TraceState.from_header([link["traceState"]]) if link.get("traceState") else None
    context = _context(
        int(link["traceId"], 16), int(link["spanId"], 16), flags, state, bool(flags & IS_REMOTE)
    )
    return Link(context, _attributes(link))


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {entry["key"]: _value(entry.get("value") or {}) for entry in holder.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    for kind, held in value.items():
        if kind in ("stringValue", "boolValue"):
            return held
        if kind == "intValue":
            return int(held)
        if kind == "doubleValue":
            return float(held)
        if kind == "bytesValue":
            return base64.b64decode(held)
        if kind == "arrayValue":
            return [_value(entry) for entry in held.get("values", ())]
        if kind == "kvlistValue":
            return {entry["key"]: _value(entry.get("value") or {}) for entry in held.get("values", ())}
    return None
