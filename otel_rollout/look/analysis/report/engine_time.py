"""Read what each step's requests took in the inference engine: queue, prefill, decode and first token."""

from __future__ import annotations

from dataclasses import dataclass

from otel_rollout.look.analysis.run_choice import Run, StepKey
from otel_rollout.table import filters
from otel_rollout.table.query import Engine


@dataclass(frozen=True, slots=True)
class StepEngineTime:
    """What the requests of a step's trajectories took; a time is null if no request has it.

    Attributes:
        trajectories: trajectories with a request.
        requests: requests that the engine has finished and traced.
        calls_without_request: model calls of the step's trajectories without a request.
        queue_seconds: mean seconds of a trajectory in the engine's queue, summed over its requests.
        prefill_seconds: mean seconds of a trajectory in prefill.
        decode_seconds: mean seconds of a trajectory in decode.
        queue_p50: seconds of a request in the queue, median.
        queue_p95: nineteen of twenty requests waited at most this.
        first_token_p50: seconds until a request's first token, median.
        first_token_p95: nineteen of twenty requests had their first token after at most this.
    """

    trajectories: int
    requests: int
    calls_without_request: int
    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    queue_p50: float | None
    queue_p95: float | None
    first_token_p50: float | None
    first_token_p95: float | None


def engine_times_of(engine: Engine, run: Run, condition: str) -> dict[StepKey, StepEngineTime]:
    """Return the figures of each step that has requests.

    Args:
        engine: queries the table.
        run: the run.
        condition: SQL condition on ``step``, ``step_text`` and ``validate``, to read only some steps.
    """
    columns = ", ".join(("validate", "step", "step_text", *StepEngineTime.__slots__))
    rows = engine.dicts(f"SELECT {columns} FROM engine_steps WHERE {run.condition} AND ({condition})")  # noqa: S608
    return {filters.step_out_of(row): StepEngineTime(**row) for row in rows}
