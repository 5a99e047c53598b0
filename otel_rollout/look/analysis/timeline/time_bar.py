"""Divide the time of one trajectory into phases, for a bar above its conversation."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rollout.look.analysis.timeline.engine_phases import ENGINE_PHASES
from otel_rollout.look.analysis.timeline.phase_drawing import DRAWN, WIDTH, Tick, boxes_of, ticks_of
from otel_rollout.look.analysis.timeline.phases import GENERATE, UNRECORDED, WAITING, Segment
from otel_rollout.look.analysis.timeline.step_spans import lanes_in
from otel_rollout.look.analysis.timeline.step_time import OUTSIDE_ENGINE
from otel_rollout.look.conversation.formatting import duration

if TYPE_CHECKING:
    from otel_rollout.table.query import Engine

_ALONE: Final = {WAITING: "outside of any call", UNRECORDED: "not recorded yet"}
"""Phases without a call: what is written for the call's name."""


class TimeBox(NamedTuple):
    """A box of the bar.

    Attributes:
        x: its left edge; the bar is ``TimeBar.width`` wide.
        width: its width.
        phase: the phase or engine phase, which is also the name of its style.
        title: what happened, for how long and when.
    """

    x: float
    width: float
    phase: str
    title: str


class Total(NamedTuple):
    """The time in a phase or engine phase: its style, its name, and the sum as text."""

    phase: str
    name: str
    text: str


@dataclass(frozen=True)
class TimeBar:
    """The time of one trajectory, from its start to its end.

    Attributes:
        width: units from the start to the end.
        parts: the boxes, from left to right, without a gap.
        totals: the phases and engine phases that occur.
        ticks: ticks of the time axis.
        has_engine: whether the time of model calls is divided into engine phases.
    """

    width: float
    parts: tuple[TimeBox, ...]
    totals: tuple[Total, ...]
    ticks: tuple[Tick, ...]
    has_engine: bool


def time_bar_of(narrowed: Engine) -> TimeBar | None:
    """Return the time of a trajectory; None without a span that takes time.

    Args:
        narrowed: the rows of its spans.
    """
    lane = next(iter(lanes_in(narrowed)), None)
    if lane is None or lane.end <= lane.start:
        return None
    sums: dict[str, int] = defaultdict(int)
    for segment in lane.segments:
        sums[segment.shown] += segment.end - segment.start
    has_engine = any(segment.engine for segment in lane.segments)
    boxes = boxes_of(lane.segments, lane.start, lane.end)
    return TimeBar(
        WIDTH,
        tuple(
            TimeBox(box.x, box.width, box.phase, _title(box.phase, box.segment, lane.start)) for box in boxes
        ),
        tuple(
            Total(shown, _name(shown, has_engine), duration(sums[shown] / 1e9))
            for shown in DRAWN
            if shown in sums
        ),
        tuple(ticks_of(lane.end - lane.start)),
        has_engine,
    )


def _name(shown: str, has_engine: bool) -> str:
    """Return what the legend calls a phase; the parts of model calls, if the engine's are known."""
    if shown in ENGINE_PHASES:
        return f"{GENERATE}, {shown}"
    return f"{GENERATE}, {OUTSIDE_ENGINE}" if shown == GENERATE and has_engine else shown


def _title(shown: str, segment: Segment | None, start: int) -> str:
    """Return what a box shows."""
    if segment is None:
        return f"mostly {shown}"
    what = _ALONE.get(segment.phase) or " ".join(filter(None, (segment.phase, segment.name, segment.engine)))
    took, before = (segment.end - segment.start) / 1e9, (segment.start - start) / 1e9
    when = f"after {duration(before)}" if before else "at the start"
    return f"{what}: {duration(took)}, {when}"
