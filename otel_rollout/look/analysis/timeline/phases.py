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


def filled(
    parts: Iterable[Segment], start: int, end: int, recorded_until: int | None = None
) -> list[Segment]:
    """Return the segments of a trajectory, in order, without a gap between them.

    Args:
        parts: the time of its calls, as view ``segments`` has it: in order, without overlap.
        start: start of the trajectory, in nanoseconds.
        end: its end.
        recorded_until: end of the last span of a trajectory that still runs; what follows is unrecorded.
    """
    known_end = end if recorded_until is None else min(max(recorded_until, start), end)
    segments, until = [], start
    for part in between(parts, start, known_end):
        segments += [Segment(until, part.start, WAITING), part]
        until = part.end
    segments += [Segment(until, known_end, WAITING), Segment(known_end, end, UNRECORDED)]
    return _joined(segment for segment in segments if segment.end > segment.start)


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
