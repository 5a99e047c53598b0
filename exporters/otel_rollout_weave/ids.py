"""Make ids of Weave's calls and feedback, one for a span in any process."""

from __future__ import annotations

import hashlib

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext


def uuid_of(key: str) -> str:
    """Make a UUID, of version 4 by its looks, that is always the same for a key."""
    digits = hashlib.sha256(key.encode(errors="replace")).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def call_id_of(context: SpanContext) -> str:
    """Make a call's id of trace and span id: span ids alone would collide."""
    return uuid_of(f"{context.trace_id:032x}/{context.span_id:016x}")


def marker_id_of(context: SpanContext) -> str:
    """Make the id of the call that shows a trajectory while it runs.

    It is a call of its own, deleted when the trajectory's call comes: Weave can add only output and end to a
    call that it has.
    """
    return uuid_of(f"{context.trace_id:032x}/{context.span_id:016x}/running")


def trace_id_of(span: ReadableSpan) -> str:
    """Return the id of a span's trace, which is the id of its thread too."""
    return f"{context_of(span).trace_id:032x}"


def context_of(span: ReadableSpan) -> SpanContext:
    """Return a span's context.

    Raises:
        ValueError: the span has none.
    """
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return context
