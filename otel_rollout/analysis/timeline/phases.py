"""Divide a trajectory's time into phases: each instant belongs to exactly one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
"""Kind of a call → the phase of a trajectory during the call."""


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
        engine: what an inference engine did for the model call: ``queue``, ``prefill`` or ``decode``; empty
            where no engine's span says so.
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


def segments_of(
    calls: Iterable[Call], start: int, end: int, recorded_until: int | None = None
) -> list[Segment]:
    """Return the segments of a trajectory, in order, without a gap between them.

    While several calls run, the one that began first counts, and of those the longest: a judge's model call
    is part of the reward, a tool's model call is part of the tool. View ``phases`` has this rule too. Only
    the part of a call inside the trajectory's time counts.

    Args:
        calls: calls of the trajectory, in any order.
        start: start of the trajectory, in nanoseconds.
        end: its end.
        recorded_until: end of the last span of a trajectory that still runs; what follows is unrecorded.
    """
    known_end = end if recorded_until is None else min(max(recorded_until, start), end)
    parts, until = [], start
    for call in sorted(calls, key=lambda call: (call.start, -call.end, call.phase, call.name)):
        begin, over = max(call.start, until), min(call.end, known_end)
        if over <= begin:
            continue
        parts += [Segment(until, begin, WAITING), Segment(begin, over, call.phase, call.name)]
        until = over
    parts += [Segment(until, known_end, WAITING), Segment(known_end, end, UNRECORDED)]
    return _joined(part for part in parts if part.end > part.start)


def between(segments: Iterable[Segment], start: int, end: int) -> Iterator[Segment]:
    """Yield the parts of segments between two times."""
    for segment in segments:
        if segment.start < end and segment.end > start:
            yield segment._replace(start=max(segment.start, start), end=min(segment.end, end))


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Join neighbours of one phase and name."""
    found: list[Segment] = []
    for segment in segments:
        if found and (found[-1].phase, found[-1].name) == (segment.phase, segment.name):
            found[-1] = found[-1]._replace(end=segment.end)
        else:
            found.append(segment)
    return found
