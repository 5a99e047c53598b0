"""Check that no process is slower than the others at the same operation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Count, fault_in, steps_said
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.analysis.timeline.workers import MIN_CALLS, SLOWER, Worker, names_of, worker_of
from otel_rollout.look.conversation.formatting import steps_in_words

_ERRORS: Final = 5.0
"""Standard errors by which a slow process must differ from the others in a step."""
_MIN_SECONDS: Final = 0.005
"""Minimum typical seconds of an operation: a shorter one holds nobody up."""
_PART: Final = 0.5
"""Minimum share of the steps, from the first slow one on, in which a slow process must be slow."""
_NAMED: Final = 3
_Row = tuple[Worker, dict[str, Any]]
"""A process, and the times of an operation in a step as the query has them."""
_OPERATIONS: Final = """
SELECT
  name, resource, step, count(*) AS calls, sum(ln(seconds)) AS total,
  sum(ln(seconds) * ln(seconds)) AS squares, sum(ln(duration)) AS durations, min(trace_id) AS first,
  max(trace_id) AS last
FROM (
  SELECT name, resource, step, trace_id, duration_ns / 1e9 AS duration,
    duration_ns / 1e9 / CASE WHEN kind = 'LLM' AND tokens_out > 0 THEN tokens_out ELSE 1 END AS seconds
  FROM {spans} AS span
  WHERE kind IN ('LLM', 'TOOL', 'EVALUATOR') AND score_name IS NULL AND duration_ns > 0 AND status <> 'error'
) AS timed
GROUP BY name, resource, step"""


@dataclass(frozen=True)
class _Timing:
    """The times of an operation in one process and step.

    The means are of logarithms, so that a few long calls do not outweigh the others.

    Attributes:
        calls: number of calls.
        mean: mean logarithm of the seconds, per token if these are known.
        error: standard error of the mean.
        duration: mean logarithm of the seconds of a whole call.
        evidence: trace ids of two calls.
    """

    calls: int
    mean: float
    error: float
    duration: float
    evidence: tuple[str, ...]


class _Slow(NamedTuple):
    """A process that is slow at an operation: in which steps, and by which factor."""

    operation: str
    worker: Worker
    counts: list[Count]
    factor: float


def slow(scope: Scope) -> Finding:
    """Find a process that takes longer than the others for the same operation, per token if known."""
    rows = scope.rows(_OPERATIONS.format(spans=scope.spans_of()))
    known = [(worker, row) for row in rows if (worker := worker_of(row["resource"]))]
    workers = {worker for worker, _ in known}
    if len(workers) < 2:
        return unobserved(
            "Only one process recorded model calls and tools." if workers else "No span names its process."
        )
    by_operation = {
        name: _timings(some) for name, some in grouped(known, lambda each: each[1]["name"]).items()
    }
    compared = {
        (worker, step)
        for timings in by_operation.values()
        for step, by_worker in timings.items()
        for worker in by_worker
        if step in scope.steps
    }
    if not compared:
        return unobserved(f"No two processes have {MIN_CALLS} calls or more of one operation in a step.")
    found = [each for name, timings in by_operation.items() for each in _slow_at(name, timings, scope.steps)]
    if not found:
        return Finding("healthy", _equally_fast(known, compared, scope.steps))
    names = names_of(sorted(workers))
    found.sort(key=lambda each: -each.factor)
    counts = [count for each in found for count in each.counts]
    message = " ".join(
        f"{names[each.worker]} takes {each.factor:.1f} times as long as the other processes for "
        f"`{each.operation}` in {steps_said(each.counts)}."
        for each in found[:_NAMED]
    )
    more = f" And {len(found) - _NAMED} more." if len(found) > _NAMED else ""
    return fault_in(counts, message + more)


def _equally_fast(
    known: Sequence[_Row], compared: set[tuple[Worker, int | None]], chosen: Container[int | None]
) -> str:
    """Return in words that no process is slow, and what was compared if that is not everything."""
    recorded = {(worker, row["step"]) for worker, row in known if row["step"] in chosen}
    number, whole = (len({worker for worker, _ in each}) for each in (compared, recorded))
    where = (
        f" in {steps_in_words(step for _, step in compared)}: of {whole}, only those with {MIN_CALLS} calls "
    )
    rest = f"{where}or more of one operation in a step are compared" if compared < recorded else ""
    return f"None of {number} processes is slower than the others{rest}."


def _timings(rows: Sequence[_Row]) -> dict[int | None, dict[Worker, _Timing]]:
    """Return the times of an operation in each step, of the processes that can be compared there."""
    by_step = grouped(rows, lambda each: each[1]["step"])
    found = {}
    for step in sorted(by_step, key=lambda step: (step is None, step)):
        by_worker = grouped(by_step[step], lambda each: each[0])
        timings = {worker: _timing([row for _, row in some]) for worker, some in by_worker.items()}
        timings = {worker: timing for worker, timing in timings.items() if timing.calls >= MIN_CALLS}
        if len(timings) > 1:
            found[step] = timings
    return found


def _slow_at(
    operation: str, timings: Mapping[int | None, Mapping[Worker, _Timing]], chosen: Container[int | None]
) -> Iterator[_Slow]:
    """Yield the processes that are slow at an operation in some of the chosen steps."""
    excesses: dict[Worker, list[tuple[Count, float]]] = {}
    seen: dict[Worker, list[int | None]] = {}
    for step, by_worker in timings.items():
        for worker, timing in by_worker.items():
            seen.setdefault(worker, []).append(step)
            factor = _factor(timing, [each for name, each in by_worker.items() if name != worker])
            if factor is not None:
                count = Count(step, timing.calls, timing.calls, timing.evidence)
                excesses.setdefault(worker, []).append((count, factor))
    for worker, slow_steps in excesses.items():
        after = seen[worker][seen[worker].index(slow_steps[0][0].step) :]
        is_often = len(slow_steps) >= _PART * len(after) and (len(slow_steps) > 1 or len(seen[worker]) == 1)
        part = [(count, factor) for count, factor in slow_steps if count.step in chosen]
        if is_often and part:
            factor = statistics.median(factor for _, factor in part)
            yield _Slow(operation, worker, [count for count, _ in part], factor)


def _timing(rows: Sequence[dict[str, Any]]) -> _Timing:
    """Return the times of one process; each OpenTelemetry resource of the process has a row."""
    sums = (sum(row[name] for row in rows) for name in ("calls", "total", "squares", "durations"))
    calls, total, squares, durations = sums
    mean = total / calls
    error = math.sqrt(max(0.0, squares / calls - mean**2) / calls)
    return _Timing(calls, mean, error, durations / calls, (rows[0]["first"], rows[0]["last"]))


def _factor(timing: _Timing, others: list[_Timing]) -> float | None:
    """Return by which factor a process is slower than the others in a step; None if it is not slow."""
    usual = statistics.median(each.mean for each in others)
    difference = timing.mean - usual
    typical = math.exp(statistics.median(each.duration for each in others))
    noise = timing.error + statistics.median(each.error for each in others)
    if difference < math.log(SLOWER) or difference < _ERRORS * noise or typical < _MIN_SECONDS:
        return None
    return math.exp(difference)
