"""Guests in the application's OTel: a span processor that records what the application's SDK ends.

Used when the application has an SDK provider of its own. Its spans then nest with ours in its own backend,
and the trajectory's spans, its own instrumentation's among them, reach our spool as well.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import StatusCode

from otel_rollout.record import otlp_json
from otel_rollout.record.identity import NO_IDENTITY, Identity, identity_in
from otel_rollout.record.interrupts import pass_on
from otel_rollout.record.span import UNFINISHED

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
    from opentelemetry.trace import SpanContext, Tracer
    from opentelemetry.util.types import AttributeValue

    from otel_rollout.record.segment import SegmentWriter


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
    """What we know of a span under way, whatever limits the application's SDK has for attributes."""

    __slots__ = ("contents", "identity")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.contents: dict[str, str] = {}


_known: dict[int, _Known] = {}


def keep_content(span: Span, key: str, content: str) -> None:
    """Remember an input or output: the application's SDK may cut it, and JSON that is cut is none."""
    known = _known.get(span.get_span_context().span_id)
    if known is not None:
        known.contents[key] = content


def _remember(span: Span, identity: Identity) -> None:
    while len(_known) >= MAX_OPEN:
        _known.pop(next(iter(_known)), None)
    _known[span.get_span_context().span_id] = _Known(identity)


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
                    _remember(span, identity)
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
            writer.drop("encoding", known.identity)
            pass_on(error)
        else:
            writer.write(body, known.identity)

    def shutdown(self) -> None:
        """The writer belongs to the runtime, which closes it."""


def unfinished_line(span: ReadableSpan) -> bytes:
    """The line this span becomes if its process dies before it ends; without an end time."""
    context = span.get_span_context()
    known = _known.get(context.span_id) if context is not None else None
    return _line(span, known or _Known(NO_IDENTITY), 0, StatusCode.ERROR.value, UNFINISHED)


def _attributes(span: ReadableSpan, known: _Known) -> dict[str, AttributeValue]:
    """A span's attributes, with what the SDK has evicted or cut: identity first, contents whole."""
    found = {**known.identity.attributes, **(span.attributes or {})}
    for key, content in known.contents.items():
        shown = found.get(key, "")
        if isinstance(shown, str) and content.startswith(shown):  # else somebody has set another one
            found[key] = content
    return found


def _line(span: ReadableSpan, known: _Known, end_ns: int, status: int, message: str | None) -> bytes:
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    scope, parent = span.instrumentation_scope, span.parent
    scope_head = (
        otlp_json.scope_head(scope.name, scope.version, scope.attributes, scope.schema_url)
        if scope
        else otlp_json.scope_head("", None, None, None)
    )
    links = [
        otlp_json.link(
            link.context.trace_id,
            link.context.span_id,
            link.context.trace_state.to_header(),
            link.context.trace_flags | _remote_bits(link.context),
            link.attributes or {},
        )
        for link in span.links
    ]
    details = otlp_json.Details(
        [otlp_json.event(e.name, e.timestamp, e.attributes or {}) for e in span.events],
        links,
        [span.dropped_attributes, span.dropped_events, span.dropped_links],
        status,
        message,
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
        otlp_json.json_string(span.name),
        span.kind.value + 1,
        span.start_time,
        end_ns,
        (otlp_json.attribute_list(_attributes(span, known)),),
        details.encoded() + otlp_json.trace_state(context.trace_state.to_header()),
    )
    return b"".join(pieces)


def _remote_bits(parent: SpanContext | None) -> int:
    return otlp_json.HAS_IS_REMOTE | (otlp_json.IS_REMOTE if parent is not None and parent.is_remote else 0)
