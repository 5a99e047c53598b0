"""Return the time of a step as JSON values."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from otel_rollout.look.analysis.timeline import text as timeline_text
from otel_rollout.look.analysis.timeline.lanes import Lane
from otel_rollout.look.analysis.timeline.timeline import Timeline


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
