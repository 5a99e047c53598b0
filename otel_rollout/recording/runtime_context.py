"""Keep OpenTelemetry's context whole where the application's runtime context drops entries.

In its OpenTelemetry mode, ddtrace replaces the runtime context by one that holds only a span's ids and the
baggage, in Datadog's own context. The trajectory, its identity and its spans would be lost.
"""

from __future__ import annotations

import contextvars
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, get_current_span

_RUNTIME_CONTEXT: Final = "_RUNTIME_CONTEXT"
"""Variable of OpenTelemetry's API that holds the runtime context."""
SPAN: Final = next(iter(trace.set_span_in_context(INVALID_SPAN, Context())))
"""OpenTelemetry's key of the current span. With this key, one copy of a context sets a span and other
values."""
_ABOVE: Final = otel_context.create_key("otel-rollout-above")
"""Key of the id of a span that only Datadog's tracer knows, and of the span above that span."""


class _Attached(NamedTuple):
    """A context that was attached, and the id of the span that the runtime context shows since then."""

    context: Context
    shown: int


class WholeRuntimeContext:
    """A runtime context that delegates to another, and keeps the contexts that were attached to it.

    Args:
        theirs: the application's runtime context, which shares attached spans with its own tracer.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._attached: ContextVar[_Attached | None] = ContextVar("otel-rollout-context", default=None)

    def attach(self, context: Context) -> Any:
        """Make a context current, here and in the application's runtime context."""
        token = self._theirs.attach(context)
        above = span_above(context)
        if above is not get_current_span(context):  # their span ends without our knowledge
            context = Context({**context, SPAN: above})
        shown = _span_id(context) or self._leave()
        return token, self._attached.set(_Attached(context, shown))

    def get_current(self) -> Context:
        """Return the context as it was attached, with the span that their tracer has started since."""
        theirs: Context = self._theirs.get_current()
        attached = self._attached.get()
        if attached is None:
            return theirs
        shown = _span_id(theirs)
        if shown in (attached.shown, 0):  # 0: after a span of theirs below a span that is not theirs
            return attached.context
        above = shown, span_above(attached.context)
        return Context({**attached.context, SPAN: get_current_span(theirs), _ABOVE: above})

    def detach(self, token: Any) -> None:
        """Make the context current that was so before ``attach``."""
        theirs, ours = token
        self._theirs.detach(theirs)
        with suppress(ValueError):  # the garbage collector closes a generator in another context
            self._attached.reset(ours)
        before = self._attached.get()
        if before is not None:
            self._theirs.attach(before.context)

    def _leave(self) -> int:
        """Leave our span in Datadog's context, too: attaching a context without span does not.

        Returns:
            The id of the span that the runtime context shows then.
        """
        attached, shown = self._attached.get(), _span_id(self._theirs.get_current())
        provider = getattr(self._theirs, "_ddcontext_provider", None)
        if attached is None or shown != attached.shown or provider is None:
            return shown
        provider.activate(None)
        return 0


def _span_id(context: Context) -> int:
    return get_current_span(context).get_span_context().span_id


def keep_whole() -> None:
    """Replace the runtime context by one that keeps all entries, if it drops some."""
    theirs = getattr(otel_context, _RUNTIME_CONTEXT, None)
    if theirs is None or isinstance(theirs, WholeRuntimeContext):
        return
    if contextvars.Context().run(_drops_entries, theirs):
        setattr(otel_context, _RUNTIME_CONTEXT, WholeRuntimeContext(theirs))


def _drops_entries(theirs: Any) -> bool:
    theirs.attach(Context({_ABOVE: INVALID_SPAN}))
    return _ABOVE not in theirs.get_current()


def span_above(context: Context) -> Span:
    """Return the span that a span of ours is to have as its parent.

    It is the current span. If only Datadog's tracer knows the current span, it is the span above.
    """
    span = get_current_span(context)
    if _ABOVE not in context:
        return span
    below, above = context[_ABOVE]  # type: ignore[misc] # nobody else has the key
    return above if below == span.get_span_context().span_id else span
