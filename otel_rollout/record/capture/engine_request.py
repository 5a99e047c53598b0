"""Record a request in an inference engine, and its phases, below the model call."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.otlp import engine_phases
from otel_rollout.record import runtime
from otel_rollout.record.capture import span_io
from otel_rollout.record.recording.identity import identity_in
from otel_rollout.record.recording.span import RecordingSpan
from otel_rollout.record.runtime import Runtime


def record(
    context: Context,
    times: tuple[int, int],
    attributes: Mapping[str, float | int | str],
    error: BaseException | str | None = None,
) -> None:
    """Record a request that is over as a span below a context's span, with the phases whose times are known.

    Nothing is recorded if the context's trace is not.

    Args:
        context: the context of the model call.
        times: start and end of the request, Unix time in ns.
        attributes: attributes of the span, by names of :mod:`otel_rollout.base.semconv`.
        error: the exception, or a word, with which the request failed.
    """
    active, parent = runtime.current(), trace.get_current_span(context)
    if active is None or not parent.get_span_context().is_valid:
        return
    name, start_ns = semconv.ENGINE_REQUEST, times[0]
    span = span_io.start(active, name, semconv.KIND_CHAIN, parent, context, start_ns)
    if span is None or not span.is_recording():
        return
    try:
        for key, value in attributes.items():
            span.set_attribute(key, value)
        if isinstance(error, BaseException):
            span_io.fail(span, error)
        elif error is not None:
            span.set_attribute(semconv.ERROR_TYPE, error)
            span.set_status(StatusCode.ERROR, error)
    finally:
        span.end(times[1])
    _record_phases(active, span, context, attributes, start_ns)


@internal_errors("recording the phases of an engine's request")
def _record_phases(
    active: Runtime,
    span: Span,
    context: Context,
    attributes: Mapping[str, float | int | str],
    start_ns: int,
) -> None:
    """Record the phases as the receiver and the span processor do for an engine's own span."""
    ids = span.get_span_context()
    trace_id, span_id = ids.trace_id.to_bytes(16, "big"), ids.span_id.to_bytes(8, "big")
    phases = engine_phases.phases_of(semconv.ENGINE_REQUEST, span_id, attributes, start_ns)
    identity = span.identity if type(span) is RecordingSpan else identity_in(context)
    encoded = identity.encoded or identity.encode()
    for line in engine_phases.phase_lines(phases, trace_id, span_id, ids.trace_flags, encoded):
        active.writer.started()
        active.writer.write(line, identity)
