"""Make ids of Weave's calls and feedback; each process makes equal ids for a span."""

from __future__ import annotations

import hashlib

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_rollout.exporting.projects import context_of


def uuid_of(key: str) -> str:
    """Make a UUID from a hash of a key, in the format of version 4."""
    digits = hashlib.sha256(key.encode(errors="replace")).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def call_id_of(context: SpanContext) -> str:
    """Make a call's id from trace and span id; span ids alone could collide."""
    return uuid_of(f"{context.trace_id:032x}/{context.span_id:016x}")


def marker_id_of(context: SpanContext) -> str:
    """Make the id of the call that shows a trajectory while it runs.

    The marker is a separate call, deleted when the trajectory's call is written. Weave can add only output
    and end to a stored call, so the marker cannot become the trajectory's call.
    """
    return uuid_of(f"{context.trace_id:032x}/{context.span_id:016x}/running")


def trace_id_of(span: ReadableSpan) -> str:
    """Return a span's trace id in hex, the form in which Weave stores it."""
    return f"{context_of(span).trace_id:032x}"
