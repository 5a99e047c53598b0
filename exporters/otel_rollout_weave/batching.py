"""Cutting spans into requests that Weave takes: one project each, bounded in calls and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from otel_rollout import semconv
from otel_rollout_weave.mapping import Call, trace_id_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

MAX_CALLS: Final = 1000
"""Calls per request, as weave's own client limits it."""
MAX_REQUEST_BYTES: Final = 8 << 20
"""Bytes per request. The server takes 32 MiB; more than this is no faster and longer in memory."""


def by_project(
    spans: Sequence[ReadableSpan], last_project: str | None
) -> dict[str | None, list[ReadableSpan]]:
    """Group spans by the project they belong to (None: none known), in the order they came.

    A span of other instrumentation (an HTTP client inside a tool, say) names no project: it goes to its
    trace's, or, where it comes before the rest of its trace, to ``last_project``, the project seen last.
    """
    project_of_trace: dict[str, str] = {}
    rooted: set[str] = set()
    for span in spans:
        trace_id = trace_id_of(span)
        project = (span.attributes or {}).get(semconv.PROJECT_NAME)
        if project:
            project_of_trace.setdefault(trace_id, _clean(str(project)))
        if span.parent is None:
            rooted.add(trace_id)
    groups: dict[str | None, list[ReadableSpan]] = {}
    for span in spans:
        trace_id = trace_id_of(span)
        project = project_of_trace.get(trace_id) or (None if trace_id in rooted else last_project)
        groups.setdefault(project, []).append(span)
    return groups


def _clean(project: str) -> str:
    """Without halves of surrogate pairs, which no request can hold."""
    return project.encode("utf-8", "replace").decode()


def requests_of(calls: Iterable[Call], max_bytes: int = MAX_REQUEST_BYTES) -> Iterator[list[Call]]:
    """Cut calls into batches; one that is larger than ``max_bytes`` goes alone."""
    batch: list[Call] = []
    size = 0
    for call in calls:
        if batch and (len(batch) >= MAX_CALLS or size + len(call.encoded) > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += len(call.encoded) + 1
    if batch:
        yield batch
