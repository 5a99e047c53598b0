"""Arrange the spans of a trace as a tree, and classify them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_rollout.base import semconv


class SpanTree:
    """The spans of a trace by parent and child; of spans with equal ids the last wins."""

    def __init__(self, spans: Sequence[ReadableSpan]) -> None:
        self.spans = {span_id(span): span for span in spans}
        self._children: dict[int | None, list[ReadableSpan]] = {}
        for span in sorted(
            self.spans.values(), key=lambda span: (span.start_time or 0, -(span.end_time or 0))
        ):
            parent = span.parent.span_id if span.parent else None
            is_known = parent in self.spans and parent != span_id(span)
            self._children.setdefault(parent if is_known else None, []).append(span)

    def descendants(self, span: ReadableSpan) -> list[ReadableSpan]:
        """Return the spans below ``span``, by start time."""
        found = self._with_below(self._children.get(span_id(span), ()), lambda _: True)
        return sorted(found, key=lambda descendant: descendant.start_time or 0)

    def timeline(self, root_id: int | None) -> list[ReadableSpan]:
        """Return the spans of a trajectory in display order; of those inside model calls only calls of tools.

        They are below its root, or below an operation that is not there, because it has not ended.
        """
        first = list(self._children.get(root_id, ()))
        if root_id is not None:
            orphans = (span for span in self._children.get(None, ()) if span.parent)
            first += [span for span in orphans if span_id(span) != root_id]
        outside = list(self._with_below(first, lambda span: not is_model_call(span)))
        inside = self._with_below(filter(is_model_call, outside))
        found = {span_id(span): span for span in inside if kind_of(span) == semconv.KIND_TOOL}
        return sorted([*outside, *found.values()], key=_shown_at)

    def _with_below(
        self,
        first: Iterable[ReadableSpan],
        is_entered: Callable[[ReadableSpan], bool] = lambda span: True,
    ) -> Iterable[ReadableSpan]:
        """Collect spans, and the children of collected ``is_entered`` spans."""
        found: dict[int, ReadableSpan] = {}  # each span once: damaged spans may be parents of one another
        left = list(first)
        while left:
            span = left.pop()
            if span_id(span) not in found:
                found[span_id(span)] = span
                left += self._children.get(span_id(span), ()) if is_entered(span) else ()
        return found.values()

    def ancestors(self, span: ReadableSpan) -> list[ReadableSpan]:
        """Return the spans around ``span``, the nearest first."""
        found: list[ReadableSpan] = []
        parent = self.spans.get(span.parent.span_id) if span.parent else None
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self.spans.get(parent.parent.span_id) if parent.parent else None
        return found

    def is_error_shown_elsewhere(self, span: ReadableSpan) -> bool:
        """Return whether a span inside, or a turn around, has the span's error."""
        around = (ancestor for ancestor in self.ancestors(span) if _has_turn(ancestor))
        return any(error_of(other) == error_of(span) for other in (*self.descendants(span), *around))


def _shown_at(span: ReadableSpan) -> int:
    """Return a span's sort key: its start, or its end if only its error is shown.

    A failed operation starts before the spans inside the operation, but fails after them.
    """
    return (span.start_time if _has_turn(span) else span.end_time) or 0


def _has_turn(span: ReadableSpan) -> bool:
    """Return whether a span has a turn even when it succeeds."""
    return is_model_call(span) or kind_of(span) in (semconv.KIND_TOOL, semconv.KIND_EVALUATOR)


def span_id(span: ReadableSpan) -> int:
    """Return the span's id; 0 for a span without one."""
    return span.context.span_id if span.context else 0


def kind_of(span: ReadableSpan) -> str:
    """Return the span's kind (``semconv.SPAN_KIND``), as in the table; empty text without a kind."""
    return str((span.attributes or {}).get(semconv.SPAN_KIND, ""))


def is_model_call(span: ReadableSpan) -> bool:
    """Return whether a span is a model call."""
    return kind_of(span) == semconv.KIND_LLM


def error_of(span: ReadableSpan) -> str:
    """Return a span's error; empty text if the span succeeded."""
    if span.status.status_code is not StatusCode.ERROR:
        return ""
    return span.status.description or str((span.attributes or {}).get(semconv.ERROR_TYPE, "")) or "error"
