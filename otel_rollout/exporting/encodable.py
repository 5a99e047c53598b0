"""Make spans of an application's own SDK encodable as protobuf.

Python text may hold half a surrogate pair, from ``os.fsdecode`` or from JSON with ``\\ud800``. Protobuf
refuses such text, and with it every span of the request. Spans of recorded lines hold no surrogates; they are
not checked, which would take a tenth of the CPU time of three exporters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Status, StatusCode

from otel_rollout.otlp.reader import DecodedSpan


def encodable(span: ReadableSpan) -> ReadableSpan:
    """Return a span with question marks for characters that UTF-8 cannot hold."""
    if isinstance(span, DecodedSpan):
        return span
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
        return _replaced(span)
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


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_clean(key): _clean(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_clean(entry) for entry in value]
    return value


def _replaced(span: ReadableSpan) -> ReadableSpan:
    scope, status = span.instrumentation_scope, span.status
    failed = status.status_code is StatusCode.ERROR
    return ReadableSpan(
        name=_clean(span.name),
        context=span.context,
        parent=span.parent,
        resource=Resource(_clean(span.resource.attributes), _clean(span.resource.schema_url)),
        attributes=_clean(_attributes_of(span)),
        events=[Event(_clean(e.name), _clean(_attributes_of(e)), e.timestamp) for e in span.events],
        links=[Link(link.context, _clean(_attributes_of(link))) for link in span.links],
        kind=span.kind,
        instrumentation_scope=InstrumentationScope(*map(_clean, _texts_of(scope))) if scope else None,
        status=Status(status.status_code, _clean(status.description)) if failed else status,
        start_time=span.start_time,
        end_time=span.end_time,
    )
