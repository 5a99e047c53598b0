"""Find a span's trace, and its project: MLflow's experiment, Weave's project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout.base import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


def by_project(
    spans: Sequence[ReadableSpan], last_project: str | None
) -> dict[str | None, list[ReadableSpan]]:
    """Group spans by project, in order; the group of None has no known project.

    Spans of other instrumentation (such as an HTTP client inside a tool) and operations outside any
    trajectory name no project. Such a span belongs to the project of its trace, else to the project that its
    resource names. The resource of a foreign provider names none. Then a span that comes before the rest of
    its trace goes to ``last_project``: MLflow keeps a trace in the experiment of its first span, and the
    guess is right if the rollout has only one project.

    Args:
        spans: in order.
        last_project: project of the previous batch; None if there was none.
    """
    project_of_trace: dict[int, str] = {}
    rooted: set[int] = set()
    for span in spans:
        if named := _named_in(span.attributes):
            project_of_trace.setdefault(context_of(span).trace_id, named)
        if span.parent is None:
            rooted.add(context_of(span).trace_id)

    groups: dict[str | None, list[ReadableSpan]] = {}
    for span in spans:
        trace = context_of(span).trace_id
        project = (
            project_of_trace.get(trace)
            or _named_in(span.resource.attributes)
            or (None if trace in rooted else last_project)
        )
        groups.setdefault(project, []).append(span)
    return groups


def context_of(span: ReadableSpan) -> SpanContext:
    """Return a span's context.

    Raises:
        ValueError: the span has none.
    """
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return context


def _named_in(attributes: Mapping[str, object] | None) -> str:
    """Return the project that attributes name, in characters that UTF-8 can hold."""
    project = (attributes or {}).get(semconv.PROJECT_NAME)
    return str(project).encode("utf-8", "replace").decode() if project else ""
