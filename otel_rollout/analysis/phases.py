"""Divide a trajectory's time into phases: each instant belongs to exactly one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from otel_rollout.base import semconv

Phase = Literal["generate", "tool", "reward", "waiting", "unrecorded"]
GENERATE: Final = "generate"
TOOL: Final = "tool"
REWARD: Final = "reward"
WAITING: Final = "waiting"
UNRECORDED: Final = "unrecorded"
PHASES: Final[tuple[Phase, ...]] = (GENERATE, TOOL, REWARD, WAITING, UNRECORDED)
"""Every phase, in the order in which a person reads them."""
OF_KIND: Final[dict[str, Phase]] = {
    semconv.KIND_EVALUATOR: REWARD,
    semconv.KIND_TOOL: TOOL,
    semconv.KIND_LLM: GENERATE,
}
"""Kind of a call → the phase of a trajectory during the call. Of calls that overlap, the kind that is named
first counts: a judge's model call is part of the reward, a tool's model call is part of the tool."""
_PRIORITY: Final = tuple(OF_KIND.values())


class Call(NamedTuple):
    """A call that decides the phase.

    Attributes:
        start: nanoseconds.
        end: nanoseconds.
        phase: the phase during the call.
        name: the tool; the model or the operation.
    """

    start: int
    end: int
    phase: Phase
    name: str


class Segment(NamedTuple):
    """A part of a trajectory's time in one phase.

    Attributes:
        start: nanoseconds.
        end: nanoseconds, greater than ``start``.
        phase: the phase.
        name: name of the call that decided it; empty while none ran.
    """

    start: int
    end: int
    phase: Phase
    name: str = ""


def segments_of(
    calls: Iterable[Call], start: int, end: int, recorded_until: int | None = None
) -> list[Segment]:
    """Return the segments of a trajectory, in order, without a gap between them.

    Of several calls in one phase, the one that started first counts. Only the part of a call inside the
    trajectory's time counts.

    Args:
        calls: calls of the trajectory, in any order.
        start: start of the trajectory, in nanoseconds.
        end: its end.
        recorded_until: end of the last span of a trajectory that still runs; what follows is unrecorded.
    """
    known_end = end if recorded_until is None else min(max(recorded_until, start), end)
    inside = sorted(
        Call(max(call.start, start), min(call.end, known_end), call.phase, call.name)
        for call in calls
        if call.start < known_end and call.end > start and call.end > call.start
    )
    parts = [*_swept(inside, start, known_end)]
    if end > known_end:
        parts.append(Segment(known_end, end, UNRECORDED))
    return _joined(parts)


def between(segments: Iterable[Segment], start: int, end: int) -> Iterator[Segment]:
    """Yield the parts of segments between two times."""
    for segment in segments:
        if segment.start < end and segment.end > start:
            yield segment._replace(start=max(segment.start, start), end=min(segment.end, end))


def _swept(calls: Sequence[Call], start: int, end: int) -> Iterator[Segment]:
    """Yield the phase between every two boundaries of calls that are sorted by start."""
    bounds = sorted({start, end, *(call.start for call in calls), *(call.end for call in calls)})
    running: dict[Phase, list[Call]] = {phase: [] for phase in _PRIORITY}
    following = 0
    for left, right in pairwise(bounds):
        while following < len(calls) and calls[following].start <= left:
            heapq.heappush(running[calls[following].phase], calls[following])
            following += 1
        for heap in running.values():
            while heap and heap[0].end <= left:
                heapq.heappop(heap)
        current = next((running[phase][0] for phase in _PRIORITY if running[phase]), None)
        if current is None:
            yield Segment(left, right, WAITING)
        else:
            yield Segment(left, right, current.phase, current.name)


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Join neighbours of one phase and name."""
    found: list[Segment] = []
    for segment in segments:
        if found and (found[-1].phase, found[-1].name) == (segment.phase, segment.name):
            found[-1] = found[-1]._replace(end=segment.end)
        else:
            found.append(segment)
    return found
