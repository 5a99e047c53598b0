"""Add up the phases of a step's trajectories, in total and over the step's wall time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.timeline.lanes import Lane
from otel_rollout.look.analysis.timeline.phases import (
    DRAWN,
    ENGINE_PHASES,
    GENERATE,
    PHASES,
    TOOL,
    Phase,
    Segment,
)

OUTSIDE_ENGINE: Final = "outside the engine"
"""Name of a model call's time in no engine phase: in client, network and the engine's front end."""
MOMENTS: Final = 60
"""Number of equal parts of the wall time, for each of which the running trajectories are counted."""


class PhaseTime(NamedTuple):
    """The time that the trajectories of a step were in one phase.

    Attributes:
        phase: the phase.
        name: the tool, or the engine phase; empty for a phase as a whole.
        seconds: seconds, summed over the trajectories.
        share: part of the sum of all trajectories' time.
        at_once: number of trajectories in the phase, on average over the wall time.
        wall_seconds: wall time during which at least one trajectory was in the phase.
        wall_share: ``wall_seconds`` as a part of the step's wall time.
    """

    phase: Phase
    name: str
    seconds: float
    share: float
    at_once: float
    wall_seconds: float
    wall_share: float


class Moment(NamedTuple):
    """The running trajectories in a part of the wall time.

    Attributes:
        seconds: start of the part, in seconds since the step's start.
        running: trajectories that ran, on average over the part.
        phases: number of trajectories in each of ``DRAWN``, on average over the part.
    """

    seconds: float
    running: float
    phases: tuple[float, ...]


def phase_times(lanes: Sequence[Lane]) -> list[PhaseTime]:
    """Return the time of each phase that occurs, in the order of ``PHASES``."""
    by_phase = _times(lanes, (("", segment) for lane in lanes for segment in lane.segments))
    return sorted(by_phase, key=lambda time: PHASES.index(time.phase))


def tool_times(lanes: Sequence[Lane]) -> list[PhaseTime]:
    """Return the time in each tool, the most time first."""
    in_tools = (
        (segment.name, segment) for lane in lanes for segment in lane.segments if segment.phase == TOOL
    )
    return sorted(_times(lanes, in_tools), key=lambda time: (-time.seconds, time.name))


def engine_times(lanes: Sequence[Lane]) -> list[PhaseTime]:
    """Return the time of model calls in each engine phase and outside; [] without spans of an engine."""
    names = (*ENGINE_PHASES, OUTSIDE_ENGINE)
    in_calls = [
        (segment.engine or OUTSIDE_ENGINE, segment)
        for lane in lanes
        for segment in lane.segments
        if segment.phase == GENERATE
    ]
    if not any(segment.engine for _, segment in in_calls):
        return []
    return sorted(_times(lanes, in_calls), key=lambda time: names.index(time.name))


def moments_of(lanes: Sequence[Lane]) -> list[Moment]:
    """Return how many trajectories ran over the wall time, in parts of equal length."""
    start, end = bounds_of(lanes)
    if end == start:
        return []
    segments = (segment for lane in lanes for segment in lane.segments)
    parts = (tuple(shown.values()) for shown in shown_in_parts(segments, start, end, MOMENTS))
    seconds = (end - start) / MOMENTS / 1e9
    return [Moment(part * seconds, sum(phases), phases) for part, phases in enumerate(parts)]


def shown_in_parts(segments: Iterable[Segment], start: int, end: int, count: int) -> list[dict[str, float]]:
    """Return for equal parts of a time how many segments show each of ``DRAWN``, on average over the part.

    Args:
        segments: the segments, all within the time.
        start: start of the time, in nanoseconds.
        end: its end, after its start.
        count: number of parts; one segment that fills a part counts 1 there.
    """
    width = (end - start) / count
    found = [dict.fromkeys(DRAWN, 0.0) for _ in range(count)]
    for segment in segments:
        first, last = (segment.start - start) / width, (segment.end - start) / width
        for part in range(int(first), min(int(last), count - 1) + 1):
            found[part][segment.shown] += max(min(last, part + 1) - max(first, part), 0.0)
    return found


def peak_of(lanes: Iterable[Lane]) -> int:
    """Return the greatest number of trajectories that ran at once."""
    lasting = [lane for lane in lanes if lane.end > lane.start]
    changes = sorted(change for lane in lasting for change in ((lane.start, 1), (lane.end, -1)))
    return max(accumulate(change for _, change in changes), default=0)


def bounds_of(lanes: Sequence[Lane]) -> tuple[int, int]:
    """Return the start of the first trajectory and the end of the last one, in nanoseconds."""
    return min(lane.start for lane in lanes), max(lane.end for lane in lanes)


def ratio(part: float, whole: float) -> float:
    """Divide a part by the whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def _times(lanes: Sequence[Lane], named: Iterable[tuple[str, Segment]]) -> list[PhaseTime]:
    start, end = bounds_of(lanes)
    total = sum(lane.end - lane.start for lane in lanes)
    times = []
    for (phase, name), found in grouped(named, lambda each: (each[1].phase, each[0])).items():
        segments = [segment for _, segment in found]
        busy = sum(segment.end - segment.start for segment in segments)
        covered = _covered(segments)
        share, wall_share = ratio(busy, total), ratio(covered, end - start)
        at_once = ratio(busy, end - start)
        times.append(PhaseTime(phase, name, busy / 1e9, share, at_once, covered / 1e9, wall_share))
    return times


def _covered(segments: Iterable[Segment]) -> int:
    """Return the time that at least one segment covers, in nanoseconds."""
    covered, until = 0, 0
    for segment in sorted(segments):
        covered += max(segment.end - max(segment.start, until), 0)
        until = max(until, segment.end)
    return covered
