"""Spans and recorded lines as the bodies of OTLP requests, of bounded size."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.exporting.encodable import encodable
from otel_rollout_otlp.protobuf import Recorded, request_of, spans_in

_HEAD: Final = b'{"resourceSpans":['
_TAIL: Final = b"]}"
_IDS: Final = ("traceId", "spanId", "parentSpanId")


_Span = TypeVar("_Span")


def bounded(
    spans: Sequence[_Span], encode: Callable[[Sequence[_Span]], bytes], max_bytes: int
) -> Iterator[bytes]:
    """Encode spans into bodies of at most ``max_bytes``; a larger span goes alone."""
    body = encode(spans)
    if len(spans) <= 1 or len(body) <= max_bytes:
        yield body
        return
    middle = len(spans) // 2
    yield from bounded(spans[:middle], encode, max_bytes)
    yield from bounded(spans[middle:], encode, max_bytes)


def protobuf_of_spans(spans: Sequence[ReadableSpan]) -> bytes:
    """One request of spans, as protobuf."""
    encoded: bytes = encode_spans([encodable(span) for span in spans]).SerializeToString()
    return encoded


def json_of_spans(spans: Sequence[ReadableSpan]) -> bytes:
    """One request of spans, as OTLP/JSON, whose ids are hex where protobuf's own JSON has base64."""
    request = encode_spans([encodable(span) for span in spans])
    data: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for of_resource in data.get("resourceSpans", ()):
        for of_scope in of_resource.get("scopeSpans", ()):
            for span in of_scope.get("spans", ()):
                for holder in (span, *span.get("links", ())):
                    _ids_to_hex(holder)
    return orjson.dumps(data)


def _ids_to_hex(holder: dict[str, Any]) -> None:
    for key in _IDS:
        if key in holder:
            holder[key] = base64.b64decode(holder[key]).hex()


def protobuf_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Put the spans of lines of OTLP JSON Lines into bodies of protobuf; a larger span goes alone.

    As JSON they are larger, so lines that fit hold spans that fit. One that does not may hold several spans.
    """
    for part in _parts(lines, max_bytes):
        if len(part[0]) <= max_bytes:
            yield _protobuf(spans_in(part))
        else:
            yield from bounded(list(spans_in(part)), _protobuf, max_bytes)


def _protobuf(spans: Iterable[Recorded]) -> bytes:
    encoded: bytes = request_of(spans).SerializeToString()
    return encoded


def json_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join lines of OTLP JSON Lines into bodies of JSON, without decoding them; a larger line goes alone.

    A line is a request of its own but for the newline; only the lists of resources are put into one.
    """
    for part in _parts(lines, max_bytes):
        yield _HEAD + b",".join([_resources_of(line) for line in part]) + _TAIL


def _parts(lines: Sequence[bytes], max_bytes: int) -> Iterator[Sequence[bytes]]:
    """Lines in parts of at most ``max_bytes``; a larger one alone."""
    begin = size = 0
    for end, line in enumerate(lines):
        if end > begin and size + len(line) > max_bytes:
            yield lines[begin:end]
            begin, size = end, 0
        size += len(line)
    if begin < len(lines):
        yield lines[begin:]


def _resources_of(line: bytes) -> bytes:
    """What stands in the list ``resourceSpans``. What is no trace data makes the receiver refuse it."""
    bare = line.strip()
    if bare.startswith(_HEAD) and bare.endswith(_TAIL):
        return bare[len(_HEAD) : -len(_TAIL)]
    try:  # other writers of the format may order and space it as they like
        return orjson.dumps(orjson.loads(bare)["resourceSpans"])[1:-1]
    except (ValueError, KeyError, TypeError):
        return bare
