"""Divide a trajectory's time into phases, and the time of model calls into engine phases."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.otlp import engine_phases

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
"""Kind of a call → the phase of a trajectory during the call."""

ENGINE_PHASES: Final = engine_phases.PHASES
"""Every engine phase, in the order in which a person reads them."""
DRAWN: Final[tuple[str, ...]] = (GENERATE, *ENGINE_PHASES, *(phase for phase in PHASES if phase != GENERATE))
"""Everything that a drawing shows, in the order in which a person reads it: phases, and engine phases."""
_FURTHEST: Final = tuple(reversed(ENGINE_PHASES))
"""Engine phases by precedence: of simultaneous requests, the one in the latest phase counts.

So a trajectory waits in the queue only while none of its requests is computed.
"""


class Segment(NamedTuple):
    """A part of a trajectory's time in one phase.

    Attributes:
        start: nanoseconds.
        end: nanoseconds, greater than ``start``.
        phase: the phase.
        name: name of the call that decided the phase; empty while no call ran.
        engine: what an inference engine did for the model call: ``queue``, ``prefill`` or ``decode``; empty
            if unknown.
    """

    start: int
    end: int
    phase: Phase
    name: str = ""
    engine: str = ""

    @property
    def shown(self) -> str:
        """What a drawing shows: the engine phase, else the phase."""
        return self.engine or self.phase


def filled(
    parts: Iterable[Segment],
    start: int,
    end: int,
    recorded_until: int | None = None,
    outside: Phase = WAITING,
) -> list[Segment]:
    """Return the segments of a trajectory, in order, without a gap between them.

    Args:
        parts: the time of its calls from the view ``segments``: in order, without overlap.
        start: start of the trajectory, in nanoseconds.
        end: its end.
        recorded_until: end of the last span of a running trajectory; the time after it is unrecorded.
        outside: phase of the time outside of the parts.
    """
    known_end = end if recorded_until is None else min(max(recorded_until, start), end)
    segments, until = [], start
    for part in between(parts, start, known_end):
        segments += [Segment(until, part.start, outside), part]
        until = part.end
    segments += [Segment(until, known_end, outside), Segment(known_end, end, UNRECORDED)]
    return _joined(segment for segment in segments if segment.end > segment.start)


def between(segments: Iterable[Segment], start: int, end: int) -> Iterator[Segment]:
    """Yield the parts of segments between two times."""
    for segment in segments:
        if segment.start < end and segment.end > start:
            yield segment._replace(start=max(segment.start, start), end=min(segment.end, end))


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Join neighbouring segments with the same phase and name."""
    found: list[Segment] = []
    for segment in segments:
        if found and (found[-1].phase, found[-1].name) == (segment.phase, segment.name):
            found[-1] = found[-1]._replace(end=segment.end)
        else:
            found.append(segment)
    return found


# --- what the engine did ------------------------------------------------------------------------------------


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
    changes = [
        (time, change, part.phase)
        for part in phases
        if part.end > part.start
        for time, change in ((part.start, 1), (part.end, -1))
    ]
    running: Counter[str] = Counter()
    parts: list[EnginePart] = []
    since = 0
    for time, change, phase in sorted(changes):
        shown = next((each for each in _FURTHEST if running[each]), None)
        if shown and time > since:
            parts.append(EnginePart(since, time, shown))
        running[phase] += change
        since = time
    return parts


def divided(segments: Sequence[Segment], parts: Sequence[EnginePart]) -> Iterator[Segment]:
    """Yield the segments of a trajectory, with model calls divided into engine phases."""
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
