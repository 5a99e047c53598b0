"""Write spans that other programs have sent as OTLP as recorded lines.

Protobuf (:mod:`otel_rollout.otlp.received_protobuf`) and JSON (:mod:`otel_rollout.otlp.received_json`) are
decoded into spans. So a line has the same form in whichever encoding its span came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.errors import warn_once
from otel_rollout.otlp import engine_phases, writer
from otel_rollout.otlp.json_line import fields_of
from otel_rollout.otlp.span import Span

_MAX_TIME_NS: Final = (1 << 63) - 1
_OF_CALLS: Final = frozenset({semconv.POLICY_VERSION_MIN, semconv.POLICY_VERSION_MAX, semconv.NUM_PREEMPTED})
"""Attributes of ours that an engine or its client may give to a model call."""
_NOT_KEPT: Final = (
    f"attributes that begin with {semconv.EXTRA_PREFIX!r} came with spans, and are not recorded: the run "
    "itself says what a trajectory is. Give the sender's attributes another name"
)
_NESTED: Final = frozenset({dict, list})
_PROCESS_NUMBERS: Final = ("process.pid", "vllm.process_id")
"""Attributes of a resource with the number of the sender's process."""

RedactResource = Callable[[Mapping[str, writer.AttributeInput]], Mapping[str, writer.AttributeInput]]


class RefusedSpanError(ValueError):
    """Raised for a span that cannot be recorded. The message completes a sentence that begins "the span"."""


class ReceivedResource(NamedTuple):
    """What a sender says about itself.

    Attributes:
        run_id: the run that the sender names; empty if it names none.
        process: the number of the sender's process; empty if the sender does not say it.
        head: the encoded resource that follows the result of ``writer.open_resource_head``.
    """

    run_id: str
    process: str
    head: bytes


class ReceivedScope(NamedTuple):
    """The spans of one resource and instrumentation scope of a request.

    Attributes:
        resource: the sender.
        name: name of the instrumentation scope.
        head: the scope, and the beginning of the span list, as in a line.
        spans: the spans, as they came.
        decode: decodes one of ``spans``; raises ``RefusedSpanError`` for an invalid one.
    """

    resource: ReceivedResource
    name: str
    head: bytes
    spans: Sequence[Any]
    decode: Callable[[Any], Span]


def kept(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sender's attributes, and nested maps, without the attributes that only we may set.

    With these attributes, a sender could make a trajectory of any trace, and give any span a score.
    """
    if semconv.EXTRA_PREFIX not in " ".join(sent) and _NESTED.isdisjoint(map(type, sent.values())):
        return dict(sent)  # true of most spans
    own = {
        key: _kept_in(value) if isinstance(value, (dict, list)) else value
        for key, value in sent.items()
        if not key.startswith(semconv.EXTRA_PREFIX) or key in _OF_CALLS
    }
    if len(own) < len(sent):
        warn_once(_NOT_KEPT)
    return own


def _kept_in(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_kept_in, value))
    return kept(value) if isinstance(value, dict) else value


def resource_of(sent: Mapping[str, Any], schema_url: str, redact: RedactResource | None) -> ReceivedResource:
    """Return a sender's resource.

    Args:
        sent: the resource's attributes.
        schema_url: the resource's schema; empty without one.
        redact: redacts the attributes.
    """
    own = kept(sent)
    encoded = writer.attribute_list(own if redact is None else redact(own))
    attributes = b"," + encoded[1:-1] if own else b""
    head = b"%b]},%b%b" % (attributes, writer.schema_of(schema_url), writer.SCOPES)
    process = next((str(sent[name]) for name in _PROCESS_NUMBERS if sent.get(name)), "")
    run_id = sent.get(semconv.RUN_ID)
    return ReceivedResource(run_id if isinstance(run_id, str) else "", process, head)


def scope_head(name: str, version: str, attributes: Mapping[str, Any], schema_url: str) -> bytes:
    """Return a scope, and the beginning of its span list, as in a line."""
    return writer.scope_head(name, version, kept(attributes), schema_url)


def accepted(span: Span) -> Span:
    """Check a complete span, and remove the attributes that only we may set.

    Raises:
        RefusedSpanError: the span is its own parent, or a time is wrong.
    """
    if span.parent_id == span.span_id:
        raise RefusedSpanError("is its own parent")
    if not (0 < span.start_ns <= _MAX_TIME_NS and 0 < span.end_ns <= _MAX_TIME_NS):
        raise RefusedSpanError("has no valid start or end time")
    if span.end_ns < span.start_ns:
        raise RefusedSpanError("ends before it starts")
    span.attributes = kept(span.attributes)
    if span.events:
        span.events = [event._replace(attributes=kept(event.attributes)) for event in span.events]
    if span.links:
        span.links = [link._replace(attributes=kept(link.attributes)) for link in span.links]
    return span


def line_of(scope: ReceivedScope, span: Span, identity: bytes) -> bytes:
    """Return the line of a span, without the resource head.

    Args:
        scope: the span's scope.
        span: the decoded span.
        identity: the encoded attributes of the identity of the span's trajectory; empty outside trajectories.
    """
    return scope.head + orjson.dumps(fields_of(span, identity)) + writer.LIST_END


def phase_lines_of(span: Span, identity: bytes) -> list[bytes]:
    """Return the lines of the phases of an engine's request, without the resource head.

    Args:
        span: the decoded span.
        identity: as for :func:`line_of`.
    """
    trace_id, span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    phases = engine_phases.phases_of(span.name, span_id, span.attributes, span.start_ns)
    return engine_phases.phase_lines(phases, trace_id, span_id, span.flags, identity)
