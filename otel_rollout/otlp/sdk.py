"""Convert spans to and from spans of OpenTelemetry's SDK, for exporters and applications of others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk import resources
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_rollout.otlp.origin import Resource, SpanScope
from otel_rollout.otlp.span import Event, Link, Span, with_utf8
from otel_rollout.otlp.writer import HAS_IS_REMOTE, IS_REMOTE

_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
_CODES: Final = {code.value: code for code in StatusCode}


def readable(span: Span) -> ReadableSpan:
    """Convert a complete span to a span of the SDK; a running span gets no end."""
    given = span.flags & 0xFF or TraceFlags.SAMPLED, span.trace_state
    parent_id, is_remote = span.parent_id, span.has_remote_parent
    return ReadableSpan(
        span.name,
        _context(span.trace_id, span.span_id, False, *given),
        _context(span.trace_id, parent_id, is_remote, *given) if parent_id else None,
        _sdk_resource(span.resource),
        span.attributes,
        [sdk.Event(event.name, dict(event.attributes), event.time_ns) for event in span.events],
        [_sdk_link(link) for link in span.links],
        _KINDS.get(span.kind, SpanKind.INTERNAL),
        instrumentation_scope=_sdk_scope(span.scope),
        status=Status(_CODES.get(span.status, StatusCode.UNSET), span.error_message or None),
        start_time=span.start_ns,
        end_time=None if span.is_running else span.end_ns,
    )


def _context(trace_id: str, span_id: str, is_remote: bool, flags: int, state: str) -> SpanContext:
    found = TraceState.from_header([state]) if state else None
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(flags), found)


@lru_cache(maxsize=64)
def _sdk_resource(resource: Resource) -> resources.Resource:
    return resources.Resource(dict(resource.attributes), resource.schema_url)


@lru_cache(maxsize=64)
def _sdk_scope(scope: SpanScope) -> InstrumentationScope:
    return InstrumentationScope(scope.name, scope.version or None, scope.schema_url or None, scope.attributes)


def _sdk_link(link: Link) -> SdkLink:
    is_remote = bool(link.flags & IS_REMOTE)
    context = _context(link.trace_id, link.span_id, is_remote, link.flags & 0xFF, link.trace_state)
    return SdkLink(context, dict(link.attributes))


# --- from the SDK -------------------------------------------------------------------------------------------


def spans_of(readables: Iterable[ReadableSpan | Span]) -> list[Span]:
    """Convert the SDK's spans to complete spans with valid UTF-8 text; keep ``Span`` objects as they are.

    Raises:
        ValueError: a span has no context.
    """
    shared: dict[int, Any] = {}
    return [span if isinstance(span, Span) else _span_of(span, shared) for span in readables]


def _span_of(readable: ReadableSpan, shared: dict[int, Any]) -> Span:
    """Convert a span of the SDK; ``shared`` maps the ``id()`` of a resource or scope to its conversion."""
    context, parent, status = readable.get_span_context(), readable.parent, readable.status
    if context is None:
        raise ValueError(f"span {readable.name!r} has no context")
    given, scope = readable.resource, readable.instrumentation_scope
    if id(given) not in shared:
        shared[id(given)] = Resource(with_utf8(given.attributes), with_utf8(given.schema_url))
    if id(scope) not in shared:
        shared[id(scope)] = _scope_of(scope)
    start_ns = readable.start_time or 0
    return Span.made(
        (f"{context.trace_id:032x}", f"{context.span_id:016x}", f"{parent.span_id:016x}" if parent else ""),
        with_utf8(readable.name),
        (start_ns, readable.end_time or start_ns),
        with_utf8(readable.attributes or {}),
        is_running=readable.end_time is None,
        flags=_flags(parent),
        trace_state=context.trace_state.to_header(),
        kind=readable.kind.value + 1,
        events=[
            Event(with_utf8(e.name), e.timestamp, with_utf8(e.attributes or {}), e.dropped_attributes)
            for e in readable.events
        ],
        links=[_link_of(link) for link in readable.links],
        dropped=(readable.dropped_attributes, readable.dropped_events, readable.dropped_links),
        status=status.status_code.value,
        message=with_utf8(status.description or ""),
        resource=shared[id(given)],
        scope=shared[id(scope)],
    )


def _link_of(link: SdkLink) -> Link:
    context = link.context
    return Link(
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        with_utf8(link.attributes or {}),
        context.trace_state.to_header(),
        _flags(context),
        link.dropped_attributes,
    )


def _flags(context: SpanContext | None) -> int:
    return HAS_IS_REMOTE | (IS_REMOTE if context and context.is_remote else 0)


def _scope_of(scope: InstrumentationScope | None) -> SpanScope:
    if scope is None:
        return SpanScope()
    named = with_utf8(scope.name), with_utf8(scope.version or ""), with_utf8(scope.schema_url or "")
    return SpanScope(*named, with_utf8(scope.attributes or {}))
