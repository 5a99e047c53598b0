"""Write the time of a step as an HTML page with a lane per trajectory, and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from otel_rollout.look.analysis.timeline import text as timeline_text
from otel_rollout.look.analysis.timeline.lanes import Lane
from otel_rollout.look.analysis.timeline.phase_drawing import (
    WIDTH,
    Box,
    boxes_of,
    path_of,
    ticks_of,
    totals_of,
)
from otel_rollout.look.analysis.timeline.phases import DRAWN
from otel_rollout.look.analysis.timeline.step_time import MOMENTS
from otel_rollout.look.analysis.timeline.timeline import Timeline
from otel_rollout.look.pages.rendering import Links, render

_MAX_LANES: Final = 160
"""Maximum lanes that a page draws."""
_LAST_LANES: Final = 60
"""Lanes of the trajectories that ended last, if there are too many; the other lanes are a sample."""
_MAX_ROWS: Final = 20
"""Maximum tools, and maximum processes, that a page lists."""
_LANE_HEIGHT: Final = 12
_BAR_HEIGHT: Final = 9
_CHART_HEIGHT: Final = 120.0


def page_of_timeline(timeline: Timeline, links: Links | None = None) -> str:
    """Return the page of a step's time.

    Args:
        timeline: the step.
        links: addresses of other pages; by default the page stands alone.
    """
    end = timeline.start + round(timeline.wall_seconds * 1e9)
    drawn, found = _chosen(timeline), timeline.stragglers
    total = sum(lane.end - lane.start for lane in timeline.lanes)
    since = (found.since - timeline.start) / (end - timeline.start) * WIDTH if found else WIDTH
    return render(
        "timeline.html", links, timeline=timeline, text=timeline_text, most=_MAX_ROWS,
        began=datetime.fromtimestamp(timeline.start / 1e9, UTC), last=_LAST_LANES,
        phases=list(timeline_text.phase_rows(timeline, _MAX_ROWS)),
        legend=list(totals_of(timeline.lanes, lambda spent: f"{spent / total:.1%}")),
        concurrency=list(_concurrency(timeline)), ticks=ticks_of(end - timeline.start),
        height=len(drawn) * _LANE_HEIGHT,
        window=(since, WIDTH - since) if found else None, lanes=list(_drawn_lanes(timeline, drawn, end)),
    )  # fmt: skip


def _concurrency(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """Yield each of ``DRAWN`` with the SVG path of its columns, stacked on those of the phases before."""
    width, scale = WIDTH / MOMENTS, _CHART_HEIGHT / max(timeline.peak, 1)
    below = [0.0] * len(timeline.moments)
    for place, phase in enumerate(DRAWN):
        columns = []
        for index, moment in enumerate(timeline.moments):
            height = moment.phases[place] * scale
            below[index] += height
            if height > 0:
                box = Box(index * width, width, phase, None)
                columns.append(path_of([box], round(_CHART_HEIGHT - below[index], 2), round(height, 2)))
        if columns:
            yield phase, "".join(columns)


def _chosen(timeline: Timeline) -> list[Lane]:
    """Return the trajectories that are drawn, the one that ended last first."""
    by_end = sorted(timeline.lanes, key=lambda lane: (lane.end, lane.trace_id), reverse=True)
    if len(by_end) <= _MAX_LANES:
        return by_end
    others, wanted = by_end[_LAST_LANES:], _MAX_LANES - _LAST_LANES
    return by_end[:_LAST_LANES] + [others[index * len(others) // wanted] for index in range(wanted)]


def _drawn_lanes(
    timeline: Timeline, lanes: Sequence[Lane], end: int
) -> Iterator[tuple[Lane, int, Sequence[tuple[str, str]]]]:
    """Yield each lane with its y coordinate, and the SVG path of each of ``DRAWN`` that occurs in it."""
    for index, lane in enumerate(lanes):
        y = index * _LANE_HEIGHT + 1
        boxes = boxes_of(lane.segments, timeline.start, end)
        paths = [
            (phase, path_of(of_phase, y, _BAR_HEIGHT))
            for phase in DRAWN
            if (of_phase := [box for box in boxes if box.phase == phase])
        ]
        yield lane, y, paths


# --- JSON ---------------------------------------------------------------------------------------------------


def as_json(timeline: Timeline) -> dict[str, Any]:
    """Return the time of a step, with a row for each trajectory; times are seconds."""
    return {
        "run": timeline.run._asdict(),
        "step": timeline.step,
        "validate": timeline.validate,
        "is_slowest": timeline.is_slowest,
        "start_ns": timeline.start,
        "wall_seconds": timeline.wall_seconds,
        "trajectories": len(timeline.lanes),
        "untimed": timeline.untimed,
        "running": timeline.running,
        "failed": timeline.failed,
        "peak": timeline.peak,
        "mean_running": timeline.mean_running,
        "phases": [time._asdict() for time in timeline.phases],
        "tools": [time._asdict() for time in timeline.tools],
        "engine": [time._asdict() for time in timeline.engine],
        "concurrency": [
            {"seconds": moment.seconds, "running": moment.running} for moment in timeline.moments
        ],
        "message": timeline_text.straggling(timeline),
        "stragglers": _stragglers(timeline),
        "workers": [worker._asdict() for worker in timeline.workers],
        "slow_workers": [
            {**slow._asdict(), "worker": timeline.worker_names[slow.worker]} for slow in timeline.slow_workers
        ],
        "notes": list(timeline_text.notes(timeline)),
        "lanes": [_lane(lane, timeline) for lane in timeline.lanes],
    }


def _stragglers(timeline: Timeline) -> dict[str, Any] | None:
    found = timeline.stragglers
    if found is None:
        return None
    return {
        "trajectories": [lane.name.reference for lane in found.lanes],
        "of": found.of,
        "running": found.running,
        "since_seconds": (found.since - timeline.start) / 1e9,
        "seconds": found.seconds,
        "parts": [{"phase": part.phase, "name": part.name, "seconds": part.seconds} for part in found.parts],
        "message": timeline_text.straggling(timeline),
    }


def _lane(lane: Lane, timeline: Timeline) -> dict[str, Any]:
    phases: dict[str, float] = defaultdict(float)
    engine: dict[str, float] = defaultdict(float)
    for segment in lane.segments:
        phases[segment.phase] += (segment.end - segment.start) / 1e9
        if segment.engine:
            engine[segment.engine] += (segment.end - segment.start) / 1e9
    return {
        "path": lane.name.reference,
        "trace_id": lane.trace_id,
        "state": lane.state,
        "start_seconds": (lane.start - timeline.start) / 1e9,
        "seconds": lane.seconds,
        "phases": dict(phases),
        "engine": dict(engine),
        "worker": timeline.worker_names[lane.worker] if lane.worker else None,
    }
