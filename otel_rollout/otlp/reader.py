"""Read OTLP/JSON: a line as JSON, and as spans of OpenTelemetry's SDK.

Exporters are written for the SDK's spans, so the spans returned here have the same types and ranges. If a
known field has another type or range, the whole line is unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_rollout.otlp.json_values import bytes_of_base64, double_of_json
from otel_rollout.otlp.writer import IS_REMOTE

_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_TRACE_DIGITS: Final = 32
_SPAN_DIGITS: Final = 16
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
_CODES: Final = {code.value: code for code in StatusCode}
_UNSET: Final = Status()
MAX_DEPTH: Final = 24
"""Maximum levels read of a nested attribute. Protobuf allows 100, and counts three for each level."""
TOO_DEEP: Final = "… (nested too deeply)"
"""Text in place of deeper levels."""


class UnreadableLineError(ValueError):
    """Raised for a line that is no OTLP/JSON trace data."""


class DecodedSpan(ReadableSpan):
    """A span of a line. UTF-8 can hold all its text, because JSON with half a surrogate is unreadable."""


def without_end(span: ReadableSpan) -> ReadableSpan:
    """Return a span that has not ended; its line has an end for the case that its process dies."""
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,  # the default starts threads to detect the resource
        span.attributes,
        links=span.links,
        instrumentation_scope=span.instrumentation_scope,
        start_time=span.start_time,
    )


class TraceLine:
    """A line of OTLP JSON Lines, as bytes and as spans, both made on first use.

    Args:
        encoded: the line, with its newline; None if ``parsed`` is given.
        parsed: the line's JSON, which must not change any more.
        recorded: the bytes to fall back on if ``parsed`` cannot be encoded.
    """

    __slots__ = ("_encoded", "_parsed", "_recorded", "_spans")

    def __init__(
        self,
        encoded: bytes | None = None,
        parsed: dict[str, Any] | None = None,
        recorded: bytes | None = None,
    ) -> None:
        self._recorded = recorded
        self._encoded = encoded
        self._parsed = parsed
        self._spans: list[ReadableSpan] | None = None

    @property
    def encoded(self) -> bytes:
        """The line as bytes."""
        parsed = self._parsed  # read first: another thread drops it once the bytes exist
        if self._encoded is None:
            self._encoded = self._dumped(parsed)
        return self._encoded

    def _dumped(self, parsed: dict[str, Any] | None) -> bytes:
        try:
            return orjson.dumps(parsed) + b"\n"
        except TypeError:  # nested more deeply than orjson writes, though it reads it
            if self._recorded is None:
                raise
            return self._recorded

    @property
    def spans(self) -> list[ReadableSpan]:
        """The line's spans. Fields and values of newer versions are ignored.

        Raises:
            UnreadableLineError: when the line is no OTLP/JSON trace data.
        """
        if self._spans is None:
            parsed = self._parsed
            self._spans = _decoded(parsed_line(self.encoded) if parsed is None else parsed)
            if self._encoded is not None:
                self._parsed = None
        return self._spans


def parsed_line(line: bytes) -> Any:
    """Parse one line of OTLP JSON Lines.

    Raises:
        UnreadableLineError: when the line is no JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError as error:
        raise _unreadable(error) from error


def spans_of(line: bytes) -> list[ReadableSpan]:
    """Decode one line of OTLP JSON Lines.

    Fields and values of newer versions are ignored.

    Raises:
        UnreadableLineError: when the line is no OTLP/JSON trace data.
    """
    return TraceLine(line).spans


def _decoded(parsed: Any) -> list[ReadableSpan]:
    try:
        return list(_spans(parsed["resourceSpans"]))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> UnreadableLineError:
    return UnreadableLineError(f"not OTLP/JSON trace data: {type(error).__name__}: {error}")


def _spans(resource_spans: Sequence[Mapping[str, Any]]) -> Iterator[ReadableSpan]:
    for of_resource in resource_spans:
        resource = _resource(of_resource.get("resource") or {})
        for of_scope in of_resource.get("scopeSpans", ()):
            described = of_scope.get("scope") or {}
            scope = _scope(
                _text(described.get("name")),
                _text(described.get("version")) or None,
                _text(of_scope.get("schemaUrl")) or None,
            )
            for span in of_scope.get("spans", ()):
                yield _span(span, resource, scope)


def _resource(parsed: Mapping[str, Any]) -> Resource:
    try:
        return _shared_resource(orjson.dumps(parsed))
    except TypeError:  # nested more deeply than orjson writes, though it reads it
        return Resource(attributes_of(parsed))


@lru_cache(maxsize=64)  # a process has one resource, and making it takes a third of the time of a span
def _shared_resource(encoded: bytes) -> Resource:
    return Resource(attributes_of(orjson.loads(encoded)))


@lru_cache(maxsize=64)
def _scope(name: str, version: str | None, schema_url: str | None) -> InstrumentationScope:
    return InstrumentationScope(name, version, schema_url)


def _span(span: Mapping[str, Any], resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    flags = _integer(span.get("flags", 1), 0, 1 << 32)
    state = _state(span)
    trace_id = _id(span["traceId"], _TRACE_DIGITS)
    parent = _parent_id(span)
    status = span.get("status")
    return DecodedSpan(
        name=_text(span.get("name")),
        context=_context(trace_id, _id(span["spanId"], _SPAN_DIGITS), flags, state, is_remote=False),
        parent=_context(trace_id, parent, flags, state, bool(flags & IS_REMOTE)) if parent else None,
        resource=resource,
        attributes=attributes_of(span),
        events=[_event(event) for event in span.get("events", ())],
        links=[_link(link) for link in span.get("links", ())],
        kind=_KINDS.get(_integer(span.get("kind", 1), 0, 1 << 31), SpanKind.INTERNAL),
        instrumentation_scope=scope,
        status=_status(status) if status else _UNSET,
        start_time=_time(span["startTimeUnixNano"]),
        end_time=_time(span["endTimeUnixNano"]),
    )


def _status(status: Mapping[str, Any]) -> Status:
    code = _CODES.get(_integer(status.get("code", 0), 0, 1 << 31), StatusCode.UNSET)
    message = _text(status.get("message"))
    return Status(code, message if code is StatusCode.ERROR and message else None)  # the OTel API's rule


def _state(holder: Mapping[str, Any]) -> TraceState | None:
    state = _text(holder.get("traceState"))
    return TraceState.from_header([state]) if state else None


def _context(
    trace_id: int, span_id: int, flags: int, state: TraceState | None, is_remote: bool
) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(flags & 0xFF), state)


def _event(event: Mapping[str, Any]) -> Event:
    return Event(_text(event.get("name")), attributes_of(event), _time(event["timeUnixNano"]))


def _link(link: Mapping[str, Any]) -> Link:
    flags = _integer(link.get("flags", 0), 0, 1 << 32)
    ids = _id(link["traceId"], _TRACE_DIGITS, least=0), _id(link["spanId"], _SPAN_DIGITS, least=0)
    return Link(_context(*ids, flags, _state(link), bool(flags & IS_REMOTE)), attributes_of(link))


def attributes_of(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the attributes of a resource, scope, span, event or link."""
    return _entries(holder.get("attributes", ()), 0)


def events_of(span: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Decode name and attributes of a span's events."""
    return [(str(event.get("name")), attributes_of(event)) for event in span.get("events", ())]


def _entries(entries: Sequence[Mapping[str, Any]], depth: int) -> dict[str, Any]:
    found = {}
    for entry in entries:
        key, value = entry["key"], entry.get("value") or {}
        if type(key) is not str:
            key = _text(key)
        # Most attributes are text, and a call takes longer than the rest of the loop.
        text = value.get("stringValue") if len(value) == 1 and depth <= MAX_DEPTH else None
        found[key] = text if type(text) is str else _value(value, depth)
    return found


def _value(value: Mapping[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return TOO_DEEP
    for type_, content in value.items():
        if type_ == "stringValue":
            return _text(content)
        if type_ == "boolValue":
            return _of_type(bool, content)
        if type_ == "intValue":
            return _integer(content, -(1 << 63), 1 << 63)
        if type_ == "doubleValue":
            return double_of_json(content)
        if type_ == "bytesValue":
            return bytes_of_base64(content)
        if type_ == "arrayValue":
            return [_value(entry, depth + 1) for entry in content.get("values", ())]
        if type_ == "kvlistValue":
            return _entries(content.get("values", ()), depth + 1)
    return None


def _text(value: Any) -> str:
    """Check that a value is a string; return Protobuf's default, "", for None."""
    return "" if value is None else _of_type(str, value)


def _of_type(type_: type[Any], value: Any) -> Any:
    if type(value) is not type_:
        raise TypeError(f"{type_.__name__} expected, not {type(value).__name__}")
    return value


def _integer(value: Any, least: int, beyond: int) -> int:
    """Parse an integer, which OTLP/JSON writes as text or as a number."""
    number = int(value)
    if isinstance(value, bool) or not least <= number < beyond or (type(value) is float and value % 1):
        raise ValueError(f"an integer from {least} to {beyond - 1} expected")
    return number


def _time(value: Any) -> int:
    return _integer(value, 0, 1 << 64)


def _id(value: Any, digits: int, least: int = 1) -> int:
    """Parse an id in hex.

    An id of zeros is invalid (W3C Trace Context). Only a link may have such an id, so that its attributes are
    not lost.
    """
    is_hex = _HEX.fullmatch(_of_type(str, value))
    number = int(value, 16) if is_hex else -1
    if not least <= number < 1 << 4 * digits:
        raise ValueError(f"an id is not {digits} hex digits, or is out of range")
    return number


def _parent_id(span: Mapping[str, Any]) -> int:
    """Return the parent's id; 0 without a parent, for which some writers write zeros."""
    parent = _text(span.get("parentSpanId"))
    return _id(parent, _SPAN_DIGITS) if parent.strip("0") else 0
