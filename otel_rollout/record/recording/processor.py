"""Record spans of an application's own SDK in a span processor; make our spans with a tracer of that SDK.

So the application's spans and ours nest in the application's backend. All spans of a trajectory, including
the application's, reach our spool.
"""

from __future__ import annotations

import functools
import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from opentelemetry.context import Context, get_current
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import SpanContext, StatusCode, Tracer
from opentelemetry.util import types
from opentelemetry.util.types import AttributeValue

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, pass_on, warn_once
from otel_rollout.base.version import VERSION
from otel_rollout.otlp import writer as otlp_json
from otel_rollout.record.recording import content, doubles, previews
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.recording.identity import NO_IDENTITY, Identity, identity_in
from otel_rollout.record.recording.joined_span import TOKEN_COUNTS, is_model_call
from otel_rollout.record.recording.provider import RANDOM_BITS, mark_of
from otel_rollout.record.recording.runtime_context import TRAJECTORY, span_above
from otel_rollout.record.recording.span import (
    ATTRIBUTE,
    EVENT,
    LINK,
    MAX_ATTRIBUTES,
    MAX_EVENTS,
    MAX_LINKS,
    UNFINISHED,
    link_to,
    remote_bits,
)
from otel_rollout.record.recording.state import state

MAX_OPEN = 1 << 16
"""Maximum number of open spans whose data are kept. Some applications start spans and never end them."""


class _OpenSpan:
    """The data of an open span, independent of the limits of the application's SDK.

    Attributes:
        identity: the trajectory's identity.
        is_ours: whether our own tracer started the span. Only then are attributes, events and links kept.
        limits: what may be recorded of the content of another library's span.
        above, trajectory: the span above another library's span, and the trajectory around it.
        replies_below: as of `RecordingSpan`.
        attributes: uncut attributes that were set after the start.
        details: encoded, uncut events and links, and the numbers of those beyond our own limits; for a span
            of another library, only its log events.
    """

    __slots__ = (
        "above",
        "attributes",
        "details",
        "identity",
        "is_ours",
        "limits",
        "replies_below",
        "trajectory",
    )

    def __init__(self, identity: Identity, is_ours: bool, limits: content.ContentLimits) -> None:
        self.identity = identity
        self.is_ours = is_ours
        self.limits = limits
        self.above: Any = None
        self.trajectory: Any = None
        self.replies_below: bool | frozenset[Any] = False
        self.attributes: dict[str, AttributeValue] = {}
        self.details = otlp_json.Details()

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Keep attributes set on the span."""
        for key, value in attributes.items():
            if len(self.attributes) < MAX_ATTRIBUTES or key in self.attributes:
                # A copy, because a list may change later.
                self.attributes[str(key)] = tuple(value) if isinstance(value, list) else value
            else:
                self.details.dropped[ATTRIBUTE] += 1

    def add_event(self, name: str, attributes: types.Attributes, timestamp: int) -> None:
        """Keep an event added to the span."""
        if len(self.details.events) < MAX_EVENTS:
            self.details.events.append(_event(name, attributes, timestamp))
        else:
            self.details.dropped[EVENT] += 1

    def add_log_event(self, name: str, attributes: Mapping[str, Any], timestamp: int | None = None) -> None:
        """Keep a log event of another library's span."""
        self.add_event(name, self.limits.applied(attributes), timestamp or time.time_ns())

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        """Keep a link added to the span."""
        if len(self.details.links) < MAX_LINKS:
            self.details.links.append(link_to(context, attributes))
        else:
            self.details.dropped[LINK] += 1


def _remember(span: Span, identity: Identity, is_ours: bool, limits: content.ContentLimits) -> _OpenSpan:
    spans = state.sdk_spans
    while len(spans) >= MAX_OPEN:
        spans.pop(next(iter(spans)), None)
    open_span = spans[span.get_span_context().span_id] = _OpenSpan(identity, is_ours, limits)
    if is_ours:
        # Every change of a span goes through one of these functions. They refer to the span weakly: with the
        # garbage collector off, a span that refers to itself would stay in memory.
        span_ref = weakref.ref(span)
        set_attributes = _keeping(span_ref, "set_attributes", open_span.set_attributes)
        vars(span).update(
            set_attribute=functools.partial(_set_attribute, set_attributes),
            set_attributes=set_attributes,
            add_event=functools.partial(_add_event, _keeping(span_ref, "add_event", open_span.add_event)),
            add_link=_keeping(span_ref, "add_link", open_span.add_link),
        )
    return open_span


def _keeping(span_ref: weakref.ref[Span], method: str, keep: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement for a method of a span that keeps the arguments, and calls the method."""

    def call(*args: Any, **kwargs: Any) -> None:
        span = span_ref()
        if span is not None:
            if span.is_recording():
                try:
                    keep(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - of a user's value: it must not reach user code
                    pass_on(error)
            getattr(type(span), method)(span, *args, **kwargs)

    return call


def _set_attribute(set_attributes: Callable[..., None], key: str, value: AttributeValue) -> None:
    set_attributes({key: value})  # which the SDK's own method may or may not call


def _add_event(
    add: Callable[..., None], name: str, attributes: types.Attributes = None, timestamp: int | None = None
) -> None:
    add(name, attributes, timestamp or time.time_ns())  # one time for us and the application's SDK


class IdentityProcessor(SpanProcessor):
    """Sets a trajectory's identity on the application's spans inside; records none of them."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Set the identity of the current trajectory on the span."""
        identity = identity_in(parent_context)
        if identity.attributes:
            span.set_attributes(identity.attributes)


class SpoolSpanProcessor(IdentityProcessor):
    """Sets a trajectory's identity on its spans, and records the spans when they end.

    The processor ignores spans of the application outside any trajectory. It records our operations outside
    any trajectory.
    """

    _has_looked = False

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Set the identity of the current trajectory on the span; keep the span's data."""
        super().on_start(span, parent_context)
        identity = identity_in(parent_context)
        scope = span.instrumentation_scope
        is_ours = scope is not None and scope.name == semconv.SCOPE
        if (identity.attributes or is_ours) and span.get_span_context().trace_flags.sampled:
            active = state.current_runtime()
            if active is not None:
                try:
                    open_span = _remember(span, identity, is_ours, content.limits_of(active.settings))
                except (RuntimeError, StopIteration):  # another thread removed entries at the same time
                    return
                if not is_ours:
                    inside = get_current() if parent_context is None else parent_context
                    open_span.above, open_span.trajectory = span_above(inside), inside.get(TRAJECTORY)
                active.writer.started()

    def on_end(self, span: ReadableSpan) -> None:
        """Record the span if it belongs to a trajectory or to our tracer."""
        context = span.get_span_context()
        open_span = state.sdk_spans.pop(context.span_id, None) if context is not None else None
        active = state.current_runtime() if open_span is not None else None
        if context is None or open_span is None or active is None:
            return
        writer = active.writer
        try:
            if not open_span.is_ours:
                present_context()  # a stream that was closed has restored the context of its trajectory
            end_ns = otlp_json.valid_time(span.end_time, time.time_ns())
            status = span.status
            has_message = open_span.is_ours or open_span.limits.mode == "full"
            message = status.description if has_message else None
            body = _line(span, open_span, end_ns, status.status_code.value, message)
        except Exception as error:  # noqa: BLE001 - we are inside user code
            writer.counters.drop("encoding", open_span.identity)
            pass_on(error)
        else:
            if not open_span.is_ours:
                if not self._has_looked:
                    self._has_looked = True
                    doubles.report_instrumentors()
                _tell_above(span, open_span)
            if writer.write(body, open_span.identity) and not open_span.is_ours:
                scope = span.instrumentation_scope
                writer.counters.recorded_by(scope.name if scope is not None else "")
                if span.name == semconv.ENGINE_REQUEST:
                    found = span.attributes or {}
                    writer.write_phases(context, found, span.start_time or 0, open_span.identity)


@internal_errors("telling the span above another library's span")
def _tell_above(span: ReadableSpan, open_span: _OpenSpan) -> None:
    """Tell the span above of tokens and of a model call; offer a root its input and output."""
    if span.name == semconv.ENGINE_REQUEST:  # its tokens are those of the call above, which counts them
        return
    above, attributes = open_span.above, span.attributes or {}
    limit = getattr(getattr(span, "_attributes", None), "maxlen", None) or 0
    is_full = len(attributes) >= limit  # else the SDK dropped an attribute with an invalid name
    if span.dropped_events or (span.dropped_attributes and is_full):
        warn_once(
            f"the limits of the application's tracer provider dropped {span.dropped_attributes} attributes "
            f"and {span.dropped_events} events of {span.name!r}: set "
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=10000 and OTEL_SPAN_EVENT_COUNT_LIMIT=1000, or its SpanLimits",
            "limits of the application's provider",
        )
    if open_span.replies_below or any(key.startswith(TOKEN_COUNTS) for key in attributes):
        doubles.note_counted(above)
    if is_model_call(attributes):
        scope = span.instrumentation_scope
        doubles.report_call_below(above, scope.name if scope is not None else "")
    if open_span.trajectory is not None and open_span.trajectory.root is above:
        applied = open_span.limits.applied
        events = [(event.name, applied(event.attributes or {})) for event in span.events]
        logged = previews.events_of(open_span.details.events)
        longest = open_span.limits.longest
        previews.offer(open_span.trajectory, applied(attributes), [*events, *logged], longest)


def unfinished_line(span: ReadableSpan, longest: int | None = None) -> bytes:
    """Return the line, without end time, to be recorded if the process dies.

    Args:
        span: the root span of a trajectory.
        longest: if given, return only the trajectory's identity, with texts cut to this many characters.
    """
    context = span.get_span_context()
    open_span = state.sdk_spans.get(context.span_id) if context is not None else None
    if open_span is None:
        open_span = _OpenSpan(NO_IDENTITY, False, content.NOTHING)
    if longest is None:
        return _line(span, open_span, 0, StatusCode.ERROR.value, UNFINISHED)
    kind = _attributes(span, open_span).get(semconv.SPAN_KIND, semconv.KIND_AGENT)
    attributes = b"[%b,%b]" % (
        open_span.identity.shortened(longest),
        otlp_json.attribute(semconv.SPAN_KIND, kind),
    )
    details = otlp_json.Details(status=StatusCode.ERROR.value, status_message=UNFINISHED)
    return _line_of(span, span.name[:longest], 0, attributes, details.encoded())


def _attributes(span: ReadableSpan, open_span: _OpenSpan) -> dict[str, AttributeValue]:
    """Return a span's attributes, uncut for our spans even if the SDK cut them."""
    identity = open_span.identity.attributes
    return {**identity, **(span.attributes or {}), **open_span.attributes, **identity}


def _line(span: ReadableSpan, open_span: _OpenSpan, end_ns: int, status: int, message: str | None) -> bytes:
    kept: Mapping[str, Any] = _attributes(span, open_span)
    details = open_span.details
    if not open_span.is_ours:  # our operations have limited their content already
        limits = open_span.limits
        kept = limits.applied(kept)
        events = [_event(e.name, limits.applied(e.attributes or {}), e.timestamp) for e in span.events]
        links = [link_to(link.context, link.attributes) for link in span.links]
        dropped = [span.dropped_attributes, span.dropped_events + details.dropped[EVENT], span.dropped_links]
        details = otlp_json.Details(events + details.events, links, dropped)
    attributes, failed = otlp_json.kept_attributes(kept)
    dropped = [details.dropped[ATTRIBUTE] + failed, *details.dropped[EVENT:]]
    details = replace(details, dropped=dropped, status=status, status_message=message)
    return _line_of(span, span.name, end_ns, attributes, details.encoded())


def _line_of(span: ReadableSpan, name: str, end_ns: int, attributes: bytes, details: bytes) -> bytes:
    context = span.get_span_context()
    assert context is not None
    start_ns = otlp_json.valid_time(span.start_time, end_ns or time.time_ns())
    scope, parent = span.instrumentation_scope, span.parent
    scope_head = (
        otlp_json.scope_head(scope.name, scope.version, scope.attributes, scope.schema_url)
        if scope
        else otlp_json.scope_head("", None, None, None)
    )
    head = otlp_json.head_below(
        b"%032x" % context.trace_id,
        b"%016x" % parent.span_id if parent else b"",
        context.trace_flags | remote_bits(parent),
    )
    pieces = otlp_json.line(
        scope_head,
        head,
        b"%016x" % context.span_id,
        otlp_json.json_string(name),
        span.kind.value + 1,
        start_ns,
        end_ns,
        (attributes,),
        details + otlp_json.trace_state(context.trace_state.to_header()),
    )
    return b"".join(pieces)


def _event(name: str, attributes: types.Attributes, timestamp: int) -> bytes:
    return otlp_json.event(name, otlp_json.valid_time(timestamp, time.time_ns()), attributes or {})


class _OwnIds(IdGenerator):
    """Draws ids from its own generator, because training seeds the SDK's."""

    def __init__(self, run_id: str) -> None:
        self._mark = int(mark_of(run_id), 16) << RANDOM_BITS
        self._bits = random.Random(os.urandom(16)).getrandbits  # noqa: S311 - ids, not secrets

    def generate_span_id(self) -> int:
        return self._mark | self._bits(RANDOM_BITS)

    def generate_trace_id(self) -> int:
        return self._bits(128) or 1


def tracer_of(provider: TracerProvider, run_id: str) -> Tracer:
    """Return a tracer of the application's provider for our own spans.

    The ids of the spans have the run's mark, unless the application has chosen an id generator.
    """
    tracer = provider.get_tracer(semconv.SCOPE, VERSION)
    # A generator that the application chose stays.
    if type(getattr(tracer, "id_generator", None)) is RandomIdGenerator:
        tracer.id_generator = _OwnIds(run_id)  # type: ignore[attr-defined]
    return tracer
