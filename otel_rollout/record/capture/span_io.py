"""Start spans and set JSON on them, in our provider or in an application's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.otlp import writer
from otel_rollout.record.recording.exception_text import qualified_name, status_message
from otel_rollout.record.recording.identity import identity_in
from otel_rollout.record.recording.span import Encoded, RecordingSpan
from otel_rollout.record.runtime import Runtime, current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_HEADS: Final = {
    key: b",%b,%b" % (writer.attribute(mime_type, semconv.JSON_MIME_TYPE), writer.head_of_string(key))
    for key, mime_type in semconv.MIME_TYPES.items()
}
KINDS: Final = {kind: (b"," + writer.attribute(semconv.SPAN_KIND, kind),) for kind in semconv.SPAN_KINDS}
_LONG: Final = 64 << 10
"""A line with more bytes of JSON in one attribute is written in pieces, which saves a copy."""


def start(
    runtime: Runtime, name: str, kind: str, parent: Span, context: Context, start_ns: int | None = None
) -> Span | None:
    """Start a span below ``parent``; None if the parent's trace is not recorded.

    If a sampler leaves the trace out, return a non-recording span: then nothing below it is recorded.

    Args:
        runtime: the active runtime.
        name: the span's name.
        kind: OpenInference span kind, one of ``semconv.SPAN_KINDS``.
        parent: the span above.
        context: the context whose current span is ``parent``.
        start_ns: Unix time in ns at which the operation started, if it is not now.
    """
    encoded: Encoded = {semconv.SPAN_KIND: KINDS[kind]}
    if type(parent) is RecordingSpan:
        return _started_at(start_ns, runtime.tracer.start(name, parent, context, encoded))
    above = parent.get_span_context()
    if above.is_valid and not above.trace_flags.sampled:
        return None
    tracer = runtime.application_tracer()
    if tracer is not None:
        span = tracer.start_span(name, context, attributes={semconv.SPAN_KIND: kind}, start_time=start_ns)
        if span.is_recording():
            # Set it again: the application's span limits may have dropped it at the start.
            span.set_attribute(semconv.SPAN_KIND, kind)
            above_has = getattr(parent, "attributes", None) or {}
            if semconv.SPAN_KIND not in above_has:  # else the operation above is counted
                _tally(runtime, above, context)
        elif not above.is_valid:
            runtime.writer.counters.skip("application_sampler")
        return span
    recording = runtime.tracer.start(name, parent, context, encoded)
    if recording is None:
        runtime.writer.counters.skip("sampled_out")
        return runtime.tracer.unrecorded(parent)
    _tally(runtime, above, context)
    return _started_at(start_ns, recording)


def _tally(runtime: Runtime, above: SpanContext, context: Context) -> None:
    """Count a recorded operation that begins outside any trajectory.

    An operation below another program's span is not counted: that span may be part of a trajectory.
    """
    if not above.is_remote and not identity_in(context).attributes:
        runtime.writer.counters.began_outside()


def _started_at(start_ns: int | None, span: RecordingSpan | None) -> RecordingSpan | None:
    if start_ns is not None and span is not None:
        span.set_start(SpanKind.INTERNAL, None, start_ns)
    return span


def put_json(span: Span, key: str, encoded: bytes) -> None:
    """Set ``input.value`` or ``output.value`` to JSON, unless the user has set it."""
    if type(span) is RecordingSpan:
        attributes = span.encoded
        if not span.ended and key not in attributes:
            attributes[key] = writer.attribute_of_json(_HEADS[key], encoded)
            if len(encoded) > _LONG:
                span.long = True
    elif key not in (getattr(span, "attributes", None) or {}):
        span.set_attribute(semconv.MIME_TYPES[key], semconv.JSON_MIME_TYPE)
        span.set_attribute(key, encoded.decode())


def unfinished_line(span: Span, longest: int | None) -> bytes:
    """Return the line to be recorded if the process dies before a root span ends.

    Args:
        span: the root span.
        longest: if given, return only the trajectory's identity, with texts cut to this many characters.
    """
    if type(span) is RecordingSpan:
        return span.unfinished_line(longest)
    from otel_rollout.record.recording import processor

    return processor.unfinished_line(cast("ReadableSpan", span), longest)


def fail(span: Span, error: BaseException) -> None:
    """Record an exception; its message and stack only if content is recorded."""
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


def mark_for_text(runtime: Runtime, span: Span, owner: Any) -> bool:
    """Mark an operation's span whose token ids are to be shown as text; return False without a tokenizer.

    The mark is the name of a tokenizer, with which the forwarder detokenizes the ids
    (:mod:`otel_rollout.turns.line_rewriter`).

    Args:
        runtime: the runtime, which has the tokenizers.
        span: the operation's span.
        owner: the object whose ``tokenizer`` made the ids.
    """
    try:
        name = runtime.tokenizers.name_of(getattr(owner, "tokenizer", None))
        if name is not None:
            span.set_attribute(semconv.TOKENIZER, name)
        return name is not None
    except Exception as error:  # noqa: BLE001 - `tokenizer` may be a user's property
        fault("looking for a tokenizer", error)
        return False


def id_of(span: Span) -> str:
    """Return a span's id, by which a root names the span whose text it shows."""
    return f"{span.get_span_context().span_id:016x}"
