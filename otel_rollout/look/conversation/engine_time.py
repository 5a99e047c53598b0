"""Sum what a model call's requests took in an inference engine, as the view ``engine_requests`` tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from otel_rollout.base import semconv
from otel_rollout.otlp import engine_phases, model_calls
from otel_rollout.otlp.span import Span

EngineRequest = Mapping[str, float | None]
"""Columns of the view ``engine_requests`` → seconds; None where the engine does not say it."""


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


def engine_time_of(spans: Sequence[Span], requests: Mapping[str, EngineRequest]) -> EngineTime | None:
    """Return what the requests among the spans of a model call took; None without a request.

    Args:
        spans: the model call's spans.
        requests: span id → row of the view ``engine_requests``.
    """
    asked = [(requests[id_], span) for span in spans if (id_ := span.span_id) in requests]
    if not asked:
        return None
    phases = {
        phase: sum(times)
        for phase in engine_phases.PHASES
        if (times := [time for row, _ in asked if (time := row[f"{phase}_seconds"]) is not None])
    }
    first_tokens = (time for row, _ in asked if (time := row["first_token_seconds"]) is not None)
    counts = [model_calls.counts_of(span.attributes) for _, span in asked]
    return EngineTime(
        len(asked), phases, max(first_tokens, default=None), _rate(counts, phases.get(engine_phases.DECODE))
    )


def _rate(counts: Sequence[Mapping[str, int]], decode: float | None) -> float | None:
    """Return the tokens per second of decode; prefill makes the first token of each request."""
    known = [count - 1 for each in counts if (count := each.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS))]
    return sum(known) / decode if decode and known and len(known) == len(counts) and sum(known) else None
