"""Spans and recorded lines as OTLP requests of bounded size."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.encodable import encodable

_HEAD: Final = b'{"resourceSpans":['
_TAIL: Final = b"]}"
_IDS: Final = ("traceId", "spanId", "parentSpanId")


def json_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join lines of OTLP JSON Lines into request bodies of at most ``max_bytes``, without decoding them.

    A line is a request of its own but for the newline; only the lists of resources are put into one. A
    line larger than ``max_bytes`` goes alone.
    """
    parts: list[bytes] = []
    size = 0
    for line in lines:
        part = _resources_of(line)
        if parts and size + len(part) > max_bytes:
            yield _HEAD + b",".join(parts) + _TAIL
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield _HEAD + b",".join(parts) + _TAIL


def _resources_of(line: bytes) -> bytes:
    """What stands in the list ``resourceSpans``. What is no trace data makes the receiver refuse it."""
    bare = line.strip()
    if bare.startswith(_HEAD) and bare.endswith(_TAIL):
        return bare[len(_HEAD) : -len(_TAIL)]
    try:  # other writers of the format may order and space it as they like
        return orjson.dumps(orjson.loads(bare)["resourceSpans"])[1:-1]
    except (ValueError, KeyError, TypeError):
        return bare


def requests_of(spans: Sequence[ReadableSpan], max_bytes: int) -> Iterator[ExportTraceServiceRequest]:
    """Encode spans into requests of at most ``max_bytes`` of protobuf; a larger span goes alone."""
    request = encode_spans([encodable(span) for span in spans])
    if len(spans) <= 1 or request.ByteSize() <= max_bytes:
        yield request
        return
    middle = len(spans) // 2
    yield from requests_of(spans[:middle], max_bytes)
    yield from requests_of(spans[middle:], max_bytes)


def json_of_request(request: ExportTraceServiceRequest) -> bytes:
    """A request as OTLP/JSON, whose ids are hex where protobuf's own JSON has base64."""
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
