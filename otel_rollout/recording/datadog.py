"""Record spans that ddtrace makes for OpenTelemetry's API.

ddtrace's provider takes no span processors. So each of its spans inside a trajectory gets a companion of ours
with the same ids, to which every change of the span is made, too.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, Span, SpanKind, Tracer

from otel_rollout.base.errors import fault, internal_errors
from otel_rollout.base.patching import Patches
from otel_rollout.otlp.writer import text_of
from otel_rollout.recording.joined_span import JoinedSpan
from otel_rollout.recording.runtime_context import RECORDED_AS, id_of, recorded_as, span_above

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from otel_rollout.otlp.writer import AttributeInput

MODULE: Final = "ddtrace.internal.opentelemetry.trace"
_JOINED: Final = "_otel_rollout_joined"
"""Attribute of ddtrace's tracer that holds the tracer of the companions."""
_UNNAMED: Final = "ddtrace"
"""Instrumentation scope of the spans of a tracer whose scope is not known."""
_CHANGES: Final = (
    "set_attribute",
    "set_attributes",
    "add_event",
    "add_link",
    "update_name",
    "set_status",
    "record_exception",
    "end",
)
"""Methods that change a span."""


class CompanionTracer(Protocol):
    """Starts companions of one instrumentation scope."""

    def joined(
        self, name: str, context: Context | None, attributes: Mapping[str, AttributeInput] | None
    ) -> Span | None:
        """Return a :class:`JoinedSpan` of the trajectory in a context; any other span is not recorded."""


MakeTracer: TypeAlias = Callable[..., CompanionTracer]
"""Makes a tracer with the arguments of ``get_tracer``."""


def record_spans(patches: Patches, make_tracer: MakeTracer, module: ModuleType) -> None:
    """Record the spans that ddtrace makes inside trajectories.

    Args:
        patches: active while spans are recorded.
        make_tracer: makes the tracer of the companions.
        module: ddtrace's module of its provider and its tracer.
    """
    if not patches.active:
        return
    patches.replace(module.TracerProvider, "get_tracer", functools.partial(_naming_scope, make_tracer))
    patches.replace(module.Tracer, "start_span", functools.partial(_accompanying, patches, make_tracer))


def _naming_scope(make_tracer: MakeTracer, get: Callable[..., Tracer]) -> Callable[..., Tracer]:
    """Keep the instrumentation scope beside each tracer, which ddtrace drops."""

    @functools.wraps(get)
    def get_tracer(self: Any, *args: Any, **kwargs: Any) -> Tracer:
        tracer = get(self, *args, **kwargs)
        with internal_errors("keeping the instrumentation scope of a tracer of ddtrace"):
            vars(tracer)[_JOINED] = make_tracer(*args, **kwargs)
        return tracer

    return get_tracer


def _accompanying(
    patches: Patches, make_tracer: MakeTracer, start: Callable[..., Span]
) -> Callable[..., Span]:
    @functools.wraps(start)
    def start_span(
        self: Any,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeInput] | None = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Span:
        span = start(self, name, context, kind, attributes, links, start_time, *args, **kwargs)
        if not patches.active:
            return span
        try:
            tracer = vars(self).get(_JOINED)
            if tracer is None:  # made before this function was in place
                tracer = vars(self)[_JOINED] = make_tracer(_UNNAMED)
            companion = tracer.joined(text_of(name), context, attributes)
            if isinstance(companion, JoinedSpan):
                companion.span_id = b"%016x" % id_of(span)
                companion.set_start(kind, links, start_time)
                vars(span)[RECORDED_AS] = companion
                _tell(span, companion)
            elif companion is not None:  # a model call inside another one: spans below belong to the outer
                above = span_above(otel_context.get_current() if context is None else context)
                vars(span)[RECORDED_AS] = recorded_as(above)
        except Exception as error:  # noqa: BLE001
            fault("recording a span of ddtrace", error)
        return span

    return start_span


class _Telling:
    """Makes every change of a span to its companion as well.

    ddtrace's methods call each other. What one of them calls is not told: the companion's method does that
    itself. The span is referred to weakly: with the garbage collector off, a span that refers to itself would
    stay in memory.
    """

    def __init__(self, span: Span, companion: JoinedSpan) -> None:
        self._span = weakref.ref(span)
        self._companion = companion
        self._changing: set[int] = set()
        """Ids of the threads that are inside a method of the span."""

    def change(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of the span, and of its companion."""
        span = self._span()
        if span is None:
            return
        this_thread = threading.get_ident()
        if this_thread in self._changing:
            getattr(type(span), method)(span, *args, **kwargs)
            return
        self._changing.add(this_thread)
        try:
            getattr(type(span), method)(span, *args, **kwargs)
        finally:
            self._changing.discard(this_thread)
            getattr(self._companion, method)(*args, **kwargs)


def _tell(span: Span, companion: JoinedSpan) -> None:
    telling = _Telling(span, companion)
    vars(span).update({method: functools.partial(telling.change, method) for method in _CHANGES})
