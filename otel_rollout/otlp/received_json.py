"""Decode OTLP in JSON, as other programs send it, into spans.

A value is checked as protobuf would check it: its type and its range. Making protobuf's messages of the JSON
would take twice the time of everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.otlp import received
from otel_rollout.otlp.json_values import attributes_of, text_of
from otel_rollout.otlp.received import ReceivedScope, RedactResource, RefusedSpanError
from otel_rollout.otlp.span import UNREADABLE, Span

_DIGITS: Final = {"traceId": 32, "spanId": 16, "parentSpanId": 16}


def scopes_of(request: Any, redact: RedactResource | None = None) -> Iterator[ReceivedScope]:
    """Yield the scopes of a request.

    Args:
        request: the parsed JSON.
        redact: redacts the attributes of a resource.

    Raises:
        ValueError: the JSON is no request of OTLP; a single wrong span raises nothing here.
    """
    try:
        for of_resource in request.get("resourceSpans") or ():
            sent = attributes_of(of_resource.get("resource") or {})
            resource = received.resource_of(sent, text_of(of_resource.get("schemaUrl")), redact)
            for of_scope in of_resource.get("scopeSpans") or ():
                spans = of_scope.get("spans") or ()
                if not isinstance(spans, list) and spans:
                    raise TypeError("the spans are no list")
                name, head = _scope(of_scope)
                yield ReceivedScope(resource, name, head, spans, span_of)
    except UNREADABLE as error:
        raise ValueError("it has fields that OTLP does not have there") from error


def _scope(of_scope: Mapping[str, Any]) -> tuple[str, bytes]:
    scope = of_scope.get("scope") or {}
    name, schema_url = text_of(scope.get("name")), text_of(of_scope.get("schemaUrl"))
    return name, received.scope_head(name, text_of(scope.get("version")), attributes_of(scope), schema_url)


def span_of(given: Any) -> Span:
    """Decode the parsed JSON of a span into a checked :class:`Span`.

    Raises:
        RefusedSpanError: the span has wrong values, or no valid ids or times.
    """
    try:
        for holder in (given, *(given.get("links") or ())):
            _check_ids(holder)
        span = Span(given).complete()
    except UNREADABLE as error:
        raise RefusedSpanError("has a field of a wrong type or value, or no valid ids") from error
    return received.accepted(span)


def _check_ids(holder: Mapping[str, Any]) -> None:
    """Check the length of ids: ``Span`` would fill a short id with zeros."""
    for name, digits in _DIGITS.items():
        if len(holder.get(name) or "") not in (0, digits):
            raise ValueError(f"an id is not {digits} hex digits")
