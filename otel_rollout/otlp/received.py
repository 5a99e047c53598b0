"""Write spans that other programs have sent as OTLP, in protobuf or JSON, as recorded lines.

Both encodings become protobuf messages first, which checks types and ranges. A body in JSON therefore passes
the same code as one in protobuf, and its lines have the same form as those of a recording process.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_rollout.base import semconv
from otel_rollout.otlp import engine_phases, writer
from otel_rollout.otlp.protobuf import entries_of, fields_of
from otel_rollout.otlp.reader import MAX_DEPTH, TOO_DEEP, attributes_of

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_MAX_TIME_NS: Final = (1 << 63) - 1
_OF_THIS_RUN: Final = frozenset({semconv.SEGMENT_ID, semconv.RUN_ID, semconv.PROJECT_NAME})
"""Attributes of a resource that say where a line was recorded; a sender's are replaced."""
_END: Final = b"]}]}]}\n"
"""The end of a line after its span: closes the span list, the scope and the resource."""
_NO_FIELDS: Final = (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError)
"""Errors of code that meets a value of the wrong type or range in JSON."""

RedactResource = Callable[[Mapping[str, writer.AttributeInput]], Mapping[str, writer.AttributeInput]]


class RefusedSpanError(ValueError):
    """Raised for a span that cannot be recorded; the message is half a sentence about the span."""


class ReceivedScope(NamedTuple):
    """The spans of one resource and instrumentation scope of a request.

    Attributes:
        run_id: the run that the sender names on its resource; empty if it names none.
        resource: the sender's resource, as the rest of a head without its end.
        name: name of the instrumentation scope.
        head: the scope, and the beginning of the span list, as in a line.
        spans: the spans, for :func:`message_of`.
    """

    run_id: str
    resource: bytes
    name: str
    head: bytes
    spans: Sequence[Any]


def scopes_of_protobuf(request: Any, redact: RedactResource | None = None) -> Iterator[ReceivedScope]:
    """Yield the scopes of an ``ExportTraceServiceRequest``.

    Args:
        request: the decoded request.
        redact: redacts the attributes of a resource.
    """
    for of_resource in request.resource_spans:
        run_id, resource = _resource(of_resource, redact)
        for of_scope in of_resource.scope_spans:
            yield _scope(run_id, resource, of_scope, of_scope.spans)


def scopes_of_json(request: Any, redact: RedactResource | None = None) -> Iterator[ReceivedScope]:
    """Yield the scopes of a request in OTLP/JSON.

    Args:
        request: the decoded JSON.
        redact: redacts the attributes of a resource.

    Raises:
        ValueError: the JSON is no request of OTLP; a single wrong span raises nothing here.
    """
    try:
        for given in request.get("resourceSpans") or ():
            attributes = entries_of((given.get("resource") or {}).get("attributes"))
            fields = {"resource": {"attributes": attributes}, "schema_url": given.get("schemaUrl")}
            run_id, resource = _resource(_message(trace_pb2.ResourceSpans, fields), redact)
            for of_scope in given.get("scopeSpans") or ():
                spans = of_scope.get("spans") or ()
                if not isinstance(spans, list) and spans:
                    raise TypeError("the spans are no list")
                yield _scope(run_id, resource, _scope_of_json(of_scope), spans)
    except _NO_FIELDS as error:
        raise ValueError("it has fields that OTLP does not have there") from error


def _scope_of_json(of_scope: Mapping[str, Any]) -> Any:
    scope = of_scope.get("scope") or {}
    fields = {
        "name": scope.get("name"),
        "version": scope.get("version"),
        "attributes": entries_of(scope.get("attributes")),
    }
    return _message(trace_pb2.ScopeSpans, {"scope": fields, "schema_url": of_scope.get("schemaUrl")})


def _message(type_: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Make a message of fields, which protobuf checks; its type hints ask for messages inside."""
    return type_(**fields)


def json_response(refused: int, sentence: str) -> bytes:
    """Return an ``ExportTraceServiceResponse`` in OTLP/JSON."""
    partial = {"rejectedSpans": str(refused), "errorMessage": sentence}
    return orjson.dumps({"partialSuccess": partial} if refused else {})


def json_status(code: int, sentence: str) -> bytes:
    """Return a ``google.rpc.Status`` in OTLP/JSON."""
    return orjson.dumps({"code": code, "message": sentence})


def message_of(span: Any) -> Any:
    """Return a span of a scope as a protobuf message.

    Raises:
        RefusedSpanError: the span is JSON with wrong values.
    """
    if isinstance(span, trace_pb2.Span):
        return span
    try:
        return trace_pb2.Span(**fields_of(span))
    except _NO_FIELDS as error:
        raise RefusedSpanError("has a field of a wrong type, or no valid ids") from error


def line_of(scope: ReceivedScope, span: Any, identity: Sequence[dict[str, Any]]) -> bytes:
    """Return the line of a span after the head of its resource; see ``open_resource_head``.

    Args:
        scope: the span's scope.
        span: result of :func:`message_of`.
        identity: result of :func:`entries` for the identity of the span's trajectory; it replaces what the
            sender says about it.

    Raises:
        RefusedSpanError: the span has no valid ids or times.
    """
    _check(span)
    attributes = _attributes(span.attributes)
    if identity:
        attributes = [*identity, *(e for e in attributes if e["key"] not in semconv.IDENTITY)]
    line: dict[str, Any] = {
        "parentSpanId": span.parent_span_id.hex() if any(span.parent_span_id) else "",
        "flags": span.flags,
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_time_unix_nano),
        "endTimeUnixNano": str(span.end_time_unix_nano),
        "attributes": attributes,
    }
    _add_details(line, span)
    return scope.head + orjson.dumps(line) + _END


def phase_lines_of(span: Any, identity: bytes) -> list[bytes]:
    """Return the lines of the phases of an engine's request, after the head of its resource; see ``line_of``.

    Args:
        span: result of :func:`message_of`, with valid ids and times.
        identity: the encoded attributes of the identity of the span's trajectory.
    """
    if span.name != semconv.ENGINE_REQUEST:
        return []
    attributes = attributes_of({"attributes": _attributes(span.attributes)})
    phases = engine_phases.phases_of(span.name, span.span_id, attributes, span.start_time_unix_nano)
    return engine_phases.phase_lines(phases, span.trace_id, span.span_id, span.flags, identity)


def _check(span: Any) -> None:
    if len(span.trace_id) != _TRACE_ID_BYTES or not any(span.trace_id):
        raise RefusedSpanError("has no valid trace id")
    if len(span.span_id) != _SPAN_ID_BYTES or not any(span.span_id):
        raise RefusedSpanError("has no valid span id")
    if len(span.parent_span_id) not in (0, _SPAN_ID_BYTES):
        raise RefusedSpanError("has no valid parent id")
    if span.parent_span_id == span.span_id:
        raise RefusedSpanError("is its own parent")
    if not (0 < span.start_time_unix_nano <= _MAX_TIME_NS and 0 < span.end_time_unix_nano <= _MAX_TIME_NS):
        raise RefusedSpanError("has no valid start or end time")
    if span.end_time_unix_nano < span.start_time_unix_nano:
        raise RefusedSpanError("ends before it starts")


def _add_details(line: dict[str, Any], span: Any) -> None:
    """Add the fields that few spans have."""
    if span.events:
        line["events"] = [
            {
                "timeUnixNano": str(event.time_unix_nano),
                "name": event.name,
                "attributes": _attributes(event.attributes),
                **_dropped(event.dropped_attributes_count),
            }
            for event in span.events
        ]
    if span.links:
        line["links"] = [_link(link) for link in span.links]
    line.update(_dropped(span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count))
    if span.status.code or span.status.message:
        line["status"] = {"code": span.status.code, "message": span.status.message}
    if span.trace_state:
        line["traceState"] = span.trace_state


def _link(link: Any) -> dict[str, Any]:
    if len(link.trace_id) != _TRACE_ID_BYTES or len(link.span_id) != _SPAN_ID_BYTES:
        raise RefusedSpanError("has a link without valid ids")
    return {
        "traceId": link.trace_id.hex(),
        "spanId": link.span_id.hex(),
        "traceState": link.trace_state,
        "flags": link.flags,
        "attributes": _attributes(link.attributes),
        **_dropped(link.dropped_attributes_count),
    }


def _dropped(attributes: int, events: int = 0, links: int = 0) -> dict[str, int]:
    counts = {
        "droppedAttributesCount": attributes,
        "droppedEventsCount": events,
        "droppedLinksCount": links,
    }
    return {name: count for name, count in counts.items() if count}


# --- Resource, scope and values -----------------------------------------------------------------------------


def _resource(of_resource: Any, redact: RedactResource | None) -> tuple[str, bytes]:
    """Return the run that a sender names, and its resource as the rest of an open head."""
    sent = _attributes(of_resource.resource.attributes)
    run_id = next((str(e["value"].get("stringValue", "")) for e in sent if e["key"] == semconv.RUN_ID), "")
    kept = [entry for entry in sent if entry["key"] not in _OF_THIS_RUN]
    if redact is not None:
        encoded = writer.attribute_list(redact(attributes_of({"attributes": kept})))
    else:
        encoded = orjson.dumps(kept)
    schema = b'"schemaUrl":%b,' % orjson.dumps(of_resource.schema_url) if of_resource.schema_url else b""
    return run_id, b"%b]},%b%b" % (b"," + encoded[1:-1] if kept else b"", schema, writer.SCOPES)


def _scope(run_id: str, resource: bytes, of_scope: Any, spans: Sequence[Any]) -> ReceivedScope:
    scope = of_scope.scope
    attributes = attributes_of({"attributes": _attributes(scope.attributes)})
    head = writer.scope_head(scope.name, scope.version, attributes, of_scope.schema_url)
    return ReceivedScope(run_id, resource, scope.name, head, spans)


def entries(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as the entries of a list in a line."""
    return list(orjson.loads(writer.attribute_list(attributes)))


def _attributes(given: Iterable[Any], depth: int = 0) -> list[dict[str, Any]]:
    """Return attributes, or the entries of a map, of a protobuf message; the last one of equal keys."""
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
        return {"doubleValue": _double(value.double_value)}
    return {} if type_ is None else _nested(type_, value, depth)


def _nested(type_: str, value: Any, depth: int) -> dict[str, Any]:
    if type_ == "bytes_value":
        return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
    if depth >= MAX_DEPTH:
        return {"stringValue": TOO_DEEP}
    if type_ == "array_value":
        return {"arrayValue": {"values": [_value(entry, depth + 1) for entry in value.array_value.values]}}
    if type_ == "kvlist_value":
        return {"kvlistValue": {"values": _attributes(value.kvlist_value.values, depth + 1)}}
    return {}  # of a newer version of OTLP


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
