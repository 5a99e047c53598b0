"""Cutting spans into requests that MLflow takes: one experiment each, bounded in roots and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_rollout import semconv
from otel_rollout_mlflow.mapping import is_root, trace_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.trace import ReadableSpan

MAX_ROOTS: Final = 50
"""Traces per request: more are not faster, and a request that fails costs more."""


def by_project(
    spans: Sequence[ReadableSpan], last_project: str | None
) -> dict[str | None, list[ReadableSpan]]:
    """Group spans by the project they belong to (None: none known), in the order they came.

    Spans of other instrumentation (an HTTP client inside a tool, say) name no project. They belong to
    their trace's. If such a span comes before the rest of its trace, it goes to ``last_project``, the
    project seen last: MLflow keeps a trace in the experiment where its first span put it, and a whole
    trajectory in the wrong experiment is worse than a guess that is right wherever there is one project.
    """
    project_of_trace: dict[str, str] = {}
    for span in spans:
        project = (span.attributes or {}).get(semconv.PROJECT_NAME)
        if project:
            project_of_trace.setdefault(trace_id_of(span), _clean(str(project)))
    rooted = {trace_id_of(span) for span in spans if is_root(span)}

    groups: dict[str | None, list[ReadableSpan]] = {}
    for span in spans:
        trace_id = trace_id_of(span)
        project = project_of_trace.get(trace_id) or (None if trace_id in rooted else last_project)
        groups.setdefault(project, []).append(span)
    return groups


def _clean(project: str) -> str:
    """Without halves of surrogate pairs, which no request can hold."""
    return project.encode("utf-8", "replace").decode()


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
