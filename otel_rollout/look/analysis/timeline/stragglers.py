"""Find the trajectories that held up a step after all others had ended, and what they did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from typing import Final

from otel_rollout.look.analysis.timeline.lanes import RUNNING, Lane
from otel_rollout.look.analysis.timeline.phases import TOOL, Phase, between

_MAX_SHARE: Final = 10
"""One in this many trajectories, rounded up, can be a straggler."""
_MAX_FEW: Final = 3
"""Stragglers that a small step can have, if they are at most a third of its trajectories."""
_MIN_TAIL: Final = 0.2
"""Minimum share of the step's wall time with few running trajectories that is worth a sentence."""
_MIN_SHARE: Final = 0.1
"""Minimum share of the step's wall time that stragglers must hold to be worth a sentence."""


@dataclass(frozen=True, slots=True)
class HeldTime:
    """A part of the time for which stragglers held a step.

    Attributes:
        phase: what they did.
        name: the tool, or the engine phase of model calls; else empty.
        seconds: seconds of the held time.
    """

    phase: Phase
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The trajectories that ended last.

    Attributes:
        lanes: these trajectories, the last one first.
        of: number of the step's trajectories.
        since: Unix time when all others had ended, in nanoseconds.
        seconds: wall time from ``since`` until the last one ended.
        parts: what they did in this time, the longest part first; the parts add up to ``seconds``.
        running: how many of them still run.
    """

    lanes: tuple[Lane, ...]
    of: int
    since: int
    seconds: float
    parts: tuple[HeldTime, ...]
    running: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The last part of a step's wall time, in which at most a tenth of its trajectories, rounded up, ran.

    Attributes:
        lanes: the trajectories that ran.
        seconds: wall time from when all others had ended, and one of these had started, until the last end.
    """

    lanes: tuple[Lane, ...]
    seconds: float


def tail_of(lanes: Sequence[Lane]) -> Tail | None:
    """Return the part at a step's end in which at most a tenth of its trajectories ran; None if it is short.

    If only trajectories of one process ran for long enough at the end, the part begins with that time.
    """
    by_end = sorted(lanes, key=lambda lane: (lane.end, lane.trace_id), reverse=True)
    most = -(-len(lanes) // _MAX_SHARE)
    of_one = len(list(takewhile(lambda lane: lane.worker and lane.worker == by_end[0].worker, by_end[:most])))
    wall = by_end[0].end - min(lane.start for lane in lanes)
    for number in (of_one, most):
        if 0 < number < len(lanes):
            tail = by_end[:number]
            held = by_end[0].end - max(by_end[number].end, min(lane.start for lane in tail))
            if held > 0 and held >= _MIN_TAIL * wall:
                return Tail(tuple(tail), held / 1e9)
    return None


def stragglers_of(lanes: Sequence[Lane]) -> Stragglers | None:
    """Return the stragglers of a step; None if the step did not wait for a few trajectories alone.

    At most ``m`` trajectories can be stragglers: a tenth of the step, but in a small step up to three. Let
    ``held(k)`` be the time from when all but the last ``k`` trajectories had ended until the last one ended.
    The stragglers are the last ``k`` trajectories for which ``held(k) - k * held(m) / (m + 1)`` is greatest:
    one more would add less than the average. There are stragglers only if two conditions hold. They held the
    step for at least 10% of its wall time. And each of them had started before all others had ended.
    """
    by_end = sorted(lanes, key=lambda lane: (lane.end, lane.trace_id), reverse=True)
    number = len(by_end)
    most = max(-(-number // _MAX_SHARE), min(_MAX_FEW, number // 3), 1)
    if number < 2:
        return None
    last, wall = by_end[0].end, by_end[0].end - min(lane.start for lane in lanes)
    held = [last - lane.end for lane in by_end[: most + 1]]
    count = max(range(1, most + 1), key=lambda k: held[k] * (most + 1) - k * held[most])
    slowest, since = by_end[:count], by_end[count].end
    is_late = any(lane.start >= since for lane in slowest)
    if is_late or last - since < _MIN_SHARE * wall or last == since:
        return None
    running = sum(lane.state == RUNNING for lane in slowest)
    return Stragglers(
        tuple(slowest), number, since, (last - since) / 1e9, _parts(slowest, since, last), running
    )


def _parts(lanes: Sequence[Lane], start: int, end: int) -> tuple[HeldTime, ...]:
    """Divide the held time by phase; at each instant, the stragglers that still run have equal shares."""
    late = [(lane.end, list(between(lane.segments, start, end))) for lane in lanes]
    shares: dict[tuple[Phase, str], float] = defaultdict(float)
    for left, right in pairwise(sorted({start, *(lane.end for lane in lanes)})):
        still_open = [segments for lane_end, segments in late if lane_end > left]
        for segment in chain.from_iterable(between(segments, left, right) for segments in still_open):
            name = segment.name if segment.phase == TOOL else segment.engine
            shares[segment.phase, name] += (segment.end - segment.start) / len(still_open) / 1e9
    parts = [HeldTime(phase, name, seconds) for (phase, name), seconds in shares.items()]
    return tuple(sorted(parts, key=lambda part: (-part.seconds, part.phase, part.name)))
