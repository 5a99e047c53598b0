"""Encode spans as an OTLP request in protobuf.

OpenTelemetry's own encoder copies each span twice, which takes three times as long. This module needs
``opentelemetry-exporter-otlp-proto-common``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

from otel_rollout.exporting.encodable import encodable
from otel_rollout.exporting.projects import context_of

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200


def request_of(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Make one request of spans, with each resource and scope once.

    Characters that UTF-8 cannot hold become question marks. Attributes that OTLP cannot hold are left out.
    """
    try:
        return _request(spans)
    except (TypeError, ValueError, RecursionError):
        # OpenTelemetry's encoder leaves out what it cannot encode.
        return encode_spans([encodable(span) for span in spans])


def _request(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resources: dict[Resource, ResourceSpans] = {}
    scopes: dict[tuple[Resource, InstrumentationScope | None], ScopeSpans] = {}
    known: dict[tuple[int, int], ScopeSpans] = {}  # by identity: a resource makes JSON of itself to be hashed
    for span in spans:
        resource, scope = span.resource, span.instrumentation_scope
        identity = id(resource), id(scope)
        if identity not in known:
            if resource not in resources:
                resources[resource] = request.resource_spans.add(
                    resource={"attributes": _entries(resource.attributes)}, schema_url=resource.schema_url
                )
            if (resource, scope) not in scopes:
                scopes[resource, scope] = resources[resource].scope_spans.add(**_scope(scope))
            known[identity] = scopes[resource, scope]
        known[identity].spans.add(**_span(span))
    return request


def _scope(scope: InstrumentationScope | None) -> dict[str, Any]:
    if scope is None:
        return {"scope": {}}
    described = {"name": scope.name, "version": scope.version, "attributes": _entries(scope.attributes)}
    return {"scope": described, "schema_url": scope.schema_url}


def _span(span: ReadableSpan) -> dict[str, Any]:
    """Return a span as keyword arguments for protobuf, its fastest constructor."""
    context, parent, status = context_of(span), span.parent, span.status
    return {
        "trace_id": context.trace_id.to_bytes(_TRACE_ID_BYTES, "big"),
        "span_id": context.span_id.to_bytes(_SPAN_ID_BYTES, "big"),
        "trace_state": ",".join([f"{key}={value}" for key, value in context.trace_state.items()]),
        "parent_span_id": parent.span_id.to_bytes(_SPAN_ID_BYTES, "big") if parent else None,
        "flags": _flags(parent),
        "name": span.name,
        "kind": span.kind.value + 1,
        "start_time_unix_nano": span.start_time,
        "end_time_unix_nano": span.end_time,
        "attributes": _entries(span.attributes),
        "dropped_attributes_count": span.dropped_attributes,
        "events": [_event(event) for event in span.events],
        "dropped_events_count": span.dropped_events,
        "links": [_link(link) for link in span.links],
        "dropped_links_count": span.dropped_links,
        "status": {"code": status.status_code.value, "message": status.description},
    }


def _flags(context: SpanContext | None) -> int:
    return _HAS_IS_REMOTE | (_IS_REMOTE if context and context.is_remote else 0)


def _event(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "time_unix_nano": event.timestamp,
        "attributes": _entries(event.attributes),
        "dropped_attributes_count": event.dropped_attributes,
    }


def _link(link: Link) -> dict[str, Any]:
    return {
        "trace_id": link.context.trace_id.to_bytes(_TRACE_ID_BYTES, "big"),
        "span_id": link.context.span_id.to_bytes(_SPAN_ID_BYTES, "big"),
        "attributes": _entries(link.attributes),
        "dropped_attributes_count": link.dropped_attributes,
        "flags": _flags(link.context),
    }


def _entries(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    # Most attributes are text, and a call takes longer than the rest of the loop.
    return [
        {"key": key, "value": {"string_value": value} if type(value) is str else _any_value(value)}
        for key, value in (attributes or {}).items()
    ]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
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
