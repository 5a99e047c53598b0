"""One way to start spans and to put JSON on them, whoever records: our provider or the application's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.otlp import writer
from otel_rollout.recording.span import Encoded, RecordingSpan, qualified_name, status_message
from otel_rollout.runtime import Runtime, current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_MIME_TYPES: Final = {
    semconv.INPUT_VALUE: semconv.INPUT_MIME_TYPE,
    semconv.OUTPUT_VALUE: semconv.OUTPUT_MIME_TYPE,
}
_HEADS: Final = {
    key: b",%b,%b" % (writer.attribute(mime_type, semconv.JSON_MIME_TYPE), writer.head_of_string(key))
    for key, mime_type in _MIME_TYPES.items()
}
KINDS: Final = {kind: (b"," + writer.attribute(semconv.SPAN_KIND, kind),) for kind in semconv.SPAN_KINDS}
_LONG: Final = 64 << 10
"""Bytes from which it is worth while not to copy JSON once more."""


def start(runtime: Runtime, name: str, kind: str, parent: Span, context: Context) -> Span | None:
    """Start a span below ``parent``; None when that says already that its trace is not recorded.

    A trace that a sampler leaves out gets a span that does not record, for what is below to know.

    Args:
        kind: OpenInference span kind, one of ``semconv.SPAN_KINDS``.
        context: the context ``parent`` is the current span of.
    """
    encoded: Encoded = {semconv.SPAN_KIND: KINDS[kind]}
    if type(parent) is RecordingSpan:
        return runtime.tracer.start(name, parent, context, encoded)
    above = parent.get_span_context()
    if above.is_valid and not above.trace_flags.sampled:
        return None
    processor = runtime.application_tracer()
    if processor is not None:
        span = processor.start_span(name, context, attributes={semconv.SPAN_KIND: kind})
        if span.is_recording():
            # Again: what a span has from its start is cut by the application's limits.
            span.set_attribute(semconv.SPAN_KIND, kind)
        elif not above.is_valid:
            runtime.writer.counters.skip("application_sampler")
        return span
    recording = runtime.tracer.start(name, parent, context, encoded)
    if recording is None:
        runtime.writer.counters.skip("sampled_out")
        return runtime.tracer.unrecorded(parent)
    return recording


def put_json(span: Span, key: str, encoded: bytes) -> None:
    """Set ``input.value`` or ``output.value`` to JSON, unless the user has set it already."""
    if type(span) is RecordingSpan:
        attributes = span.encoded
        if not span.ended and key not in attributes:
            attributes[key] = writer.attribute_of_json(_HEADS[key], encoded)
            if len(encoded) > _LONG:
                span.long = True
    elif key not in (getattr(span, "attributes", None) or {}):
        span.set_attribute(_MIME_TYPES[key], semconv.JSON_MIME_TYPE)
        span.set_attribute(key, encoded.decode())


def start_of(span: Span) -> int | None:
    """When a span started, Unix time in ns; None for one that does not record."""
    if type(span) is RecordingSpan:
        return span.start_ns
    return getattr(span, "start_time", None)


def unfinished_line(span: Span, longest: int | None) -> bytes:
    """The line a trajectory's root span becomes if its process dies before it ends.

    Args:
        span: the root span.
        longest: characters of texts in a line that has nothing but what the trajectory is known by.
    """
    if type(span) is RecordingSpan:
        return span.unfinished_line(longest)
    from otel_rollout.recording import processor

    return processor.unfinished_line(cast("ReadableSpan", span), longest)


def fail(span: Span, error: BaseException) -> None:
    """Record the exception that left the operation: its words and its stack only with the other content."""
    span.set_attribute(semconv.ERROR_TYPE, qualified_name(type(error)))
    active = current()
    if active is not None and active.settings.capture_content != "full":
        span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
        return
    if type(span) is RecordingSpan:
        span.fail(error)
    else:
        span.record_exception(error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, status_message(error)))
