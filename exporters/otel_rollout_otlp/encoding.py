"""Encode spans and recorded lines as bodies of OTLP requests, of bounded size."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.exporting.batching import batches, halved
from otel_rollout.exporting.protobuf import request_of
from otel_rollout_otlp import protobuf
from otel_rollout_otlp.protobuf import RecordedSpan, spans_in

_HEAD: Final = b'{"resourceSpans":['
_TAIL: Final = b"]}"
_IDS: Final = ("traceId", "spanId", "parentSpanId")


def protobuf_of_spans(spans: Sequence[ReadableSpan]) -> bytes:
    """Encode one request of spans as protobuf."""
    encoded: bytes = request_of(spans).SerializeToString()
    return encoded


def json_of_spans(spans: Sequence[ReadableSpan]) -> bytes:
    """Encode one request of spans as OTLP/JSON, with ids in hex."""
    data: dict[str, Any] = MessageToDict(request_of(spans), use_integers_for_enums=True)
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
    """Encode the spans of OTLP JSON Lines as bodies of protobuf.

    Protobuf is smaller than JSON, so lines within the limit make one body within the limit. Larger input is
    divided between spans; a span larger than the limit is a body alone.
    """
    for batch in batches(lines, len, max_bytes):
        if len(batch[0]) <= max_bytes:
            yield _protobuf(spans_in(batch))
        else:
            yield from halved(list(spans_in(batch)), _protobuf, len, max_bytes)


def _protobuf(spans: Iterable[RecordedSpan]) -> bytes:
    encoded: bytes = protobuf.request_of(spans).SerializeToString()
    return encoded


def json_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join OTLP JSON Lines into bodies of JSON, without decoding them.

    Each line, without its newline, is a request; a body joins the resource lists of several lines. A line
    larger than the limit is a body alone.
    """
    for batch in batches(lines, len, max_bytes):
        yield _HEAD + b",".join([_resources_of(line) for line in batch]) + _TAIL


def _resources_of(line: bytes) -> bytes:
    """Return the entries of a line's list ``resourceSpans``; other text unchanged."""
    bare = line.strip()
    if bare.startswith(_HEAD) and bare.endswith(_TAIL):
        return bare[len(_HEAD) : -len(_TAIL)]
    try:  # another program's line may have other spaces and another order of keys
        return orjson.dumps(orjson.loads(bare)["resourceSpans"])[1:-1]
    except (ValueError, KeyError, TypeError):
        return bare
