"""Divide the time of one trajectory into phases, for a bar above its conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.analysis.timeline.lanes import Lane, Name, lane_of, root_of
from otel_rollout.analysis.timeline.phase_drawing import WIDTH, Tick, boxes_of, ticks_of
from otel_rollout.analysis.timeline.phases import PHASES, UNRECORDED, WAITING, Phase, Segment
from otel_rollout.base import semconv
from otel_rollout.table.rows import SCORE_BY_TRACE, Row, rows_of
from otel_rollout.viewer.formatting import duration

_ALONE: Final = {WAITING: "outside of any call", UNRECORDED: "not recorded yet"}
"""Phases without a call: what is written for the call's name."""


class Part(NamedTuple):
    """A box of the bar.

    Attributes:
        x: its left edge; the bar is ``TimeBar.width`` wide.
        width: its width.
        phase: the phase, which is also the name of its style.
        title: what happened, for how long and when.
    """

    x: float
    width: float
    phase: Phase
    title: str


class Total(NamedTuple):
    """The time in one phase: its name, and the sum as text."""

    phase: Phase
    text: str


@dataclass(frozen=True)
class TimeBar:
    """The time of one trajectory, from its start to its end.

    Attributes:
        width: units from the start to the end.
        parts: the boxes, from left to right, without a gap.
        totals: the phases that occur.
        ticks: ticks of the time axis.
    """

    width: float
    parts: tuple[Part, ...]
    totals: tuple[Total, ...]
    ticks: tuple[Tick, ...]


def time_bar_of(spans: Sequence[ReadableSpan]) -> TimeBar | None:
    """Return the time of a trajectory from its spans; None without a span that takes time.

    Args:
        spans: the spans of its trace, as a viewer's source returns them.
    """
    lane = _lane(spans)
    if lane is None or lane.end <= lane.start:
        return None
    sums: dict[Phase, int] = defaultdict(int)
    for segment in lane.segments:
        sums[segment.phase] += segment.end - segment.start
    boxes = boxes_of(lane.segments, lane.start, lane.end)
    return TimeBar(
        WIDTH,
        tuple(Part(box.x, box.width, box.phase, _title(box.phase, box.segment, lane.start)) for box in boxes),
        tuple(Total(phase, duration(sums[phase] / 1e9)) for phase in PHASES if phase in sums),
        tuple(ticks_of(lane.end - lane.start)),
    )


def _lane(spans: Sequence[ReadableSpan]) -> Lane | None:
    """Return a trajectory's time; None if no span takes time."""
    rows: list[Row] = [defaultdict(lambda: None, row) for row in rows_of(spans)]
    rows = sorted(filter(_takes_time, rows), key=lambda row: (row["start_ns"], row["span_id"]))
    if not rows:
        return None
    root = root_of(row for row in rows if row["validate"] is not None)
    return lane_of(Name("", ""), rows, root, 0, {})


def _takes_time(row: Row) -> bool:
    """Return whether a row takes part of the trajectory's time: not a score that was given afterwards."""
    if row["score_name"] is None or not row["start_ns"]:
        return bool(row["start_ns"])
    is_inside = row["score_by"] == SCORE_BY_TRACE and row["score_origin"] != semconv.ORIGIN_OUTSIDE
    return bool(row["duration_ns"]) and is_inside


def _title(phase: Phase, segment: Segment | None, start: int) -> str:
    """Return what a box shows."""
    if segment is None:
        return f"mostly {phase}"
    what = _ALONE.get(phase) or f"{phase} {segment.name}"
    took, before = (segment.end - segment.start) / 1e9, (segment.start - start) / 1e9
    when = f"after {duration(before)}" if before else "at the start"
    return f"{what}: {duration(took)}, {when}"
