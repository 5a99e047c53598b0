"""Judge how often something happens per step, against fixed limits and against the run's earlier steps.

A steady rate is no fault, unless it is so high that most of a step is spoiled. A rise is a fault if it is
large, and if chance does not explain it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_rollout.analysis.health.findings import MAX_EVIDENCE

_BASELINE: Final = 20
"""Earlier steps without a finding whose share is the usual one."""
MIN_BASELINE: Final = 2
"""Earlier steps without which a rise cannot be judged."""
_POOLED: Final = 5
"""Steps whose share together must reach the fixed limit, so that one small step is no finding."""
_LIMIT_SURPRISE: Final = 8.0
"""Least surprise, in nats, of a share above the fixed limit, if the true share were that of a good run."""
_NEARLY_ALL: Final = 0.9
"""Share that needs no such surprise: nine of ten are many in a small step too."""
_MIN_BAD: Final = 3
"""Least number of trajectories that make a finding."""


class Limits(NamedTuple):
    """When a share is unhealthy.

    Attributes:
        rise: least share that a rise must reach.
        always: share from which a step is unhealthy, whatever the other steps have.
        steady: share that a good run may have in all its steps.
        factor: least ratio of a rise to the usual share.
        surprise: least surprise of a rise, in nats, if what is counted were independent. Siblings are not, so
            it is large.
    """

    rise: float
    always: float
    steady: float
    factor: float = 3.0
    surprise: float = 35.0


@dataclass(frozen=True)
class Count:
    """How many of a step's trajectories have something.

    Attributes:
        step: the step; None for trajectories without one.
        bad: number of those that have it.
        of: number of those where it was recorded.
        evidence: trace ids of some that have it.
    """

    step: int | None
    bad: int
    of: int
    evidence: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Part of the trajectories that have it."""
        return self.bad / self.of if self.of else 0.0


class Excess(NamedTuple):
    """The unhealthy steps of a series.

    Attributes:
        counts: the counts of the unhealthy steps.
        usual: the share of the other steps before; None without enough of them.
    """

    counts: list[Count]
    usual: float | None

    def of_steps(self, steps: Container[int | None]) -> Excess:
        """Return the excess of some steps."""
        return Excess(of_steps(self.counts, steps), self.usual)


def of_steps(counts: Iterable[Count], steps: Container[int | None]) -> list[Count]:
    """Return the counts of some steps."""
    return [count for count in counts if count.step in steps]


def excess(counts: Iterable[Count], limits: Limits) -> Excess:
    """Return the steps whose share is too high."""
    ordered = sorted(
        (count for count in counts if count.of), key=lambda count: (count.step is None, count.step)
    )
    found: list[Count] = []
    calm: list[Count] = []
    usual: float | None = None
    for place, count in enumerate(ordered):
        before = calm[-_BASELINE:]
        is_high = _is_high(ordered[max(0, place - _POOLED + 1) : place + 1], limits)
        if is_high or (len(before) >= MIN_BASELINE and _is_rise(count, before, limits)):
            usual = share_of(before) if usual is None and len(before) >= MIN_BASELINE else usual
            found.append(count)
        else:
            calm.append(count)
    return Excess(found, usual)


def _is_high(pooled: Sequence[Count], limits: Limits) -> bool:
    """Return whether the last of some steps, and all of them together, reach the fixed limit."""
    bad, share = sum(count.bad for count in pooled), share_of(pooled)
    if bad < _MIN_BAD or pooled[-1].share < limits.always or share < limits.always:
        return False
    of = sum(count.of for count in pooled)
    return share >= _NEARLY_ALL or of * surprise(share, limits.steady) >= _LIMIT_SURPRISE


def _is_rise(count: Count, before: Sequence[Count], limits: Limits) -> bool:
    usual = share_of(before)
    if count.bad < _MIN_BAD or count.share < max(limits.rise, limits.factor * usual):
        return False
    smoothed = (sum(each.bad for each in before) + 1) / (sum(each.of for each in before) + 2)
    return count.of * surprise(count.share, smoothed) >= limits.surprise


def surprise(share: float, expected: float) -> float:
    """Return how surprising a share is, in nats per observation: the divergence of two coins."""
    parts = ((share, expected), (1 - share, 1 - expected))
    return sum(part * math.log(part / usual) for part, usual in parts if part > 0)


def share_of(counts: Sequence[Count]) -> float:
    """Return the share of several steps together."""
    of = sum(count.of for count in counts)
    return sum(count.bad for count in counts) / of if of else 0.0


def steps_of(counts: Iterable[Count]) -> tuple[int, ...]:
    """Return the numbers of steps, in order; trajectories without a step have none."""
    return tuple(sorted({count.step for count in counts if count.step is not None}))


def evidence_of(counts: Iterable[Count]) -> tuple[str, ...]:
    """Return some evidence of each step, of the first steps first."""
    columns = itertools.zip_longest(*(count.evidence for count in counts))
    found = (trace for column in columns for trace in column if trace)
    return tuple(itertools.islice(dict.fromkeys(found), MAX_EVIDENCE))


def in_words(steps: Sequence[int]) -> str:
    """Return steps as text: ``steps 3–7, 9``."""
    if not steps:
        return "the run"
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    texts = ["–".join(map(str, each)) for each in ranges]
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(texts)}"


def percent(share: float) -> str:
    """Return a share for a person."""
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"
