"""Write spans that other programs have sent as OTLP as recorded lines.

Protobuf (:mod:`otel_rollout.otlp.received_protobuf`) and JSON (:mod:`otel_rollout.otlp.received_json`) are
decoded into one form first: a span's part of a line, as JSON with every value checked. So lines have the same
form in whichever encoding a span came, and the form that a recording process writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.errors import warn_once
from otel_rollout.otlp import engine_phases, writer
from otel_rollout.otlp.engine_phases import Phase
from otel_rollout.otlp.json_values import attributes_of
from otel_rollout.otlp.span import Span

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_MAX_TIME_NS: Final = (1 << 63) - 1
_OF_CALLS: Final = frozenset({semconv.POLICY_VERSION_MIN, semconv.POLICY_VERSION_MAX, semconv.NUM_PREEMPTED})
"""Attributes of ours that an engine or its client may give to a model call."""
_NOT_KEPT: Final = (
    f"attributes that begin with {semconv.EXTRA_PREFIX!r} came with spans, and are not recorded: the run "
    "itself says what a trajectory is. Give the sender's attributes another name"
)
_PROCESS_NUMBERS: Final = ("process.pid", "vllm.process_id")
"""Attributes of a resource with the number of the sender's process."""
_END: Final = b"]}]}]}\n"
"""The end of a line after its span: closes the span list, the scope and the resource."""

Entry = dict[str, Any]
"""An attribute in the list of a line's span: its key, and its value by type."""
Fields = dict[str, Any]
"""The JSON of a span in a line: ids in lower-case hex, times as text, each attribute once."""
RedactResource = Callable[[Mapping[str, writer.AttributeInput]], Mapping[str, writer.AttributeInput]]


class RefusedSpanError(ValueError):
    """Raised for a span that cannot be recorded; the message is half a sentence about the span."""


class ReceivedResource(NamedTuple):
    """What a sender says about itself.

    Attributes:
        run_id: the run that the sender names; empty if it names none.
        process: the number of the sender's process; empty if the sender does not say it.
        head: the resource as the rest of a head without its end.
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
        decode: decodes one of these; raises ``RefusedSpanError`` for a wrong one.
    """

    resource: ReceivedResource
    name: str
    head: bytes
    spans: Sequence[Any]
    decode: Callable[[Any], Span]


def kept(sent: list[Entry]) -> list[Entry]:
    """Return a sender's attributes without those that are ours to give.

    They would make a trajectory of any trace, and scores of any span.
    """
    own = [
        entry
        for entry in sent
        if not (key := entry["key"]).startswith(semconv.EXTRA_PREFIX) or key in _OF_CALLS
    ]
    if len(own) < len(sent):
        warn_once(_NOT_KEPT)
    return own


def resource_of(sent: list[Entry], schema_url: str, redact: RedactResource | None) -> ReceivedResource:
    """Return a sender's resource.

    Args:
        sent: the resource's attributes.
        schema_url: the resource's schema; empty without one.
        redact: redacts the attributes.
    """
    own = kept(sent)
    if redact is not None:
        encoded = writer.attribute_list(redact(attributes_of({"attributes": own})))
    else:
        encoded = orjson.dumps(own)
    schema = b'"schemaUrl":%b,' % orjson.dumps(schema_url) if schema_url else b""
    head = b"%b]},%b%b" % (b"," + encoded[1:-1] if own else b"", schema, writer.SCOPES)
    scalars = attributes_of({"attributes": sent})
    process = next((str(scalars[name]) for name in _PROCESS_NUMBERS if scalars.get(name)), "")
    run_id = scalars.get(semconv.RUN_ID)
    return ReceivedResource(run_id if isinstance(run_id, str) else "", process, head)


def scope_head(name: str, version: str, attributes: list[Entry], schema_url: str) -> bytes:
    """Return a scope, and the beginning of its span list, as in a line."""
    return writer.scope_head(name, version, attributes_of({"attributes": kept(attributes)}), schema_url)


# --- spans --------------------------------------------------------------------------------------------------


def fields_of(
    ids: tuple[bytes, bytes, bytes],
    times: tuple[int, int],
    flags: int,
    name: str,
    kind: int,
    attributes: list[Entry],
) -> Fields:
    """Return the JSON of a span in a line, without its details.

    Args:
        ids: ids of the trace, the span and its parent; a parent of zeros is none.
        times: start and end, Unix time in ns.
        flags: OTLP's flags.
        name: the span's name.
        kind: OTLP's ``SpanKind``.
        attributes: the attributes; no two have one key.

    Raises:
        RefusedSpanError: an id or a time is wrong.
    """
    trace_id, span_id, parent_id = ids
    start_ns, end_ns = times
    if len(trace_id) != TRACE_ID_BYTES or not any(trace_id):
        raise RefusedSpanError("has no valid trace id")
    if len(span_id) != SPAN_ID_BYTES or not any(span_id):
        raise RefusedSpanError("has no valid span id")
    if len(parent_id) not in (0, SPAN_ID_BYTES):
        raise RefusedSpanError("has no valid parent id")
    if parent_id == span_id:
        raise RefusedSpanError("is its own parent")
    if not (0 < start_ns <= _MAX_TIME_NS and 0 < end_ns <= _MAX_TIME_NS):
        raise RefusedSpanError("has no valid start or end time")
    if end_ns < start_ns:
        raise RefusedSpanError("ends before it starts")
    return {
        "parentSpanId": parent_id.hex() if any(parent_id) else "",
        "flags": flags,
        "traceId": trace_id.hex(),
        "spanId": span_id.hex(),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": kept(attributes),
    }


def event_of(time_ns: int, name: str, attributes: list[Entry], dropped: int) -> dict[str, Any]:
    """Return an event of a span in a line."""
    return {
        "timeUnixNano": str(time_ns),
        "name": name,
        "attributes": kept(attributes),
        **dropped_counts(dropped),
    }


def link_of(
    ids: tuple[bytes, bytes], trace_state: str, flags: int, attributes: list[Entry], dropped: int
) -> dict[str, Any]:
    """Return a link of a span in a line; ids of zeros are valid.

    Raises:
        RefusedSpanError: an id is wrong.
    """
    trace_id, span_id = ids
    if len(trace_id) != TRACE_ID_BYTES or len(span_id) != SPAN_ID_BYTES:
        raise RefusedSpanError("has a link without valid ids")
    return {
        "traceId": trace_id.hex(),
        "spanId": span_id.hex(),
        "traceState": trace_state,
        "flags": flags,
        "attributes": kept(attributes),
        **dropped_counts(dropped),
    }


def dropped_counts(attributes: int, events: int = 0, links: int = 0) -> dict[str, int]:
    """Return the fields that count what a sender has dropped; none for zeros."""
    counts = {
        "droppedAttributesCount": attributes,
        "droppedEventsCount": events,
        "droppedLinksCount": links,
    }
    return {name: count for name, count in counts.items() if count}


def double_of(value: float) -> float | str:
    """Return a number of an attribute in a line, where JSON has no such number as text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# --- lines --------------------------------------------------------------------------------------------------


def line_of(scope: ReceivedScope, span: Span, identity: Sequence[Entry]) -> bytes:
    """Return the line of a span after the head of its resource; see ``open_resource_head``.

    Args:
        scope: the span's scope.
        span: the decoded span.
        identity: result of :func:`entries` for the identity of the span's trajectory.
    """
    fields = span.fields
    if identity:
        fields = {**fields, "attributes": [*identity, *fields["attributes"]]}
    return scope.head + orjson.dumps(fields) + _END


def phases_of(span: Span) -> list[Phase]:
    """Return the phases of an engine's request; none of another span."""
    if span.name != semconv.ENGINE_REQUEST:
        return []
    said = [entry for entry in span.fields["attributes"] if entry["key"] in engine_phases.READ]
    if not said:
        return []
    times = attributes_of({"attributes": said})
    return engine_phases.phases_of(span.name, bytes.fromhex(span.span_id), times, span.start_ns)


def phase_lines_of(span: Span, identity: bytes) -> list[bytes]:
    """Return the lines of the phases of an engine's request, after the head of its resource; see ``line_of``.

    Args:
        span: the decoded span.
        identity: the encoded attributes of the identity of the span's trajectory.
    """
    phases = phases_of(span)
    if not phases:
        return []
    trace_id, span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    return engine_phases.phase_lines(phases, trace_id, span_id, span.fields["flags"], identity)


def entries(attributes: Mapping[str, Any]) -> list[Entry]:
    """Return attributes as the entries of a list in a line."""
    return list(orjson.loads(writer.attribute_list(attributes)))
