"""Record spans that ddtrace makes for OpenTelemetry's API.

ddtrace's provider takes no span processors. So each of its spans inside a trajectory gets a companion of ours
with the same ids, to which every change of the span is made, too.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

from otel_rollout._state import process
from otel_rollout.base.errors import fault
from otel_rollout.base.patching import Patches
from otel_rollout.recording.identity import identity_in
from otel_rollout.recording.runtime_context import id_of, span_above

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from otel_rollout.otlp.writer import AttributeInput
    from otel_rollout.recording.span import RecordingSpan

_MODULE: Final = "ddtrace.internal.opentelemetry.trace"
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


def record_spans_of(provider: TracerProvider) -> None:
    """Record the spans of ddtrace's provider inside trajectories; do nothing for another provider."""
    if process.datadog_patches is not None or type(provider).__module__ != _MODULE:
        return
    patches = process.datadog_patches = Patches()
    tracer_type = getattr(sys.modules[_MODULE], "Tracer", None)
    if tracer_type is not None and "start_span" in vars(tracer_type):
        patches.replace(tracer_type, "start_span", _accompanying)


def _accompanying(start: Callable[..., Span]) -> Callable[..., Span]:
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
        try:
            inside = otel_context.get_current() if context is None else context
            companion = _companion_of(span, name, inside)
            if companion is not None:
                companion.set_start(kind, links, start_time)
                companion.set_attributes(attributes or {})
                _tell(span, companion)
        except Exception as error:  # noqa: BLE001
            fault("recording a span of ddtrace", error)
        return span

    return start_span


def _companion_of(span: Span, name: str, context: Context) -> RecordingSpan | None:
    """Start a span of ours with the ids of a span; None outside trajectories."""
    active = process.runtime
    if active is None or not identity_in(context).attributes:
        return None
    companion = active.tracer.start(name, span_above(context), context, {})
    if companion is not None:
        companion.span_id = b"%016x" % id_of(span)
    return companion


class _Telling:
    """Makes every change of a span to its companion as well.

    ddtrace's methods call each other. What one of them calls is not told: the companion's method does that
    itself. The span is referred to weakly: with the garbage collector off, a span that refers to itself would
    stay in memory.
    """

    def __init__(self, span: Span, companion: RecordingSpan) -> None:
        self._span = weakref.ref(span)
        self._companion = companion
        self._changing_thread = 0

    def change(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of the span, and of its companion."""
        span = self._span()
        if span is None:
            return
        this_thread = threading.get_ident()
        is_inner = self._changing_thread == this_thread
        self._changing_thread = this_thread
        try:
            getattr(type(span), method)(span, *args, **kwargs)
        finally:
            if not is_inner:
                self._changing_thread = 0
                getattr(self._companion, method)(*args, **kwargs)


def _tell(span: Span, companion: RecordingSpan) -> None:
    telling = _Telling(span, companion)
    vars(span).update({method: functools.partial(telling.change, method) for method in _CHANGES})
