"""Guests in the application's OTel: a span processor that records what the application's SDK ends.

Used when the application has an SDK provider of its own. Its spans then nest with ours in its own backend,
and the trajectory's spans, its own instrumentation's among them, reach our spool as well.
"""

from __future__ import annotations

import functools
import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import StatusCode

from otel_rollout.base import semconv
from otel_rollout.base.interrupts import pass_on
from otel_rollout.otlp import writer as otlp_json
from otel_rollout.recording.identity import NO_IDENTITY, Identity, identity_in
from otel_rollout.recording.span import MAX_ATTRIBUTES, MAX_EVENTS, MAX_LINKS, UNFINISHED

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
    from opentelemetry.trace import SpanContext, Tracer
    from opentelemetry.util import types
    from opentelemetry.util.types import AttributeValue

    from otel_rollout.recording.writer import SegmentWriter


class _OwnIds(IdGenerator):
    """Ids from a generator of our own: the SDK's draws from the one that training seeds in every worker."""

    def __init__(self) -> None:
        self._bits = random.Random(os.urandom(16)).getrandbits  # noqa: S311 - ids, not secrets

    def generate_span_id(self) -> int:
        return self._bits(64) or 1

    def generate_trace_id(self) -> int:
        return self._bits(128) or 1


def tracer_of(provider: TracerProvider, scope: str, version: str) -> Tracer:
    """A tracer of the application's provider for our own spans."""
    tracer = provider.get_tracer(scope, version)
    if type(getattr(tracer, "id_generator", None)) is RandomIdGenerator:  # an application's own choice stays
        tracer.id_generator = _OwnIds()  # type: ignore[attr-defined]
    return tracer


MAX_OPEN = 1 << 16
"""Spans under way of which something is remembered. Some applications start spans and never end them."""


class _Known:
    """What we know of a span under way, whatever limits the application's SDK has.

    Attributes:
        attributes: those of a span of ours that were set after its start; uncut, as events and links are.
        dropped: attributes, events and links beyond our own limits.
    """

    __slots__ = ("attributes", "dropped", "events", "identity", "is_ours", "links")

    def __init__(self, identity: Identity, is_ours: bool) -> None:
        self.identity = identity
        self.is_ours = is_ours
        self.attributes: dict[str, AttributeValue] = {}
        self.events: list[bytes] = []
        self.links: list[bytes] = []
        self.dropped = [0, 0, 0]

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Keep what is set on the span."""
        for key, value in attributes.items():
            if len(self.attributes) < MAX_ATTRIBUTES or key in self.attributes:
                # A list may be another one later.
                self.attributes[str(key)] = tuple(value) if isinstance(value, list) else value
            else:
                self.dropped[0] += 1

    def add_event(self, name: str, attributes: types.Attributes, timestamp: int) -> None:
        """Keep an event of the span."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(otlp_json.event(name, timestamp, attributes or {}))
        else:
            self.dropped[1] += 1

    def add_link(self, context: SpanContext, attributes: types.Attributes) -> None:
        """Keep a link of the span."""
        if len(self.links) < MAX_LINKS:
            self.links.append(_link(context, attributes))
        else:
            self.dropped[2] += 1


_known: dict[int, _Known] = {}


def _remember(span: Span, identity: Identity, is_ours: bool) -> None:
    while len(_known) >= MAX_OPEN:
        _known.pop(next(iter(_known)), None)
    known = _known[span.get_span_context().span_id] = _Known(identity, is_ours)
    if is_ours:
        # All that is set on a span comes by one of these. By a weak reference: a span that referred to itself
        # would stay in memory where the garbage collector is switched off.
        here = weakref.ref(span)
        vars(span).update(
            set_attribute=functools.partial(_set_attribute, here, known),
            set_attributes=functools.partial(_set_attributes, here, known),
            add_event=functools.partial(_add_event, here, known),
            add_link=functools.partial(_add_link, here, known),
        )


def _set_attribute(here: weakref.ref[Span], known: _Known, key: str, value: AttributeValue) -> None:
    _set_attributes(here, known, {key: value})


def _set_attributes(here: weakref.ref[Span], known: _Known, attributes: Mapping[str, AttributeValue]) -> None:
    span = here()
    if span is not None:
        if span.is_recording():
            _keep(known.set_attributes, attributes)
        type(span).set_attributes(span, attributes)


def _add_event(
    here: weakref.ref[Span],
    known: _Known,
    name: str,
    attributes: types.Attributes = None,
    timestamp: int | None = None,
) -> None:
    span = here()
    if span is not None:
        timestamp = timestamp or time.time_ns()
        if span.is_recording():
            _keep(known.add_event, name, attributes, timestamp)
        type(span).add_event(span, name, attributes, timestamp)


def _add_link(
    here: weakref.ref[Span], known: _Known, context: SpanContext, attributes: types.Attributes = None
) -> None:
    span = here()
    if span is not None:
        if span.is_recording():
            _keep(known.add_link, context, attributes)
        type(span).add_link(span, context, attributes)


def _keep(keep: Callable[..., None], *what: Any) -> None:
    try:
        keep(*what)
    except Exception as error:  # noqa: BLE001 - what a user's value does must not reach the user's code
        pass_on(error)


class IdentityProcessor(SpanProcessor):
    """Gives the application's spans inside a trajectory its identity; the rest is the application's."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Mark the span as part of the trajectory it is started in."""
        identity = identity_in(parent_context)
        if identity.attributes:
            span.set_attributes(identity.attributes)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept."""
        return True


class SpoolSpanProcessor(IdentityProcessor):
    """Gives spans inside a trajectory its identity, and records them when they end.

    Spans of the application outside any trajectory are its own business and left alone; operations of ours
    outside any trajectory are recorded.

    Args:
        current_writer: gives where ended spans go at present; None while nothing is recorded.
        scope: instrumentation scope of our operations.
    """

    def __init__(self, current_writer: Callable[[], SegmentWriter | None], scope: str) -> None:
        self._current_writer = current_writer
        self._scope = scope

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Mark the span as part of the trajectory it is started in."""
        super().on_start(span, parent_context)
        identity = identity_in(parent_context)
        scope = span.instrumentation_scope
        is_ours = scope is not None and scope.name == self._scope
        if (identity.attributes or is_ours) and span.get_span_context().trace_flags.sampled:
            writer = self._current_writer()
            if writer is not None:
                try:
                    _remember(span, identity, is_ours)
                except (RuntimeError, StopIteration):  # two threads made room at once
                    return
                writer.started()

    def on_end(self, span: ReadableSpan) -> None:
        """Record the span, if it is a trajectory's or ours."""
        context = span.get_span_context()
        known = _known.pop(context.span_id, None) if context is not None else None
        writer = self._current_writer() if known is not None else None
        if known is None or writer is None:
            return
        try:
            assert span.end_time is not None
            status = span.status
            body = _line(span, known, span.end_time, status.status_code.value, status.description)
        except Exception as error:  # noqa: BLE001 - we are inside user code
            writer.counters.drop("encoding", known.identity)
            pass_on(error)
        else:
            writer.write(body, known.identity)

    def shutdown(self) -> None:
        """The writer belongs to the runtime, which closes it."""


def unfinished_line(span: ReadableSpan, longest: int | None = None) -> bytes:
    """The line this span becomes if its process dies before it ends; without an end time.

    Args:
        span: the root span of a trajectory.
        longest: characters of texts in a line that has nothing but what the trajectory is known by.
    """
    context = span.get_span_context()
    known = _known.get(context.span_id) if context is not None else None
    if known is None:
        known = _Known(NO_IDENTITY, False)
    if longest is None:
        return _line(span, known, 0, StatusCode.ERROR.value, UNFINISHED)
    kind = _attributes(span, known).get(semconv.SPAN_KIND, semconv.KIND_AGENT)
    attributes = b"[%b,%b]" % (
        known.identity.shortened(longest),
        otlp_json.attribute(semconv.SPAN_KIND, kind),
    )
    details = otlp_json.Details(status=StatusCode.ERROR.value, status_message=UNFINISHED)
    return _line_of(span, span.name[:longest], 0, attributes, details.encoded())


def _attributes(span: ReadableSpan, known: _Known) -> dict[str, AttributeValue]:
    """A span's attributes, whatever the SDK has evicted or cut: what is ours is whole, the identity first."""
    identity = known.identity.attributes
    return {**identity, **(span.attributes or {}), **known.attributes, **identity}


def _line(span: ReadableSpan, known: _Known, end_ns: int, status: int, message: str | None) -> bytes:
    if known.is_ours:
        events, links, dropped = known.events, known.links, known.dropped
    else:
        events = [otlp_json.event(e.name, e.timestamp, e.attributes or {}) for e in span.events]
        links = [_link(link.context, link.attributes) for link in span.links]
        dropped = [span.dropped_attributes, span.dropped_events, span.dropped_links]
    details = otlp_json.Details(events, links, dropped, status, message).encoded()
    return _line_of(span, span.name, end_ns, otlp_json.attribute_list(_attributes(span, known)), details)


def _line_of(span: ReadableSpan, name: str, end_ns: int, attributes: bytes, details: bytes) -> bytes:
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    scope, parent = span.instrumentation_scope, span.parent
    scope_head = (
        otlp_json.scope_head(scope.name, scope.version, scope.attributes, scope.schema_url)
        if scope
        else otlp_json.scope_head("", None, None, None)
    )
    head = otlp_json.head_below(
        b"%032x" % context.trace_id,
        b"%016x" % parent.span_id if parent else b"",
        context.trace_flags | _remote_bits(parent),
    )
    pieces = otlp_json.line(
        scope_head,
        head,
        b"%016x" % context.span_id,
        otlp_json.json_string(name),
        span.kind.value + 1,
        span.start_time,
        end_ns,
        (attributes,),
        details + otlp_json.trace_state(context.trace_state.to_header()),
    )
    return b"".join(pieces)


def _link(context: SpanContext, attributes: types.Attributes) -> bytes:
    return otlp_json.link(
        context.trace_id,
        context.span_id,
        context.trace_state.to_header(),
        context.trace_flags | _remote_bits(context),
        attributes or {},
    )


def _remote_bits(parent: SpanContext | None) -> int:
    return otlp_json.HAS_IS_REMOTE | (otlp_json.IS_REMOTE if parent is not None and parent.is_remote else 0)
