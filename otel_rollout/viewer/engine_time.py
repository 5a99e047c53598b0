"""Read what a model call's requests took in an inference engine, from the spans that the engine sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.base import semconv
from otel_rollout.otlp import engine_phases, model_calls
from otel_rollout.otlp.engine_phases import DECODE
from otel_rollout.viewer.span_tree import kind_of


@dataclass(frozen=True)
class EngineTime:
    """What the requests of a model call took, summed over them.

    Attributes:
        requests: number of requests.
        phases: engine phase → seconds, of the phases that are known.
        first_token: seconds until the first token, of several requests the longest; None if unknown.
        tokens_per_second: tokens after the first one per second of decode; None if unknown.
    """

    requests: int
    phases: Mapping[str, float]
    first_token: float | None
    tokens_per_second: float | None

    @property
    def shares(self) -> Iterator[tuple[str, float]]:
        """Yield each engine phase with its share of all."""
        total = sum(self.phases.values())
        if total:
            yield from ((phase, seconds / total) for phase, seconds in self.phases.items())


def engine_time_of(spans: Sequence[ReadableSpan]) -> EngineTime | None:
    """Return what the requests among the spans of a model call took; None without a request."""
    requests = [span.attributes or {} for span in spans if is_request(span)]
    if not requests:
        return None
    phases = {
        phase: sum(times)
        for phase, name in engine_phases.TIMES.items()
        if (times := list(_times(requests, name)))
    }
    return EngineTime(
        len(requests),
        phases,
        max(_times(requests, semconv.LATENCY_FIRST_TOKEN), default=None),
        _rate(requests, phases.get(DECODE)),
    )


def is_request(span: ReadableSpan) -> bool:
    """Return whether a span is a request in an engine, and not an operation of this name."""
    if span.name != semconv.ENGINE_REQUEST:
        return False
    kind = kind_of(span)
    return not kind or (kind == semconv.KIND_CHAIN and semconv.LATENCY_TOTAL in (span.attributes or {}))


def _times(requests: Iterable[Mapping[str, Any]], name: str) -> Iterator[float]:
    for attributes in requests:
        seconds = engine_phases.seconds_of(attributes.get(name))
        if seconds is not None:
            yield float(seconds)


def _rate(requests: Iterable[Mapping[str, Any]], decode: float | None) -> float | None:
    """Return the tokens per second of decode; prefill makes the first token of each request."""
    counts = [model_calls.counts_of(each).get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) for each in requests]
    known = [count - 1 for count in counts if count]
    return sum(known) / decode if decode and known and len(known) == len(counts) and sum(known) else None
