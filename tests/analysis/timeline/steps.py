"""Write the spans of small steps whose times are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.look.analysis.timeline.timeline import Timeline, slowest_timeline
from otel_rollout.look.analysis.timeline.timeline import timeline as timeline_of
from otel_rollout.table.query import Engine
from tests.table.tables import START_NS, root, row, written

SECOND = 1_000_000_000


def at(seconds: float) -> int:
    """Return a time after the first step's start, in nanoseconds."""
    return START_NS + round(seconds * SECOND)


def trajectory(
    number: int, start: float, end: float, *calls: dict[str, Any], **columns: Any
) -> list[dict[str, Any]]:
    """Return the rows of a trajectory in step 12 with its calls."""
    trace = f"{number:x}"
    identity = {"step": 12, "sample_index": str(number // 8), "rollout_n": number % 8}
    ended = {"start_ns": at(start), "duration_ns": at(end) - at(start)}
    rows = [root(trace, **{**identity, **ended, **columns})]
    inherited = {
        name: columns[name] for name in ("step", "validate", "resource", "run_id") if name in columns
    }
    for place, call in enumerate(calls):
        rows.append(row(trace, f"{number:x}c{place:x}", "a" + trace, **{**identity, **inherited, **call}))
    return rows


def call(kind: str, start: float, end: float, name: str = "", **columns: Any) -> dict[str, Any]:
    """Return the columns of a call."""
    times = {"start_ns": at(start), "duration_ns": at(end) - at(start)}
    return {"kind": kind, "name": name or kind.lower(), "tool_name": name or None, **times, **columns}


def process(number: int, node: str = "") -> str:
    """Return the resource of a process, as the recorder writes it."""
    known = {"rollout.segment.id": f"{number}-{number:016x}.000002"}
    return json.dumps({**known, "host.name": node} if node else known)


def engine_of(path: Path, *rows: dict[str, Any]) -> Engine:
    """Return an engine of a new table with these rows."""
    return Engine(written(path / "table", rows).open())


def timed(path: Path, *rows: dict[str, Any], step: int | None = 12, validate: bool = False) -> Timeline:
    """Return the time of a step of a new table with these rows."""
    engine = engine_of(path, *rows)
    return timeline_of(engine, run_of(engine), step, validate)


def slowest(path: Path, *rows: dict[str, Any], validate: bool | None = None) -> Timeline:
    """Return the time of the slowest step of a new table with these rows."""
    engine = engine_of(path, *rows)
    return slowest_timeline(engine, run_of(engine), validate)
