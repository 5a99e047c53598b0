"""Read, change and join the lines of OTLP/JSON: as bytes, as JSON and as spans.

If a known field of a span has another type or range than OTLP gives it, the whole line is unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from otel_rollout.otlp import json_values
from otel_rollout.otlp.span import DROPPED, UNREADABLE, Event, Link, Span
from otel_rollout.otlp.writer import (
    LIST_END,
    SCOPES,
    AttributeInput,
    attribute_list,
    attribute_list_at_once,
    resource_head,
    scope_head,
)

HEAD_WITHOUT_RESOURCE: Final = b'{"resourceSpans":[{' + SCOPES
"""Text to put before a line that lacks its resource head, so that the line is JSON."""
NOT_TEXT: Final = ("intValue", "doubleValue", "bytesValue")
"""Members of a value that are JSON strings but not text: numbers, and bytes in base64."""
_REQUEST_HEAD: Final = b'{"resourceSpans":['
_REQUEST_TAIL: Final = b"]}"


def spans_of_json(data: Mapping[str, Any]) -> Iterator[Span]:
    """Yield the spans of a line's JSON."""
    for of_resource in data["resourceSpans"]:
        for of_scope in of_resource.get("scopeSpans", ()):
            within = of_resource, of_scope
            for fields in of_scope.get("spans", ()):
                yield Span(fields, within)


def scopes_of_json(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the scopes of a line's JSON."""
    for of_resource in data["resourceSpans"]:
        yield from (of_scope.get("scope", {}) for of_scope in of_resource.get("scopeSpans", ()))


def without_spans(data: Mapping[str, Any], is_left_out: Callable[[Span], bool]) -> None:
    """Remove spans from a line's JSON."""
    for of_resource in data["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            of_scope["spans"] = [span for span in of_scope["spans"] if not is_left_out(Span(span))]


def set_resource_text(data: Mapping[str, Any], key: str, text: str) -> None:
    """Change the text of an attribute of the first resource; raise KeyError if the attribute is missing."""
    json_values.set_text(data["resourceSpans"][0].get("resource", {}), key, text)


def is_trace_data(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a line of OTLP/JSON."""
    return "resourceSpans" in record


def line_of(spans: Sequence[Span]) -> bytes:
    """Return complete spans of one resource and scope as a line."""
    resource, scope = spans[0].resource, spans[0].scope
    head = resource_head(resource.attributes, resource.schema_url)
    head += scope_head(scope.name, scope.version, scope.attributes, scope.schema_url)
    return head + b",".join(orjson.dumps(fields_of(span)) for span in spans) + LIST_END


def fields_of(span: Span, before: bytes = b"") -> dict[str, Any]:
    """Return a complete span as its JSON in a line, with the ids where :mod:`scan` looks for them.

    Args:
        span: the span.
        before: encoded attributes that come before those of the span.
    """
    attributes = _attributes(span.attributes)
    if before:
        attributes = b"[%b%b" % (before, b"," + attributes[1:] if span.attributes else b"]")
    fields: dict[str, Any] = {
        "parentSpanId": span.parent_id,
        "flags": span.flags,
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": "0" if span.is_running else str(span.end_ns),
        "attributes": orjson.Fragment(attributes),
    }
    if span.events:
        fields["events"] = list(map(_event, span.events))
    if span.links:
        fields["links"] = list(map(_link, span.links))
    if any(span.dropped):
        fields.update(zip(DROPPED, span.dropped, strict=True))
    if span.status or span.message:
        fields["status"] = {"code": span.status, "message": span.message}
    if span.trace_state:
        fields["traceState"] = span.trace_state
    return fields


def _event(event: Event) -> dict[str, Any]:
    return {
        "timeUnixNano": str(event.time_ns),
        "name": event.name,
        "attributes": orjson.Fragment(_attributes(event.attributes)),
        DROPPED[0]: event.dropped,
    }


def _link(link: Link) -> dict[str, Any]:
    return {
        "traceId": link.trace_id,
        "spanId": link.span_id,
        "traceState": link.trace_state,
        "flags": link.flags,
        "attributes": orjson.Fragment(_attributes(link.attributes)),
        DROPPED[0]: link.dropped,
    }


def _attributes(attributes: Mapping[str, Any]) -> bytes:
    try:
        return attribute_list_at_once(attributes)
    except TypeError:  # text of a dump that UTF-8 cannot hold
        return attribute_list(attributes)


def changed_texts(
    attributes: Mapping[str, AttributeInput], change: Callable[[bytes], bytes]
) -> dict[str, AttributeInput]:
    """Return attributes with their texts changed by ``change``, a function that rewrites a line.

    ``change`` gets the attributes inside a line without its resource head.
    """
    line = change(b'"scope":{"attributes":%b},"spans":[]}]}]}\n' % attribute_list(attributes))
    scope = orjson.loads(HEAD_WITHOUT_RESOURCE + line)["resourceSpans"][0]["scopeSpans"][0]["scope"]
    entries = ((entry["key"], entry["value"]) for entry in scope["attributes"])
    return {key: value.get("stringValue", attributes.get(key)) for key, value in entries}


def as_recorded(line: bytes) -> bytes:
    """Return another program's line with the spacing of a recorded line, which :mod:`scan` expects."""
    if line.startswith(_REQUEST_HEAD) or b'"resourceSpans"' not in line:
        return line
    try:
        return orjson.dumps(orjson.loads(line)) + b"\n"
    except (ValueError, TypeError):  # no JSON, or nested more deeply than orjson writes, though it reads it
        return line


def request_of(lines: Iterable[bytes]) -> bytes:
    """Join the resource lists of OTLP JSON Lines to one request, without decoding the lines."""
    return _REQUEST_HEAD + b",".join(map(_resources_of, lines)) + _REQUEST_TAIL


def _resources_of(line: bytes) -> bytes:
    """Return the entries of a line's list ``resourceSpans``; other text is only stripped."""
    bare = line.strip()
    if bare.startswith(_REQUEST_HEAD) and bare.endswith(_REQUEST_TAIL):
        return bare[len(_REQUEST_HEAD) : -len(_REQUEST_TAIL)]
    try:  # another program's line may have other spaces and another order of keys
        return orjson.dumps(orjson.loads(bare)["resourceSpans"])[1:-1]
    except (ValueError, KeyError, TypeError):
        return bare


class UnreadableLineError(ValueError):
    """Raised for a line that is no OTLP/JSON trace data."""


class TraceLine:
    """A line of OTLP JSON Lines, as bytes and as complete spans, both made on first use.

    Args:
        encoded: the line, with its newline; None if ``parsed`` is given.
        parsed: the line's JSON, which must not change any more.
        recorded: the bytes to fall back on if ``parsed`` cannot be encoded.
        spans: the spans of ``parsed``, if they are read already.
    """

    __slots__ = ("_encoded", "_opened", "_parsed", "_recorded", "_spans")

    def __init__(
        self,
        encoded: bytes | None = None,
        parsed: dict[str, Any] | None = None,
        recorded: bytes | None = None,
        spans: list[Span] | None = None,
    ) -> None:
        self._recorded = recorded
        self._encoded = encoded
        self._parsed = parsed
        self._opened = [] if spans is None else [spans]
        self._spans: list[Span] | None = None

    @property
    def encoded(self) -> bytes:
        """The line as bytes."""
        parsed = self._parsed  # read first: another thread drops it once the bytes exist
        if self._encoded is None:
            self._encoded = self._dumped(parsed)
        return self._encoded

    def _dumped(self, parsed: dict[str, Any] | None) -> bytes:
        try:
            return orjson.dumps(parsed, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # nested more deeply than orjson writes, though it reads it
            if self._recorded is None:
                raise
            return self._recorded

    @property
    def spans(self) -> list[Span]:
        """The line's spans, complete. Fields and values of newer versions are ignored.

        Raises:
            UnreadableLineError: when the line is no OTLP/JSON trace data.
        """
        if self._spans is None:
            self._spans = self._completed()
            if self._encoded is not None:
                self._parsed = None
        return self._spans

    def _completed(self) -> list[Span]:
        parsed = self._parsed
        try:
            try:
                opened: Iterable[Span] = self._opened.pop()  # one thread alone completes a span
            except IndexError:
                opened = spans_of_json(parsed_line(self.encoded) if parsed is None else parsed)
            return [span.complete() for span in opened]
        except UnreadableLineError:
            raise
        except UNREADABLE as error:
            raise _unreadable(error) from error


def parsed_line(line: bytes) -> Any:
    """Parse one line of OTLP JSON Lines.

    Raises:
        UnreadableLineError: when the line is no JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError as error:
        raise _unreadable(error) from error


def spans_of(line: bytes) -> list[Span]:
    """Decode one line of OTLP JSON Lines.

    Fields and values of newer versions are ignored.

    Raises:
        UnreadableLineError: when the line is no OTLP/JSON trace data.
    """
    return TraceLine(line).spans


def _unreadable(error: Exception) -> UnreadableLineError:
    return UnreadableLineError(f"not OTLP/JSON trace data: {type(error).__name__}: {error}")
