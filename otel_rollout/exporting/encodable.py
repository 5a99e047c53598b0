"""Make spans of an application's own SDK encodable as protobuf.

Python text may hold half a surrogate pair, from ``os.fsdecode`` or from JSON with ``\\ud800``. Protobuf
refuses such text, and with it every span of the request. Spans of recorded lines hold no surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rollout.otlp import sdk


def encodable(span: ReadableSpan) -> ReadableSpan:
    """Return a span with question marks for characters that UTF-8 cannot hold."""
    try:
        _check(
            (
                span.name,
                span.status.description,
                *(_attributes_of(holder) for holder in (span, span.resource, *span.events, *span.links)),
                *(event.name for event in span.events),
                *_texts_of(span.instrumentation_scope),
            )
        )
    except UnicodeEncodeError:
        return sdk.readable(*sdk.spans_of([span]))
    return span


def _attributes_of(holder: Any) -> Mapping[str, Any]:
    return holder.attributes or {}


def _texts_of(scope: InstrumentationScope | None) -> tuple[Any, ...]:
    return () if scope is None else (scope.name, scope.version, scope.schema_url, _attributes_of(scope))


def _check(value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _check(key)
            _check(entry)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        for entry in value:
            _check(entry)
