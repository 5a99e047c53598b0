"""Check that no process is slower than the others at the same operation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Count, fault_in, steps_said
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.analysis.timeline.workers import Worker, names_of, worker_of

_FACTOR: Final = 1.5
"""A slow process needs at least this many times the others' time."""
_ERRORS: Final = 5.0
"""Standard errors by which it must differ from the others in a step."""
_MIN_CALLS: Final = 10
"""Calls of a process in a step without which the step says nothing of it."""
_MIN_SECONDS: Final = 0.005
"""Typical seconds of an operation below which it holds nobody up."""
_PART: Final = 0.5
"""Part of the steps, from the first slow one on, in which a slow process must be slow."""
_NAMED: Final = 3
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


@dataclass
class _Timing:
    """The times of an operation in a process and step, as logarithms, which long times do not outweigh."""

    calls: int = 0
    total: float = 0.0
    squares: float = 0.0
    durations: float = 0.0
    evidence: tuple[str, ...] = ()

    def add(self, row: dict[str, Any]) -> None:
        """Add the times of one part of the process's spans."""
        self.calls += row["calls"]
        self.total += row["total"]
        self.squares += row["squares"]
        self.durations += row["durations"]
        self.evidence = self.evidence or (row["first"], row["last"])

    @property
    def mean(self) -> float:
        """Mean logarithm of the seconds."""
        return self.total / self.calls

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        variance = max(0.0, self.squares / self.calls - self.mean**2)
        return math.sqrt(variance / self.calls)


@dataclass(frozen=True)
class _Slow:
    """A process that is slow at an operation."""

    operation: str
    worker: Worker
    slow_steps: list[tuple[Count, float]]

    @property
    def counts(self) -> list[Count]:
        """The slow steps."""
        return [count for count, _ in self.slow_steps]

    @property
    def factor(self) -> float:
        """How many times the others' time the process takes."""
        return statistics.median(factor for _, factor in self.slow_steps)

    def in_steps(self, steps: Container[int | None]) -> Iterator[_Slow]:
        """Yield the part of some steps, if there is one."""
        part = [each for each in self.slow_steps if each[0].step in steps]
        if part:
            yield _Slow(self.operation, self.worker, part)


def slow(scope: Scope) -> Finding:
    """Find a process that takes longer than the others for the same operation, per token if known."""
    timings: dict[str, dict[int | None, dict[Worker, _Timing]]] = {}
    workers: set[Worker] = set()
    for row in scope.rows(_OPERATIONS.format(spans=scope.spans)):
        worker = worker_of(row["resource"])
        if worker is not None:
            workers.add(worker)
            of_step = timings.setdefault(row["name"], {}).setdefault(row["step"], {})
            of_step.setdefault(worker, _Timing()).add(row)
    if len(workers) < 2:
        return unobserved(
            "Only one process recorded model calls and tools." if workers else "No span names its process."
        )
    all_slow = [each for operation, steps in timings.items() for each in _slow_at(operation, steps)]
    found = [each for slow in all_slow for each in slow.in_steps(scope.steps)]
    if not found:
        return Finding("healthy", f"None of {len(workers)} processes is slower than the others.")
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


def _slow_at(operation: str, steps: dict[int | None, dict[Worker, _Timing]]) -> list[_Slow]:
    """Return the processes that are slow at an operation."""
    excesses: dict[Worker, list[tuple[Count, float]]] = {}
    seen: dict[Worker, list[int | None]] = {}
    for step in sorted(steps, key=lambda step: (step is None, step)):
        timings = {worker: each for worker, each in steps[step].items() if each.calls >= _MIN_CALLS}
        for worker, timing in timings.items():
            seen.setdefault(worker, []).append(step)
            others = [each for name, each in timings.items() if name != worker]
            factor = _factor(timing, others)
            if factor is not None:
                count = Count(step, timing.calls, timing.calls, timing.evidence)
                excesses.setdefault(worker, []).append((count, factor))
    found = []
    for worker, slow_steps in excesses.items():
        after = seen[worker][seen[worker].index(slow_steps[0][0].step) :]
        if len(slow_steps) >= _PART * len(after) and (len(slow_steps) > 1 or len(seen[worker]) == 1):
            found.append(_Slow(operation, worker, slow_steps))
    return found


def _factor(timing: _Timing, others: list[_Timing]) -> float | None:
    """Return by how much a process is slower than the others in a step; None if it is not slow."""
    if not others:
        return None
    usual = statistics.median(each.mean for each in others)
    difference = timing.mean - usual
    typical = math.exp(statistics.median(each.durations / each.calls for each in others))
    noise = timing.error + statistics.median(each.error for each in others)
    if difference < math.log(_FACTOR) or difference < _ERRORS * noise or typical < _MIN_SECONDS:
        return None
    return math.exp(difference)
