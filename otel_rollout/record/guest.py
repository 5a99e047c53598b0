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

from otel_rollout import semconv
from otel_rollout.record import otlp_json
from otel_rollout.record.identity import identity_in
from otel_rollout.record.span import UNFINISHED

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
    from opentelemetry.trace import SpanContext, Tracer

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


class SpoolSpanProcessor(SpanProcessor):
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
        identity = identity_in(parent_context)
        if identity.attributes:
            span.set_attributes(identity.attributes)
        writer = self._current_writer() if identity.attributes or self._is_ours(span) else None
        if writer is not None:
            writer.started()

    def on_end(self, span: ReadableSpan) -> None:
        """Record the span, if it is a trajectory's or ours."""
        if semconv.PROJECT_NAME not in (span.attributes or {}) and not self._is_ours(span):
            return
        writer = self._current_writer()
        if writer is None:
            return
        try:
            assert span.end_time is not None
            body = _line(span, span.end_time, span.status.status_code.value, span.status.description)
        except Exception:  # noqa: BLE001 - we are inside user code
            writer.drop("encoding")
        else:
            writer.write(body)

    def _is_ours(self, span: ReadableSpan) -> bool:
        scope = span.instrumentation_scope
        return scope is not None and scope.name == self._scope

    def shutdown(self) -> None:
        """The writer belongs to the runtime, which closes it."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Recorded spans are safe at once."""
        return True


def unfinished_line(span: ReadableSpan) -> bytes:
    """The line this span becomes if its process dies before it ends; without an end time."""
    return _line(span, 0, StatusCode.ERROR.value, UNFINISHED)


def _line(span: ReadableSpan, end_ns: int, status: int, message: str | None) -> bytes:
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    scope, parent = span.instrumentation_scope, span.parent
    head = (
        otlp_json.scope_head(scope.name, scope.version, scope.attributes, scope.schema_url)
        if scope
        else otlp_json.scope_head("", None, None, None)
    )
    return otlp_json.line(
        head,
        b"%032x" % context.trace_id,
        b"%016x" % context.span_id,
        b"%016x" % parent.span_id if parent else b"",
        context.trace_flags | _remote_bits(parent),
        span.name,
        span.kind.value + 1,
        span.start_time,
        end_ns,
        [otlp_json.attribute(*item) for item in (span.attributes or {}).items()],
        events=[otlp_json.event(e.name, e.timestamp, e.attributes or {}) for e in span.events],
        links=[
            otlp_json.link(
                link.context.trace_id,
                link.context.span_id,
                link.context.trace_state.to_header(),
                link.context.trace_flags | _remote_bits(link.context),
                link.attributes or {},
            )
            for link in span.links
        ],
        dropped=(span.dropped_attributes, span.dropped_events, span.dropped_links),
        trace_state=context.trace_state.to_header(),
        status=status,
        status_message=message,
    )


def _remote_bits(parent: SpanContext | None) -> int:
    return otlp_json.HAS_IS_REMOTE | (otlp_json.IS_REMOTE if parent is not None and parent.is_remote else 0)
