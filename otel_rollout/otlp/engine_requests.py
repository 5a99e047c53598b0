"""Find the request of an inference engine, and the model call that made it, in recorded lines.

An engine's span that came without a trace header is a trace of its own; with the header of another tracer, it
is in that tracer's trace. Its request id is also on the span of the model call, as the id of the reply. This
module reads both, and puts the engine's span, with the phases below it, under the model call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import scan, writer
from otel_rollout.otlp.json_span import JsonSpan, spans_of_json

CLOCK_ERROR_NS: Final = 10_000_000
"""Nanoseconds by which a request may reach over its call: clocks of two programs on one machine."""
REMOTE_CLOCK_ERROR_NS: Final = 1_000_000_000
"""Nanoseconds by which it may reach over if no call holds it more closely: clocks of two machines."""
_HEAD_BYTES: Final = 8192
"""Bytes from the beginning of a line within which an engine's span is recognised."""
_REQUEST: Final = b'"name":%b' % writer.json_string(semconv.ENGINE_REQUEST)
_PHASE: Final = writer.head_of(semconv.ENGINE_PHASE)
_ID_HEADS: Final = tuple(map(writer.head_of, (semconv.GEN_AI_RESPONSE_ID, semconv.GEN_AI_REQUEST_ID)))
_REQUEST_ID: Final = _ID_HEADS[1]
_IDENTITY: Final = tuple(writer.head_of(key) for key in semconv.IDENTITY if key != semconv.PROJECT_NAME)
"""Of a span in a trajectory; the project is on the resource of every line."""
_UNPLACED: Final = writer.head_of(semconv.ENGINE_UNPLACED)
_KIND: Final = writer.head_of_string(semconv.SPAN_KIND)
_IS_LLM: Final = f'{semconv.KIND_LLM}"'.encode()
_OUTPUT: Final = writer.head_of(semconv.OUTPUT_VALUE)
_ID: Final = re.compile(rb'\{"stringValue":"([^"\\]{1,256})"')
_ID_BEGINS: Final = (b"chatcmpl-", b"cmpl-", b"resp_", b"generate-tokens-")
_ID_IN_REPLY: Final = re.compile(
    rb"""(?:\\{1,7}"(?:request_)?id\\{1,7}": ?\\{1,7}"|\bid=')((?:%b)[^"'\\]{1,256})[\\']"""
    % b"|".join(_ID_BEGINS)
)
"""In the JSON of a reply, which may be text in JSON itself, or in the reply as Python prints it."""
_PART_OF_CALL: Final = re.compile(r"(cmpl-.+)-\d+|((?:chatcmpl-|resp_).+)_\d+")
"""Ids of an engine's requests that are parts of one call: a prompt of several, a step of a response."""
_OF_PLACE: Final = frozenset({*semconv.IDENTITY, semconv.ENGINE_UNPLACED})
"""Attributes that are replaced when a span gets its place."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError)


class Request(NamedTuple):
    """A request in an engine, whose model call is not known.

    Attributes:
        trace_id: the trace of the span, in hex.
        span_id: the span's id in hex.
        id: the request's id.
        start_ns: Unix time in ns.
        end_ns: Unix time in ns.
        has_parent: whether the span is below another one: of another trace, or a trajectory's root.
    """

    trace_id: str
    span_id: str
    id: str
    start_ns: int
    end_ns: int
    has_parent: bool = False


class Call(NamedTuple):
    """A span that has the id of an engine's request.

    Attributes:
        trace_id: its trace in hex.
        span_id: its id in hex.
        start_ns: Unix time in ns.
        end_ns: Unix time in ns.
        identity: the identity of its trajectory, as encoded entries of a list of attributes.
    """

    trace_id: str
    span_id: str
    start_ns: int
    end_ns: int
    identity: bytes


class Placement(NamedTuple):
    """Where an engine's span belongs, with the phases below it.

    Attributes:
        trace_id: the model call's trace in hex.
        parent_id: the model call's span id in hex.
        salt: distinguishes the request from others whose span has the same id; in hex. Ids repeat if engines
            seed the generator of ids.
        identity: the identity of the call's trajectory, as encoded entries of a list of attributes.
    """

    trace_id: str
    parent_id: str
    salt: str
    identity: str


def is_without_call(line: bytes) -> bool:
    """Return whether a line holds an engine's span that came without the trace header of a model call."""
    return (
        line.find(_REQUEST, 0, _HEAD_BYTES) >= 0
        and scan.has_one_span(line)
        and (scan.may_have_root(line) or _UNPLACED in line or not any(head in line for head in _IDENTITY))
        and _REQUEST_ID in line
    )


def has_parent(line: bytes) -> bool:
    """Return whether a line for which :func:`is_without_call` holds has a span below another one."""
    return not scan.may_have_root(line)


def is_phase(line: bytes) -> bool:
    """Return whether a line holds a phase of an engine's request."""
    return line.find(_PHASE, 0, _HEAD_BYTES) >= 0 and scan.has_one_span(line)


def request_in(line: bytes) -> Request | None:
    """Return the request of a line for which :func:`is_without_call` holds; None if it is unreadable."""
    try:
        span = _span_of(orjson.loads(line))
        id_ = span.text(semconv.GEN_AI_REQUEST_ID)
        times = span.start_ns, span.end_ns
        return None if not id_ else Request(span.trace_id, span.span_id, id_, *times, bool(span.parent_id))
    except _UNREADABLE:
        return None


def engine_span_of(line: bytes) -> tuple[str, str]:
    """Return trace id and span id of the engine's span above a phase; both empty if it is unreadable."""
    try:
        span = _span_of(orjson.loads(line))
        return span.trace_id, span.parent_id
    except _UNREADABLE:
        return "", ""


def call_ids_of(request_id: str) -> tuple[str, ...]:
    """Return the ids under which the call of a request may be known."""
    part = _PART_OF_CALL.fullmatch(request_id)
    return (request_id,) if part is None else (request_id, part[1] or part[2])


def calls_in(line: bytes) -> tuple[set[str], Call | None]:
    """Return the request ids that a line's span has, and the span; no id and None for other spans."""
    if line.find(_REQUEST, 0, _HEAD_BYTES) >= 0 or not (found := set(_ids_in(line))):
        return set(), None
    try:
        span = _span_of(orjson.loads(line))
        known = [entry for entry in span.fields.get("attributes", ()) if entry["key"] in semconv.IDENTITY]
        identity = orjson.dumps(known)[1:-1]
        return found, Call(span.trace_id, span.span_id, span.start_ns, span.end_ns, identity)
    except _UNREADABLE:
        return set(), None


def _ids_in(line: bytes) -> Iterator[str]:
    for head in _ID_HEADS:
        at = line.find(head)
        if at >= 0 and (id_ := _ID.match(line, at + len(head))):
            yield id_[1].decode(errors="replace")
    kind, at = line.find(_KIND), line.find(_OUTPUT)
    if kind >= 0 and not line.startswith(_IS_LLM, kind + len(_KIND)):
        return  # a tool, or an agent, whose output has a model's reply in it
    if at >= 0 and any(line.find(begin, at) >= 0 for begin in _ID_BEGINS):  # fast, also in long lines
        yield from (id_.decode(errors="replace") for id_ in _ID_IN_REPLY.findall(line, at))


def _span_of(parsed: dict[str, Any]) -> JsonSpan:
    (span,) = spans_of_json(parsed)
    return span


# --- joining ------------------------------------------------------------------------------------------------


class Ambiguous(Exception):
    """Raised if several calls may have made a request."""


def call_of(request: Request, calls: Iterable[Call], clock_error_ns: int = CLOCK_ERROR_NS) -> Call | None:
    """Return the call that made a request; None if none did.

    The request lies within its call. Of calls one within another, such as a client's span in that of a proxy,
    the innermost made the request. A call in a trajectory is preferred: a proxy may have a trace of its own.
    A request that has a parent joins no other call.

    Args:
        request: the request.
        calls: spans that have its id.
        clock_error_ns: nanoseconds by which the request may reach over.

    Raises:
        Ambiguous: the request lies within several calls that are not one within another.
    """
    begin, end = request.start_ns + clock_error_ns, request.end_ns - clock_error_ns
    holding = {
        (call.trace_id, call.span_id): call for call in calls if call.start_ns <= begin and end <= call.end_ns
    }
    traces = {call.trace_id for call in holding.values() if call.identity}
    if traces or request.has_parent:
        holding = {key: call for key, call in holding.items() if call.trace_id in traces}
    nested = sorted(holding.values(), key=lambda call: (call.start_ns, -call.end_ns, call.span_id))
    for outer, inner in pairwise(nested):
        if outer.trace_id != inner.trace_id or inner.end_ns > outer.end_ns:
            raise Ambiguous
    return nested[-1] if nested else None


def placement_of(request: Request, call: Call) -> Placement:
    """Return where the span of a request belongs that a call has made."""
    named = f"{call.span_id} {request.id} {request.start_ns}"
    salt = blake2b(named.encode(), digest_size=8).hexdigest()
    return Placement(call.trace_id, call.span_id, salt, call.identity.decode())


def placed(line: bytes, placement: Placement) -> bytes:
    """Return the line of an engine's span, or of a phase, in the place of its request.

    Its ids are made from the recorded ones, so whoever reads the line gets the same.
    """
    try:
        parsed = orjson.loads(line)
        span = _span_of(parsed)
        fields = span.fields
        fields["traceId"] = placement.trace_id
        fields["spanId"] = _new_id(span.span_id, placement)
        is_request = fields["name"] == semconv.ENGINE_REQUEST
        fields["parentSpanId"] = placement.parent_id if is_request else _new_id(span.parent_id, placement)
        own = [entry for entry in fields.get("attributes", ()) if entry["key"] not in _OF_PLACE]
        fields["attributes"] = orjson.loads(f"[{placement.identity}]") + own
        return orjson.dumps(parsed) + b"\n"
    except _UNREADABLE:
        return line


def _new_id(recorded: str, placement: Placement) -> str:
    return blake2b(bytes.fromhex(placement.salt + recorded), digest_size=8).hexdigest()
