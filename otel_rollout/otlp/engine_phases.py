"""Make spans of the phases of a request in an inference engine: queue, prefill and decode.

vLLM says how long each phase took, as attributes of the request's span, and not when it began. The first
token is the only event with a known distance from the span's start. So the phases lie around it: decode
begins there, prefill ends there, and the queue ends where prefill begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv

QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
PHASES: Final = (QUEUE, PREFILL, DECODE)
_NS: Final = 1e9


class Phase(NamedTuple):
    """A phase of a request.

    Attributes:
        name: one of ``PHASES``.
        span_id: id of the phase's span, made from the engine's span: a repeated span repeats its phases.
        start_ns: Unix time in ns.
        end_ns: Unix time in ns.
    """

    name: str
    span_id: bytes
    start_ns: int
    end_ns: int


def phases_of(name: str, span_id: bytes, attributes: Mapping[str, Any], start_ns: int) -> list[Phase]:
    """Return the phases of an engine's span, in order; none if the span is another one or lacks a time.

    Args:
        name: the span's name.
        span_id: the span's id, 8 bytes.
        attributes: the span's attributes.
        start_ns: start of the span: the request's arrival, Unix time in ns.
    """
    if name != semconv.ENGINE_REQUEST:
        return []
    named = (
        semconv.LATENCY_FIRST_TOKEN,
        semconv.LATENCY_QUEUE,
        semconv.LATENCY_PREFILL,
        semconv.LATENCY_DECODE,
    )
    times = [_seconds(attributes.get(key)) for key in named]
    if None in times:
        return []
    first_token, queue, prefill, decode = (round(seconds * _NS) for seconds in times if seconds is not None)
    middle = start_ns + first_token
    bounds = (middle - prefill - queue, middle - prefill, middle, middle + decode)
    return [
        Phase(phase, blake2b(span_id + phase.encode(), digest_size=8).digest(), begin, end)
        for phase, begin, end in zip(PHASES, bounds, bounds[1:], strict=True)
    ]


def _seconds(value: Any) -> float | None:
    """Return a time of at most a year; None for what is no time."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and 0 <= value <= 3.2e7 else None
