"""One way to start spans and to put JSON on them, whoever records: our provider or the application's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_rollout import semconv
from otel_rollout.record import otlp_json
from otel_rollout.record.span import RecordingSpan, message_of
from otel_rollout.runtime import Runtime

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_MIME_TYPES: Final = {
    semconv.INPUT_VALUE: semconv.INPUT_MIME_TYPE,
    semconv.OUTPUT_VALUE: semconv.OUTPUT_MIME_TYPE,
}
_FRAGMENTS: Final = {
    key: b'%b,{"key":"%b","value":{"stringValue":'
    % (otlp_json.attribute(mime_type, semconv.JSON_MIME_TYPE), key.encode())
    for key, mime_type in _MIME_TYPES.items()
}
_KINDS: Final = {kind: otlp_json.attribute(semconv.SPAN_KIND, kind) for kind in semconv.SPAN_KINDS}


def start(runtime: Runtime, name: str, kind: str, parent: Span, context: Context) -> Span | None:
    """Start a span below ``parent``; None when its trace is not recorded by us.

    Args:
        kind: OpenInference span kind, one of ``semconv.SPAN_KINDS``.
        context: the context ``parent`` is the current span of.
    """
    if type(parent) is not RecordingSpan:
        above = parent.get_span_context()
        if above.is_valid and not above.trace_flags.sampled:
            return None
        guest = runtime.application_tracer()
        if guest is not None:
            # Not recording, if the application's sampler says so: then nothing below is recorded either.
            return guest.start_span(name, context, attributes={semconv.SPAN_KIND: kind})
    recording = runtime.tracer.start(name, parent, context)
    if recording is not None:
        recording.set_encoded(semconv.SPAN_KIND, _KINDS[kind])
    return recording


def put_json(span: Span, key: str, encoded: bytes) -> None:
    """Set ``input.value`` or ``output.value`` to JSON, unless the user has set it already."""
    if type(span) is RecordingSpan:
        if not span.has_attribute(key):
            span.set_encoded(key, b"".join((_FRAGMENTS[key], otlp_json.string_of_json(encoded), b"}}")))
    elif key not in (getattr(span, "attributes", None) or {}):
        span.set_attribute(_MIME_TYPES[key], semconv.JSON_MIME_TYPE)
        span.set_attribute(key, encoded.decode())


def unfinished_line(span: Span) -> bytes:
    """The line a trajectory's root span becomes if its process dies before it ends."""
    if type(span) is RecordingSpan:
        return span.unfinished_line()
    from otel_rollout.record import guest

    return guest.unfinished_line(cast("ReadableSpan", span))


def fail(span: Span, error: BaseException) -> None:
    """Record the exception that left the operation."""
    if type(span) is RecordingSpan:
        span.fail(error)
    else:
        span.record_exception(error)
        message = f"{type(error).__name__}: {message_of(error)}"
        span.set_status(trace.Status(trace.StatusCode.ERROR, message))
