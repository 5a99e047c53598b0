"""Divide the time of model calls by what the inference engine did: queue, prefill or decode."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from otel_rollout.look.analysis.timeline.phases import GENERATE, Segment
from otel_rollout.otlp import engine_phases

QUEUE: Final = engine_phases.QUEUE
ENGINE_PHASES: Final = engine_phases.PHASES
"""Every engine phase, in the order in which a person reads them."""
_FIRST: Final = tuple(reversed(ENGINE_PHASES))
"""Of requests that run at once, the one that has come furthest counts: a trajectory waits in the queue only
while none of its requests is computed."""


class EnginePart(NamedTuple):
    """A part of a trajectory's time in one engine phase."""

    start: int
    end: int
    phase: str


def parts_of(phases: Iterable[EnginePart]) -> list[EnginePart]:
    """Return the parts of time in which an engine phase runs, in order; each instant belongs to one.

    Args:
        phases: the engine phases of a trajectory's requests, in any order.
    """
    changes = [(time, change, part.phase) for part in phases for time, change in _changes(part)]
    running: Counter[str] = Counter()
    parts: list[EnginePart] = []
    since = 0
    for time, change, phase in sorted(changes):
        shown = next((each for each in _FIRST if running[each]), None)
        if shown and time > since:
            parts.append(EnginePart(since, time, shown))
        running[phase] += change
        since = time
    return parts


def divided(segments: Sequence[Segment], parts: Sequence[EnginePart]) -> Iterator[Segment]:
    """Yield the segments of a trajectory, those of model calls divided by the parts of the engine's time."""
    ends = [part.end for part in parts]
    for segment in segments:
        if segment.phase != GENERATE or not parts:
            yield segment
            continue
        until = segment.start
        for part in parts[bisect_right(ends, segment.start) :]:
            if part.start >= segment.end:
                break
            begin, end = max(part.start, until), min(part.end, segment.end)
            if begin > until:
                yield segment._replace(start=until, end=begin)
            yield segment._replace(start=begin, end=end, engine=part.phase)
            until = end
        if until < segment.end:
            yield segment._replace(start=until)


def _changes(part: EnginePart) -> Iterator[tuple[int, int]]:
    if part.end > part.start:
        yield part.start, 1
        yield part.end, -1
