"""Make spans of the phases of a request in an inference engine: queue, prefill and decode.

vLLM's span of a request has the duration of each phase as an attribute, but not the time at which a phase
began. The span also has the time from the request's arrival, which is the span's start, to the first token.
So the phases are placed around the first token: prefill ends there, and decode begins there.

Two clocks are involved. The engine's core measures the phases. The front end measures arrival, first token
and end. The front end learns of a token later than the core: in vLLM 0.32 under load, by up to 60 ms. So the
phases may reach past the request's end. Then all of them are moved to an earlier time, so that the last one
ends with the request. No phase begins before the arrival. The durations do not change.

Versions of vLLM differ in the durations that they report. A phase is made if its duration, and the durations
of all phases before it, are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.version import VERSION
from otel_rollout.otlp import writer

QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
TIMES: Final = {
    QUEUE: semconv.LATENCY_QUEUE,
    PREFILL: semconv.LATENCY_PREFILL,
    DECODE: semconv.LATENCY_DECODE,
}
"""Phase → name of the attribute with its time, in the order of the phases."""
PHASES: Final = tuple(TIMES)
_NS: Final = 1_000_000_000
MAX_SECONDS: Final = 366 * 86_400
"""Maximum seconds of a request's time: a year. The view ``engine_requests`` has the same limit."""
_MAX_TIME_NS: Final = (1 << 63) - 1
_INTERNAL: Final = 1
"""OTLP's ``SpanKind`` of a phase."""
_SCOPE: Final = writer.scope_head(semconv.SCOPE, VERSION, None, None)


class Phase(NamedTuple):
    """A phase of a request.

    Attributes:
        name: one of ``PHASES``.
        span_id: id of the phase's span, a hash of the engine span's id and the phase's name. So a repeated
            span repeats its phases.
        start_ns: Unix time in ns.
        end_ns: Unix time in ns.
    """

    name: str
    span_id: bytes
    start_ns: int
    end_ns: int


def phases_of(name: str, span_id: bytes, attributes: Mapping[str, Any], start_ns: int) -> list[Phase]:
    """Return the known phases of an engine's request, in order; none if the span is no such request.

    Args:
        name: the span's name.
        span_id: the span's id, 8 bytes.
        attributes: the span's attributes.
        start_ns: start of the span: the request's arrival, Unix time in ns.
    """
    if name != semconv.ENGINE_REQUEST:
        return []
    times: list[int] = []
    for key in TIMES.values():
        time = _ns(attributes.get(key))
        if time is None:
            break
        times.append(time)
    if not times:
        return []
    bounds = list(accumulate(times, initial=start_ns + _delay(times, attributes)))
    if not 0 < start_ns <= bounds[-1] <= _MAX_TIME_NS:
        return []
    return [
        Phase(phase, blake2b(span_id + phase.encode(), digest_size=8).digest(), begin, end)
        for phase, begin, end in zip(TIMES, bounds, bounds[1:], strict=False)
    ]


def _delay(times: list[int], attributes: Mapping[str, Any]) -> int:
    """Return the time in ns from the request's arrival to the start of its first phase."""
    first_token = _ns(attributes.get(semconv.LATENCY_FIRST_TOKEN))
    if first_token is None or len(times) < 2:
        return 0
    total = _ns(attributes.get(semconv.LATENCY_TOTAL))
    delay = first_token - sum(times[:2])
    return max(0, delay if total is None else min(delay, total - sum(times)))


def seconds_of(value: Any) -> float | None:
    """Return an attribute's value as seconds; None if the value cannot be a request's time."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MAX_SECONDS else None


def _ns(value: Any) -> int | None:
    seconds = seconds_of(value)
    return None if seconds is None else round(seconds * _NS)


def phase_lines(
    phases: Iterable[Phase], trace_id: bytes, span_id: bytes, flags: int, identity: bytes
) -> list[bytes]:
    """Return the lines of phases, as spans of our scope below the engine's span, without resource heads.

    Args:
        phases: result of :func:`phases_of`.
        trace_id: trace of the engine's span, 16 bytes.
        span_id: id of the engine's span, 8 bytes.
        flags: flags of the engine's span.
        identity: the encoded attributes of the trajectory's identity; empty outside trajectories.
    """
    head = writer.head_below(
        trace_id.hex().encode(), span_id.hex().encode(), flags & 0xFF | writer.HAS_IS_REMOTE
    )
    before = b"[%b," % identity if identity else b"["
    return [
        b"".join(
            writer.line(
                _SCOPE,
                head,
                phase.span_id.hex().encode(),
                writer.json_string(phase.name),
                _INTERNAL,
                phase.start_ns,
                phase.end_ns,
                (before, writer.attribute(semconv.ENGINE_PHASE, phase.name), b"]"),
            )
        )
        for phase in phases
    ]
