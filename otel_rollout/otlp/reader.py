"""A line of a segment → OTel SDK spans, as every span exporter takes them.

What comes out has the types and ranges of the SDK's own spans, for which exporters, ours and others', are
written. A line with anything else in a field we know is told apart as a whole.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_rollout.otlp.writer import IS_REMOTE

_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_TRACE_DIGITS: Final = 32
_SPAN_DIGITS: Final = 16
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
_CODES: Final = {code.value: code for code in StatusCode}
_MAX_DEPTH: Final = 24
"""Levels of nesting kept of an attribute. Protobuf stops at 100, and counts three for each of ours."""


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
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UnreadableLineError(f"not OTLP/JSON trace data: {type(error).__name__}: {error}") from error


def _spans(resource_spans: Sequence[Mapping[str, Any]]) -> Iterator[ReadableSpan]:
    for of_resource in resource_spans:
        resource = Resource(_attributes(of_resource.get("resource") or {}))
        for of_scope in of_resource.get("scopeSpans", ()):
            described = of_scope.get("scope") or {}
            scope = InstrumentationScope(
                _text(described.get("name")),
                _text(described.get("version")) or None,
                _text(of_scope.get("schemaUrl")) or None,
            )
            for span in of_scope.get("spans", ()):
                yield _span(span, resource, scope)


def _span(span: Mapping[str, Any], resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    flags = _integer(span.get("flags", 1), 0, 1 << 32)
    state = _state(span)
    trace_id = _id(span["traceId"], _TRACE_DIGITS)
    parent = _parent_id(span)
    status = span.get("status") or {}
    return ReadableSpan(
        name=_text(span.get("name")),
        context=_context(trace_id, _id(span["spanId"], _SPAN_DIGITS), flags, state, is_remote=False),
        parent=_context(trace_id, parent, flags, state, bool(flags & IS_REMOTE)) if parent else None,
        resource=resource,
        attributes=_attributes(span),
        events=[_event(event) for event in span.get("events", ())],
        links=[_link(link) for link in span.get("links", ())],
        kind=_KINDS.get(_integer(span.get("kind", 1), 0, 1 << 31), SpanKind.INTERNAL),
        instrumentation_scope=scope,
        status=_status(status),
        start_time=_time(span["startTimeUnixNano"]),
        end_time=_time(span["endTimeUnixNano"]),
    )


def _status(status: Mapping[str, Any]) -> Status:
    code = _CODES.get(_integer(status.get("code", 0), 0, 1 << 31), StatusCode.UNSET)
    message = _text(status.get("message"))
    return Status(code, message if code is StatusCode.ERROR and message else None)  # as the OTel API has it


def _state(holder: Mapping[str, Any]) -> TraceState | None:
    state = _text(holder.get("traceState"))
    return TraceState.from_header([state]) if state else None


def _context(
    trace_id: int, span_id: int, flags: int, state: TraceState | None, is_remote: bool
) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(flags & 0xFF), state)


def _event(event: Mapping[str, Any]) -> Event:
    return Event(_text(event.get("name")), _attributes(event), _time(event["timeUnixNano"]))


def _link(link: Mapping[str, Any]) -> Link:
    flags = _integer(link.get("flags", 0), 0, 1 << 32)
    ids = _id(link["traceId"], _TRACE_DIGITS, least=0), _id(link["spanId"], _SPAN_DIGITS, least=0)
    return Link(_context(*ids, flags, _state(link), bool(flags & IS_REMOTE)), _attributes(link))


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return _entries(holder.get("attributes", ()), 0)


def _entries(entries: Sequence[Mapping[str, Any]], depth: int) -> dict[str, Any]:
    return {_text(entry["key"]): _value(entry.get("value") or {}, depth) for entry in entries}


def _value(value: Mapping[str, Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return "… (nested too deeply)"
    for kind, held in value.items():
        if kind == "stringValue":
            return _text(held)
        if kind == "boolValue":
            return _of_type(bool, held)
        if kind == "intValue":
            return _integer(held, -(1 << 63), 1 << 63)
        if kind == "doubleValue":
            return float(held)
        if kind == "bytesValue":
            return base64.b64decode(held)
        if kind == "arrayValue":
            return [_value(entry, depth + 1) for entry in held.get("values", ())]
        if kind == "kvlistValue":
            return _entries(held.get("values", ()), depth + 1)
    return None


def _text(held: Any) -> str:
    """A string; protobuf's default where it is missing."""
    return "" if held is None else _of_type(str, held)


def _of_type(kind: type[Any], held: Any) -> Any:
    if type(held) is not kind:
        raise TypeError(f"{kind.__name__} expected, not {type(held).__name__}")
    return held


def _integer(held: Any, least: int, beyond: int) -> int:
    """An integer, which OTLP/JSON may have as text or number."""
    if isinstance(held, bool) or not least <= int(held) < beyond or (type(held) is float and held % 1):
        raise ValueError(f"an integer from {least} to {beyond - 1} expected")
    return int(held)


def _time(held: Any) -> int:
    return _integer(held, 0, 1 << 64)


def _id(held: Any, digits: int, least: int = 1) -> int:
    """An id in hex; all zeros are none (W3C Trace Context), as only links may have, for their attributes."""
    if not _HEX.fullmatch(_of_type(str, held)) or not least <= int(held, 16) < 1 << 4 * digits:
        raise ValueError(f"no id of {digits} hex digits")
    return int(held, 16)


def _parent_id(span: Mapping[str, Any]) -> int:
    """The parent's id; 0 where there is none, which some writers spell as zeros."""
    parent = _text(span.get("parentSpanId"))
    return _id(parent, _SPAN_DIGITS) if parent.strip("0") else 0
