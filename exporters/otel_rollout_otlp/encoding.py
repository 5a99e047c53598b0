"""Encode spans and recorded lines as bodies of OTLP requests, of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict, Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from otel_rollout.exporting.batching import batches, halved
from otel_rollout.exporting.protobuf import request_of
from otel_rollout.otlp.json_line import request_of as joined
from otel_rollout.otlp.line_protobuf import InLine, fields_of, spans_in
from otel_rollout.otlp.protobuf import ids_to_hex
from otel_rollout.otlp.span import Span

_parse: Final = partial(Parse, ignore_unknown_fields=True)


def protobuf_of_spans(spans: Sequence[Span]) -> bytes:
    """Encode one request of spans as protobuf."""
    encoded: bytes = request_of(spans).SerializeToString()
    return encoded


def json_of_spans(spans: Sequence[Span]) -> bytes:
    """Encode one request of spans as OTLP/JSON, with ids in hex."""
    data: dict[str, Any] = MessageToDict(request_of(spans), use_integers_for_enums=True)
    ids_to_hex(data)
    return orjson.dumps(data)


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


def _protobuf(spans: Iterable[InLine]) -> bytes:
    """Encode one request of spans, with each resource and scope once."""
    request = ExportTraceServiceRequest()
    resources: dict[bytes, ResourceSpans] = {}
    scopes: dict[tuple[bytes, bytes], ScopeSpans] = {}
    for resource, scope, span in spans:
        if (resource, scope) not in scopes:
            if resource not in resources:
                resources[resource] = _parse(resource, request.resource_spans.add())
            scopes[resource, scope] = _parse(scope, resources[resource].scope_spans.add())
        scopes[resource, scope].spans.add(**fields_of(span))
    encoded: bytes = request.SerializeToString()
    return encoded


def json_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join OTLP JSON Lines into bodies of JSON; a line larger than the limit is a body alone."""
    return map(joined, batches(lines, len, max_bytes))
