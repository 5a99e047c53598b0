"""Make spans of an application's own SDK encodable as protobuf.

Python text may hold half a surrogate pair, from ``os.fsdecode`` or from JSON with ``\\ud800``. Protobuf
refuses such text, and with it every span of the request. Spans of recorded lines hold no surrogates.
"""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.otlp import sdk


def encodable(span: ReadableSpan) -> ReadableSpan:
    """Return a span with question marks for characters that UTF-8 cannot hold.

    Raises:
        ValueError: the span has no context.
    """
    return sdk.readable(*sdk.spans_of([span]))
