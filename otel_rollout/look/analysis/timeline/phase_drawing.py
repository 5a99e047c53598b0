"""Draw phases: boxes, ticks, and the bar above the conversation of one trajectory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.timeline.lanes import Lane, lanes_in
from otel_rollout.look.analysis.timeline.phases import (
    DRAWN,
    ENGINE_PHASES,
    GENERATE,
    UNRECORDED,
    WAITING,
    Segment,
)
from otel_rollout.look.analysis.timeline.step_time import OUTSIDE_ENGINE, shown_in_parts
from otel_rollout.look.conversation.formatting import duration
from otel_rollout.look.pages.scale import ticks
from otel_rollout.table.query import Engine

WIDTH: Final = 1000.0
"""Width of a drawing, in its units."""
_MAX_BOXES: Final = 250
"""Maximum boxes of a trajectory; with more segments, a box shows the phase that lasts longest in it."""
_MINUTE: Final = 60
_TICK_COUNT: Final = 8
"""Approximate number of an axis' ticks."""


class Box(NamedTuple):
    """A box of a drawing.

    Attributes:
        x: its left edge, in units of the drawing.
        width: its width.
        phase: the phase or engine phase that it shows, one of ``DRAWN``.
        segment: the segment that it shows; None if it stands for several.
    """

    x: float
    width: float
    phase: str
    segment: Segment | None


class Tick(NamedTuple):
    """A tick of a time axis, with its label."""

    x: float
    label: str


def boxes_of(segments: Sequence[Segment], start: int, end: int) -> list[Box]:
    """Return the boxes of a trajectory's segments in a drawing from ``start`` to ``end``."""
    if end <= start:
        return []
    scale = WIDTH / (end - start)
    if len(segments) <= _MAX_BOXES:
        return [
            Box((each.start - start) * scale, (each.end - each.start) * scale, each.shown, each)
            for each in segments
        ]
    first, last = segments[0].start, segments[-1].end
    return [
        Box((left - start) * scale, (right - left) * scale, phase, None)
        for left, right, phase in _longest(segments, first, last)
    ]


def path_of(boxes: Iterable[Box], y: float, height: float) -> str:
    """Return boxes as one path of SVG."""
    return "".join(f"M{box.x:.5g} {y:g}h{box.width:.4g}v{height:g}h{-box.width:.4g}z" for box in boxes)


def ticks_of(nanoseconds: int) -> list[Tick]:
    """Return the ticks of a time axis that begins at 0."""
    if nanoseconds <= 0:
        return []
    seconds = nanoseconds / 1e9
    return [Tick(time / seconds * WIDTH, _label(time)) for time in ticks(0.0, seconds, _TICK_COUNT)]


def _label(seconds: float) -> str:
    if 1 <= seconds < _MINUTE:
        return f"{seconds:g} s"
    return duration(seconds) if seconds else "0"


def _longest(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and longest phase of parts of equal length."""
    bounds = [start + (end - start) * place // _MAX_BOXES for place in range(_MAX_BOXES + 1)]
    sums = shown_in_parts(segments, start, end, _MAX_BOXES)
    for (left, right), shown in zip(pairwise(bounds), sums, strict=True):
        yield left, right, max(DRAWN, key=shown.__getitem__)


# --- the bar above a conversation ---------------------------------------------------------------------------


_ALONE: Final = {WAITING: "outside of any call", UNRECORDED: "not recorded"}
"""Phase without a call → text in place of the call's name."""


class Total(NamedTuple):
    """The total time in a phase or engine phase: the phase, its name in the legend, and the time as text."""

    phase: str
    name: str
    text: str


@dataclass(frozen=True)
class TimeBar:
    """The time of one trajectory, from its start to its end.

    Attributes:
        boxes: the boxes, from left to right without a gap, each with a text: what happened, how long and
            when.
        totals: the phases and engine phases that occur.
        ticks: ticks of the time axis.
        has_engine: whether the time of model calls is divided into engine phases.
    """

    boxes: tuple[tuple[Box, str], ...]
    totals: tuple[Total, ...]
    ticks: tuple[Tick, ...]
    has_engine: bool


def time_bar_of(narrowed: Engine) -> TimeBar | None:
    """Return the bar of a trajectory's time; None if no span takes time.

    Args:
        narrowed: queries the rows of its spans.
    """
    lane = next(iter(lanes_in(narrowed)), None)
    if lane is None or lane.end <= lane.start:
        return None
    boxes = boxes_of(lane.segments, lane.start, lane.end)
    return TimeBar(
        tuple((box, _title(box.phase, box.segment, lane.start)) for box in boxes),
        tuple(totals_of([lane], lambda spent: duration(spent / 1e9))),
        tuple(ticks_of(lane.end - lane.start)),
        any(segment.engine for segment in lane.segments),
    )


def totals_of(lanes: Iterable[Lane], in_words: Callable[[int], str]) -> Iterator[Total]:
    """Yield the phases and engine phases that occur, with the sum of their nanoseconds as text."""
    segments = [segment for lane in lanes for segment in lane.segments]
    has_engine = any(segment.engine for segment in segments)
    by_phase = grouped(segments, lambda segment: segment.shown)
    for shown in DRAWN:
        if shown in by_phase:
            spent = sum(segment.end - segment.start for segment in by_phase[shown])
            yield Total(shown, _name(shown, has_engine), in_words(spent))


def _name(shown: str, has_engine: bool) -> str:
    """Return a phase's name in the legend; engine phases are named as parts of phase ``generate``."""
    if shown in ENGINE_PHASES:
        return f"{GENERATE}, {shown}"
    return f"{GENERATE}, {OUTSIDE_ENGINE}" if shown == GENERATE and has_engine else shown


def _title(shown: str, segment: Segment | None, start: int) -> str:
    """Return the text for a box: its phase, and if it shows one segment, how long and when."""
    if segment is None:
        return f"mostly {shown}"
    what = _ALONE.get(segment.phase) or " ".join(filter(None, (segment.phase, segment.name, segment.engine)))
    took, before = (segment.end - segment.start) / 1e9, (segment.start - start) / 1e9
    when = f"after {duration(before)}" if before else "at the start"
    return f"{what}: {duration(took)}, {when}"
