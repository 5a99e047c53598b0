"""Turn phases into boxes of a drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from otel_rollout.look.analysis.timeline.engine_phases import ENGINE_PHASES
from otel_rollout.look.analysis.timeline.phases import GENERATE, PHASES, Segment, between
from otel_rollout.look.conversation.formatting import duration

DRAWN: Final[tuple[str, ...]] = (GENERATE, *ENGINE_PHASES, *(phase for phase in PHASES if phase != GENERATE))
"""Everything that a drawing shows, in the order in which a person reads it: phases, and engine phases."""
WIDTH: Final = 1000.0
"""Units of a drawing from the first time to the last."""
_MAX_BOXES: Final = 250
"""Boxes of a trajectory; of more segments each box shows what lasts longest in it."""
_MINUTE: Final = 60
_TICK_COUNT: Final = 8
"""Ticks of an axis, about."""


class Box(NamedTuple):
    """A box of a drawing.

    Attributes:
        x: its left edge, in units of the drawing.
        width: its width.
        phase: which of ``DRAWN`` it shows.
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
    power = 10.0 ** math.floor(math.log10(seconds / _TICK_COUNT))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor * _TICK_COUNT >= seconds)
    times = [place * width for place in range(int(seconds / width) + 1)]
    return [Tick(time / seconds * WIDTH, _label(time)) for time in times]


def _label(seconds: float) -> str:
    if 1 <= seconds < _MINUTE:
        return f"{seconds:g} s"
    return duration(seconds) if seconds else "0"


def _longest(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield parts of equal length with what lasts longest in each."""
    bounds = [start + (end - start) * place // _MAX_BOXES for place in range(_MAX_BOXES + 1)]
    following = 0
    for left, right in pairwise(bounds):
        sums = dict.fromkeys(DRAWN, 0)
        while following < len(segments) and segments[following].end <= left:
            following += 1
        last = following
        while last < len(segments) and segments[last].start < right:
            last += 1
        for part in between(segments[following:last], left, right):
            sums[part.shown] += part.end - part.start
        yield left, right, max(DRAWN, key=lambda shown: sums[shown])
