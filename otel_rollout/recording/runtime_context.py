"""Keep OpenTelemetry's context whole where ddtrace's runtime context drops entries.

In its OpenTelemetry mode, ddtrace replaces the runtime context by one that holds only a span's ids and the
baggage, in Datadog's own context. The trajectory, its identity and its spans would be lost.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, get_current_span

from otel_rollout.recording.span import RecordingSpan

_RUNTIME_CONTEXT: Final = "_RUNTIME_CONTEXT"
"""Variable of OpenTelemetry's API that holds the runtime context."""
SPAN: Final = next(iter(trace.set_span_in_context(INVALID_SPAN, Context())))
"""OpenTelemetry's key of the current span. With this key, one copy of a context sets a span and other
values."""
_ABOVE: Final = otel_context.create_key("otel-rollout-above")
"""Key of the id of a span that only Datadog's tracer knows, and of the span above that span."""

TRAJECTORY: Final = otel_context.create_key("otel-rollout-trajectory")
"""Key of the trajectory of a context."""
RECORDED_AS: Final = "_otel_rollout_recorded_as"
"""Attribute of another library's span that holds the span of ours that records it."""


class _Attached(NamedTuple):
    """A context that was attached, and what Datadog's tracer has as active since then."""

    context: Context
    active: Any


class WholeRuntimeContext:
    """A runtime context that delegates to ddtrace's, and keeps the contexts that were attached to it.

    Args:
        theirs: ddtrace's runtime context, which shares attached spans with Datadog's tracer.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._attached: ContextVar[_Attached | None] = ContextVar("otel-rollout-context", default=None)

    def attach(self, context: Context) -> Any:
        """Make a context current, here and in Datadog's tracer."""
        token = self._theirs.attach(context)
        above = span_above(context)
        if above is not get_current_span(context):  # their span ends without our knowledge
            context = Context({**context, SPAN: above})
        if above is INVALID_SPAN:
            self._leave()
        return token, self._attached.set(_Attached(context, self._active()))

    def get_current(self) -> Context:
        """Return the context as it was attached, with the span that their tracer has started since."""
        attached, active = self._attached.get(), self._active()
        if attached is None:
            return cast("Context", self._theirs.get_current())
        if active is attached.active or active is None:  # None: after a span of theirs below one that is not
            return attached.context
        span, above = get_current_span(self._theirs.get_current()), span_above(attached.context)
        span_id = id_of(span)
        if span_id == id_of(above):
            return attached.context
        return Context({**attached.context, SPAN: span, _ABOVE: (span_id, above)})

    def detach(self, token: Any) -> None:
        """Make the context current that was so before ``attach``."""
        if not isinstance(token, tuple):  # of a context attached before this one was put around theirs
            self._theirs.detach(token)
            return
        theirs, ours = token
        self._theirs.detach(theirs)
        with suppress(ValueError):  # the garbage collector closes a generator in another context
            self._attached.reset(ours)
        before = self._attached.get()
        if before is not None:
            self._theirs.attach(before.context)
            self._attached.set(_Attached(before.context, self._active()))

    def _active(self) -> Any:
        return self._theirs._ddcontext_provider.active()

    def _leave(self) -> None:
        """Leave our span in Datadog's tracer, too: attaching a context without span does not."""
        attached = self._attached.get()
        if attached is not None and self._active() is attached.active:
            self._theirs._ddcontext_provider.activate(None)


def keep_whole() -> None:
    """Replace ddtrace's runtime context, if that is in use, by one that keeps all entries."""
    theirs = getattr(otel_context, _RUNTIME_CONTEXT, None)
    if hasattr(theirs, "_ddcontext_provider"):
        setattr(otel_context, _RUNTIME_CONTEXT, WholeRuntimeContext(theirs))


def span_above(context: Context) -> Span:
    """Return the span that a span of ours is to have as its parent.

    It is the current span. If only Datadog's tracer knows the current span, it is the span above.
    """
    if SPAN not in context:
        return INVALID_SPAN
    span = get_current_span(context)
    entry: Any = context.get(_ABOVE)
    if entry is None:
        return span
    below, above = entry
    return above if below == id_of(span) else span


def recorded_as(span: Span) -> RecordingSpan | None:
    """Return the span of ours that records a span; None if there is none."""
    if not isinstance(span, RecordingSpan):  # false for OpenInference's wrapper of one
        span = getattr(span, RECORDED_AS, None)  # type: ignore[assignment]
    return span if isinstance(span, RecordingSpan) else None


def id_of(span: Span) -> int:
    """Return a span's id; ddtrace decides about sampling when it is asked for a span context."""
    theirs: Any = getattr(span, "_ddspan", None)
    return span.get_span_context().span_id if theirs is None else int(theirs.span_id)
