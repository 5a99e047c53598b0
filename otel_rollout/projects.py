"""Which project a span belongs to: MLflow's experiment, Weave's project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout import semconv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan


def by_project(
    spans: Sequence[ReadableSpan], last_project: str | None
) -> dict[str | None, list[ReadableSpan]]:
    """Group spans by the project they belong to (None: none known), in the order they came.

    Spans of other instrumentation (an HTTP client inside a tool, say) name no project. They belong to
    their trace's. If such a span comes before the rest of its trace, it goes to ``last_project``, the
    project seen last: MLflow keeps a trace in the experiment where its first span put it, and a whole
    trajectory in the wrong experiment is worse than a guess that is right wherever there is one project.
    """
    project_of_trace: dict[int, str] = {}
    rooted: set[int] = set()
    for span in spans:
        project = (span.attributes or {}).get(semconv.PROJECT_NAME)
        if project:
            project_of_trace.setdefault(_trace_of(span), _clean(str(project)))
        if span.parent is None:
            rooted.add(_trace_of(span))

    groups: dict[str | None, list[ReadableSpan]] = {}
    for span in spans:
        trace = _trace_of(span)
        project = project_of_trace.get(trace) or (None if trace in rooted else last_project)
        groups.setdefault(project, []).append(span)
    return groups


def _trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return context.trace_id


def _clean(project: str) -> str:
    """Without halves of surrogate pairs, which no request can hold."""
    return project.encode("utf-8", "replace").decode()
