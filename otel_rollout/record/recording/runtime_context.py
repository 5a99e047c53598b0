"""Keep OpenTelemetry's context whole where ddtrace's runtime context drops entries.

In its OpenTelemetry mode, ddtrace replaces the runtime context by one that holds only a span's ids and the
baggage, in Datadog's own context. The trajectory, its identity and its spans would be lost.

The spans that ddtrace makes go to Datadog only. So a span of this package below one of them gets the recorded
span above ddtrace's as its parent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, get_current_span

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Patches
from otel_rollout.record.recording.span import RecordingSpan

_RUNTIME_CONTEXT: Final = "_RUNTIME_CONTEXT"
"""Variable of OpenTelemetry's API that holds the runtime context."""
SPAN: Final = next(iter(trace.set_span_in_context(INVALID_SPAN, Context())))
"""OpenTelemetry's key of the current span. With this key, one copy of a context sets a span and other
values."""
_ABOVE: Final = otel_context.create_key("otel-rollout-above")
"""Key of a pair: the id of a span that only Datadog's tracer knows, and the span above that span."""

TRAJECTORY: Final = otel_context.create_key("otel-rollout-trajectory")
"""Key of the trajectory of a context."""
DDTRACE: Final = "ddtrace.internal.opentelemetry.trace"
"""ddtrace's module of its tracer for OpenTelemetry's API."""
_RECORDED_ABOVE: Final = "_otel_rollout_above"
"""Attribute of a span of ddtrace's tracer that holds the recorded span above."""


class _Attached(NamedTuple):
    """An attached context, and what was active in Datadog's tracer just after the attachment."""

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
        above = _known_span(context)
        if above is not get_current_span(context):  # ddtrace's span ends without our knowledge
            context = Context({**context, SPAN: above})
        if above is INVALID_SPAN:
            self._leave()
        return token, self._attached.set(_Attached(context, self._active()))

    def get_current(self) -> Context:
        """Return the context as it was attached, with the span that ddtrace's tracer has started since."""
        attached, active = self._attached.get(), self._active()
        if attached is None:
            return cast("Context", self._theirs.get_current())
        if active is attached.active or active is None:  # None: ddtrace has ended its span
            return attached.context
        span = get_current_span(self._theirs.get_current())
        span_id = _id_of(span)
        if span_id == _id_of(_known_span(attached.context)):
            return attached.context
        return Context({**attached.context, SPAN: span, _ABOVE: (span_id, span_above(attached.context))})

    def detach(self, token: Any) -> None:
        """Restore the context that was current before ``attach``."""
        if not isinstance(token, tuple):  # of a context attached before ddtrace's was replaced
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
        """Leave our span in Datadog's tracer, too: attaching a context without a span does not do that."""
        attached = self._attached.get()
        if attached is not None and self._active() is attached.active:
            self._theirs._ddcontext_provider.activate(None)


def keep_whole() -> None:
    """Replace ddtrace's runtime context, if that is in use, by one that keeps all entries."""
    theirs = getattr(otel_context, _RUNTIME_CONTEXT, None)
    if hasattr(theirs, "_ddcontext_provider"):
        setattr(otel_context, _RUNTIME_CONTEXT, WholeRuntimeContext(theirs))


def note_spans_above(patches: Patches, module: ModuleType) -> None:
    """Note the recorded span above each span that ddtrace's tracer for OpenTelemetry's API makes.

    Args:
        patches: active while the spans above are noted.
        module: the module :data:`DDTRACE`.
    """
    if patches.active:
        patches.replace(module.Tracer, "start_span", functools.partial(_noting_above, patches))


def _noting_above(patches: Patches, start: Callable[..., Span]) -> Callable[..., Span]:
    @functools.wraps(start)
    def start_span(self: Any, name: str, context: Context | None = None, *args: Any, **kwargs: Any) -> Span:
        span = start(self, name, context, *args, **kwargs)
        if patches.active:
            with internal_errors("noting the span above one of ddtrace"):
                above = span_above(otel_context.get_current() if context is None else context)
                if isinstance(above, RecordingSpan):
                    vars(span)[_RECORDED_ABOVE] = above
        return span

    return start_span


def span_above(context: Context) -> Span:
    """Return the span that a span of ours is to have as its parent.

    It is the current span, or the recorded span above a current span of ddtrace.
    """
    span = _known_span(context)
    above = getattr(span, _RECORDED_ABOVE, None)
    return above if isinstance(above, RecordingSpan) else span


def _known_span(context: Context) -> Span:
    """Return the current span, or the span above if only Datadog's tracer knows the current one."""
    if SPAN not in context:
        return INVALID_SPAN
    span = get_current_span(context)
    entry: Any = context.get(_ABOVE)
    if entry is None:
        return span
    below, above = entry
    return above if below == _id_of(span) else span


def _id_of(span: Span) -> int:
    """Return a span's id. Read ddtrace's own span: asking for its context would decide about sampling."""
    theirs: Any = getattr(span, "_ddspan", None)
    return span.get_span_context().span_id if theirs is None else int(theirs.span_id)
