"""Cutting spans into requests that MLflow takes: bounded in roots and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_rollout_mlflow.mapping import is_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.trace import ReadableSpan

MAX_ROOTS: Final = 50
"""Traces per request: more are not faster, and a request that fails costs more."""


def requests_of(spans: Sequence[ReadableSpan], max_bytes: int) -> Iterator[ExportTraceServiceRequest]:
    """Encode mapped spans into requests of at most ``MAX_ROOTS`` roots and ``max_bytes`` bytes of protobuf.

    A single span larger than that goes alone.
    """
    chunk: list[ReadableSpan] = []
    roots = 0
    for span in spans:
        if is_root(span):
            roots += 1
            if roots > MAX_ROOTS:
                yield from _bounded(chunk, max_bytes)
                chunk, roots = [], 1
        chunk.append(span)
    if chunk:
        yield from _bounded(chunk, max_bytes)


def _bounded(spans: Sequence[ReadableSpan], max_bytes: int) -> Iterator[ExportTraceServiceRequest]:
    request = encode_spans(spans)
    if len(spans) == 1 or request.ByteSize() <= max_bytes:
        yield request
        return
    middle = len(spans) // 2
    yield from _bounded(spans[:middle], max_bytes)
    yield from _bounded(spans[middle:], max_bytes)
