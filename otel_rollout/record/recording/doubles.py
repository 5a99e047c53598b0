"""Notice model calls that two instrumentors, or an instrumentor and an operation, both record."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, is_new, logger, warn_once
from otel_rollout.otlp import writer
from otel_rollout.record.recording.joined_span import is_model_call
from otel_rollout.record.recording.span import RecordingSpan
from otel_rollout.record.recording.state import state

LLM: Final = (b"," + writer.attribute(semconv.SPAN_KIND, semconv.KIND_LLM),)
"""Encoded kind of a model call."""
_CHAIN: Final = (b"," + writer.attribute(semconv.SPAN_KIND, semconv.KIND_CHAIN),)
_BASE: Final = "opentelemetry.instrumentation.instrumentor"
_MAX_REPLIES: Final = 64
"""Maximum replies that a span remembers of the spans below it."""


def give_way(above: RecordingSpan, scope_name: str) -> None:
    """Turn an operation of kind LLM into a CHAIN: the model call directly below it is the LLM's span.

    Then lists and sums of model calls count the call once.

    Args:
        above: the span directly above a model call.
        scope_name: instrumentation scope of the model call.
    """
    if above.encoded.get(semconv.SPAN_KIND) == LLM and not above.ended:
        above.encoded[semconv.SPAN_KIND] = _CHAIN
        _warn_of_operation(scope_name)


def _warn_of_operation(scope_name: str) -> None:
    warn_once(
        f"an operation of kind LLM contains a model call that {scope_name} records: the operation is "
        "recorded as CHAIN, so that the call counts once. Give the operation kind='CHAIN', or switch the "
        "instrumentor off",
        f"LLM around {scope_name}",
    )


class CountedReply(NamedTuple):
    """What tells a model's reply from others: its id, else its token counts."""

    id: Any
    counts: tuple[Any, ...]

    def is_same(self, other: CountedReply) -> bool:
        """Return whether two replies are one."""
        return self.id == other.id if self.id and other.id else self.counts == other.counts


def note_counted(above: Any, reply: CountedReply | None = None) -> None:
    """Note on a span that tokens are counted below it, so that it does not count them again.

    Args:
        above: the span.
        reply: the reply that has the tokens, if it is known.
    """
    noted = above if isinstance(above, RecordingSpan) else _open_span(above)
    if noted is None:
        return
    known = noted.replies_below or frozenset()
    if reply is None or known is True or len(known) == _MAX_REPLIES:
        noted.replies_below = True
    else:
        noted.replies_below = known | {reply}


def is_counted_below(span: Span, reply: CountedReply) -> bool:
    """Return whether a reply's tokens are counted below a span of ours.

    A model call counts a reply of its own beside those of the calls inside it. An operation of another kind
    may return the sum of them.
    """
    noted = span if type(span) is RecordingSpan else _open_span(span)
    below = noted.replies_below if noted is not None else False
    if not isinstance(below, frozenset) or not _is_llm(span, noted):
        return bool(below)
    return any(reply.is_same(one) for one in below)


def _open_span(span: Any) -> Any:
    if not state.sdk_spans or not isinstance(span, Span):
        return None
    return state.sdk_spans.get(span.get_span_context().span_id)


def _is_llm(span: Span, noted: Any) -> bool:
    if type(span) is RecordingSpan:
        return span.encoded.get(semconv.SPAN_KIND) == LLM
    known = {**(getattr(span, "attributes", None) or {}), **noted.attributes}
    return known.get(semconv.SPAN_KIND) == semconv.KIND_LLM


def report_call_below(above: Any, scope_name: str) -> None:
    """Handle a model call that an application's own provider records inside another model call.

    The inner call's span stays in the application's trace. If the outer call is an operation, this package
    records the operation as CHAIN. If the outer call is another library's, a warning is logged.

    Args:
        above: the span directly above the inner call.
        scope_name: instrumentation scope of the inner call.
    """
    if isinstance(above, RecordingSpan):
        give_way(above, scope_name)
        return
    attributes = getattr(above, "attributes", None)
    if not isinstance(attributes, Mapping) or not is_model_call(attributes):
        return
    open_span = _open_span(above)
    if open_span is None:
        return
    if open_span.is_ours:
        open_span.attributes[semconv.SPAN_KIND] = semconv.KIND_CHAIN
        _warn_of_operation(scope_name)
        return
    outer = getattr(getattr(above, "instrumentation_scope", None), "name", "")
    warn_once(
        f"{outer} and {scope_name} both record one model call through the application's tracer provider, so "
        "its tokens count twice: switch one of them off",
        f"{scope_name} in {outer}",
    )


def report_nested(outer: str, inner: str) -> None:
    """Log once that of two spans of one model call only the outer one is recorded.

    Args:
        outer: instrumentation scope of the outer span.
        inner: instrumentation scope of the inner span.
    """
    if is_new(f"{inner} in {outer}"):
        logger.info("otel-rollout: %s records a model call; the span of %s inside is left out", outer, inner)


@internal_errors("looking for instrumentors of one library")
def report_instrumentors() -> None:
    """Warn of two instrumentors that instrument one library in this process."""
    base = getattr(sys.modules.get(_BASE), "BaseInstrumentor", None)
    if base is None:
        return
    switched_on: dict[str, type] = {}
    for class_ in _subclasses(base):
        instance = vars(class_).get("_instance")
        if not getattr(instance, "is_instrumented_by_opentelemetry", False):
            continue
        other = switched_on.setdefault(class_.__name__.lower(), class_)
        if other.__module__ != class_.__module__:
            warn_once(
                f"{other.__module__} and {class_.__module__} both instrument one library, so its calls may "
                "be recorded twice: switch one of them off"
            )


def _subclasses(class_: Any) -> Iterator[type]:
    for subclass in class_.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
