"""Arrange the spans of a trace as a tree, and classify them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from otel_rollout.base import semconv
from otel_rollout.exporting.batching import grouped
from otel_rollout.otlp.span import Span


class SpanTree:
    """The spans of a trace by parent and child; among spans with equal ids, the last one counts."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = {span.span_id: span for span in spans}
        by_start = sorted(self.spans.values(), key=lambda span: (span.start_ns, -span.end_ns))
        self._children = grouped(by_start, self._known_parent)

    def _known_parent(self, span: Span) -> str | None:
        is_known = span.parent_id in self.spans and span.parent_id != span.span_id
        return span.parent_id if is_known else None

    def descendants(self, span: Span) -> list[Span]:
        """Return the spans below ``span``, by start time."""
        found = self._with_below(self._children.get(span.span_id, ()), lambda _: True)
        return sorted(found, key=lambda descendant: descendant.start_ns)

    def timeline(self, root_id: str | None) -> list[Span]:
        """Return the spans of a trajectory in display order; inside of model calls, only calls of tools.

        The spans are below the root, or below a parent that is missing because it has not ended.
        """
        first = list(self._children.get(root_id, ()))
        if root_id is not None:
            orphans = (span for span in self._children.get(None, ()) if span.parent_id)
            first += [span for span in orphans if span.span_id != root_id]
        outside = list(self._with_below(first, lambda span: not is_model_call(span)))
        inside = self._with_below(filter(is_model_call, outside))
        found = {span.span_id: span for span in inside if kind_of(span) == semconv.KIND_TOOL}
        return sorted([*outside, *found.values()], key=_shown_at)

    def _with_below(
        self,
        first: Iterable[Span],
        is_entered: Callable[[Span], bool] = lambda span: True,
    ) -> Iterable[Span]:
        """Collect spans, and the children of each collected span for which ``is_entered`` is true."""
        found: dict[str, Span] = {}  # each span once: damaged spans may be parents of one another
        left = list(first)
        while left:
            span = left.pop()
            if span.span_id not in found:
                found[span.span_id] = span
                left += self._children.get(span.span_id, ()) if is_entered(span) else ()
        return found.values()

    def ancestors(self, span: Span) -> list[Span]:
        """Return the spans around ``span``, the nearest first."""
        found: list[Span] = []
        parent = self.spans.get(span.parent_id)
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self.spans.get(parent.parent_id)
        return found

    def is_error_shown_elsewhere(self, span: Span) -> bool:
        """Return whether a span below this one, or an ancestor with a turn, has the same error."""
        around = (ancestor for ancestor in self.ancestors(span) if _has_turn(ancestor))
        return any(error_of(other) == error_of(span) for other in (*self.descendants(span), *around))


def _shown_at(span: Span) -> int:
    """Return a span's sort key: its start, or its end if only its error is shown.

    A failed operation starts before the spans inside the operation, but fails after them.
    """
    return span.start_ns if _has_turn(span) else span.end_ns


def _has_turn(span: Span) -> bool:
    """Return whether a span has a turn even when it succeeds."""
    return is_model_call(span) or kind_of(span) in (semconv.KIND_TOOL, semconv.KIND_EVALUATOR)


def kind_of(span: Span) -> str:
    """Return the span's kind (``semconv.SPAN_KIND``), as in the table; empty text without a kind."""
    return str(span.attributes.get(semconv.SPAN_KIND, ""))


def is_model_call(span: Span) -> bool:
    """Return whether a span is a model call."""
    return kind_of(span) == semconv.KIND_LLM


def error_of(span: Span) -> str:
    """Return a span's error; empty text if the span succeeded."""
    if not span.has_failed:
        return ""
    return span.message or str(span.attributes.get(semconv.ERROR_TYPE, "")) or "error"
