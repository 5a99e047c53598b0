"""Find a span's trace, and its project: MLflow's experiment, Weave's project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_rollout.base import semconv
from otel_rollout.otlp import sdk
from otel_rollout.otlp.span import Span

AnySpan = TypeVar("AnySpan", ReadableSpan, Span)


def by_project(spans: Sequence[AnySpan], last_project: str | None) -> dict[str | None, list[AnySpan]]:
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
    read = sdk.spans_of(spans)
    project_of_trace: dict[str, str] = {}
    for span in read:
        if named := _named_in(span.attributes):
            project_of_trace.setdefault(span.trace_id, named)
    rooted = {span.trace_id for span in read if not span.parent_id}

    groups: dict[str | None, list[AnySpan]] = {}
    for given, span in zip(spans, read, strict=True):
        project = (
            project_of_trace.get(span.trace_id)
            or _named_in(span.resource.attributes)
            or (None if span.trace_id in rooted else last_project)
        )
        groups.setdefault(project, []).append(given)
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


def _named_in(attributes: Mapping[str, object]) -> str:
    return str(attributes.get(semconv.PROJECT_NAME) or "")
