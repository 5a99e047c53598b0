"""Read the spans of trajectories, and divide each trajectory's time into phases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.analysis.timeline.phases import (
    OF_KIND,
    UNRECORDED,
    WAITING,
    EnginePart,
    Phase,
    Segment,
    divided,
    filled,
    parts_of,
)
from otel_rollout.look.analysis.timeline.workers import Worker, worker_of
from otel_rollout.table import filters
from otel_rollout.table.json_text import MAX_INT
from otel_rollout.table.query import Engine

RUNNING: Final = "running"
ERROR: Final = "error"
_MAX_TEXT: Final = 200
"""Characters of a name or error that are read."""
_TRACE_DIGITS: Final = 8
"""Digits of a trace id that distinguish trajectories with the same path."""
_ROOT: Final = "trace_id, span_id, path, state, start_ns, duration_ns, start_time IS NOT NULL AS is_timed"
_COLUMNS: Final = (
    "span.trace_id, span.span_id, span.parent_span_id, span.kind, span.start_ns, span.duration_ns, "
    f"left(span.name, {_MAX_TEXT}) AS name, left(tool_name, {_MAX_TEXT}) AS tool_name, span.status, "
    f"left(error_type, {_MAX_TEXT}) AS error_type, left(error_message, {_MAX_TEXT}) AS error_message, "
    "tokens_in, tokens_out, resource, request.span_id IS NOT NULL AS is_engine_phase"
)
_SPANS: Final = (
    "timed_spans AS span LEFT JOIN engine_phases AS phase "
    "ON span.trace_id = phase.trace_id AND span.span_id = phase.span_id LEFT JOIN engine_requests AS request "
    "ON phase.trace_id = request.trace_id AND phase.request_id = request.span_id"
)

Row = Mapping[str, Any]


class TimedSpan(NamedTuple):
    """A span of a trajectory.

    Attributes:
        span_id: its id.
        parent_id: id of the span around it; None without one.
        kind: its kind; empty without one.
        name: the tool's name for a tool; else the span's name.
        start: nanoseconds.
        end: nanoseconds; ``start`` if the duration is unknown.
        error: class and message of its error; empty if it succeeded.
        tokens_in: tokens that the model received.
        tokens_out: tokens that the model returned.
        worker: the process that recorded it; None if unknown.
        is_engine_phase: whether it is a phase of an engine's request: queue, prefill or decode.
    """

    span_id: str
    parent_id: str | None
    kind: str
    name: str
    start: int
    end: int
    error: str
    tokens_in: int | None
    tokens_out: int | None
    worker: Worker | None
    is_engine_phase: bool = False


class Name(NamedTuple):
    """What names a trajectory.

    Attributes:
        path: its path, such as ``12/7/3``, with digits of the trace id if several have this path.
        reference: its unique name: the path, or the trace id if several have this path.
    """

    path: str
    reference: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The time of one trajectory: from its root's start to its root's end, or to the end of a later reward.

    Attributes:
        trace_id: id of its trace.
        name: its name.
        state: ``ok``, ``error`` or ``running``.
        start: nanoseconds.
        end: nanoseconds; for a running trajectory, the newest time that is known in its step.
        segments: its phases; model calls are divided into engine phases where these are known.
        spans: its spans, by start.
        outside: number of calls that lie partly outside of the trajectory's time.
        worker: the process that recorded the trajectory; None if unknown.
    """

    trace_id: str
    name: Name
    state: str
    start: int
    end: int
    segments: tuple[Segment, ...]
    spans: tuple[TimedSpan, ...]
    outside: int
    worker: Worker | None

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.end - self.start) / 1e9


def lanes_of(engine: Engine, run: Run, step: filters.Step, validate: bool) -> tuple[list[Lane], int]:
    """Return the trajectories of a step, by start, and the number of those whose times are unknown.

    Three kinds of rows are read: those of the step; those of other libraries in the step's time, which name
    no step; and all of a trajectory that records more, such as under another step in a sub-trajectory.

    Args:
        engine: queries the table.
        run: the run.
        step: the step.
        validate: whether the step is of validation.
    """
    conditions = [
        filters.of_steps([step]),
        filters.equals("validate", validate),
        filters.equals("project", run.project),
        filters.equals("experiment", run.experiment),
    ]
    of_step = " AND ".join(conditions)
    own = f"roots WHERE {of_step} AND {filters.equals('run_id', run.run_id)}"
    roots = engine.dicts(f"SELECT {_ROOT} FROM {own}")  # noqa: S608
    starts = [root["start_ns"] for root in roots if root["is_timed"]]
    if not starts:
        return [], len(roots)
    (times,) = engine.dicts(
        "SELECT min(start_ns) AS first, max(start_ns + coalesce(duration_ns, 0)) AS last "  # noqa: S608
        f"FROM recorded_spans WHERE start_time IS NOT NULL AND score_name IS NULL AND {of_step}"
    )
    first, last = min(filter(None, [times["first"], *starts])), min(MAX_INT, times["last"] or 0)
    # A trajectory that runs has perhaps recorded nothing in its own step for long, or only scores.
    is_running = any(root["state"] == RUNNING for root in roots)
    parted = engine.dicts(
        "SELECT DISTINCT trace_id FROM recorded_spans "  # noqa: S608
        f"WHERE start_ns BETWEEN {first} AND {MAX_INT if is_running else last} "
        f"AND (validate IS NOT NULL OR start_ns > {last}) AND ({of_step}) IS NOT TRUE "
        f"AND trace_id IN (SELECT trace_id FROM {own})"
    )
    narrowed = engine.narrowed(
        f"({of_step}) OR (start_ns BETWEEN {first} AND {last} AND validate IS NULL)",
        traces=[row["trace_id"] for row in parted],
    )
    lanes = _lanes(narrowed, roots)
    return lanes, len(roots) - len(lanes)


def lanes_in(narrowed: Engine) -> list[Lane]:
    """Return the trajectories in the rows that an engine reads, by start."""
    return _lanes(narrowed, narrowed.dicts(f"SELECT {_ROOT} FROM roots"))  # noqa: S608


def _lanes(narrowed: Engine, roots: Sequence[Row]) -> list[Lane]:
    """Return the lanes of trajectories, by start; trajectories without known times are left out."""
    rows = _by_trace(narrowed, f"SELECT {_COLUMNS} FROM {_SPANS} ORDER BY span.start_ns, span.span_id")  # noqa: S608
    parts = _by_trace(
        narrowed, "SELECT trace_id, start_ns, end_ns, phase, name FROM segments ORDER BY start_ns"
    )
    untimed = narrowed.dicts("SELECT phase_trace FROM phase_figures WHERE untimed_calls IS NOT NULL")
    unsure = {row["phase_trace"] for row in untimed}
    roots = [root for root in roots if root["is_timed"] and root["trace_id"] in rows]
    workers = {name: worker_of(name) for name in {row["resource"] for some in rows.values() for row in some}}
    horizon = max((_end_of(row) for root in roots for row in rows[root["trace_id"]]), default=0)
    often = Counter(root["path"] for root in roots)
    lanes = [
        _lane_of(
            _name(root["path"], root["trace_id"], often[root["path"]] > 1),
            root,
            [Segment(*list(part.values())[1:]) for part in parts.get(root["trace_id"], ())],
            [_span(row, workers[row["resource"]]) for row in rows[root["trace_id"]]],
            horizon,
            UNRECORDED if root["trace_id"] in unsure else WAITING,
        )
        for root in roots
    ]
    return sorted(lanes, key=lambda lane: (lane.start, lane.trace_id))


def _by_trace(narrowed: Engine, sql: str) -> dict[str, list[dict[str, Any]]]:
    return grouped(narrowed.dicts(sql), lambda row: row["trace_id"])


def _name(path: str, trace_id: str, is_shared: bool) -> Name:
    return Name(f"{path} ({trace_id[:_TRACE_DIGITS]})", trace_id) if is_shared else Name(path, path)


def _lane_of(
    name: Name, root: Row, parts: Sequence[Segment], spans: Sequence[TimedSpan], horizon: int, outside: Phase
) -> Lane:
    """Return the lane of a trajectory.

    Args:
        name: its name.
        root: its row in view ``roots``.
        parts: the time of its calls, as view ``segments`` has it.
        spans: its spans that take time, at least one.
        horizon: the newest time that is known: the end of a running trajectory.
        outside: phase of the time outside of calls: unrecorded if it is not known when some call ran.
    """
    spans = sorted(spans, key=lambda span: (span.start, -span.end))
    engine = parts_of(EnginePart(span.start, span.end, span.name) for span in spans if span.is_engine_phase)
    recorded_until = max(span.end for span in spans)
    start, is_running = root["start_ns"], root["state"] == RUNNING
    is_known = root["duration_ns"] is not None
    end = start + max(root["duration_ns"], 0) if is_known else max(start, recorded_until)
    end = max(horizon, recorded_until) if is_running else end
    end = max([end, *(part.end for part in parts)])
    segments = filled(parts, start, end, recorded_until if is_running else None, outside)
    calls = (span for span in spans if span.kind in OF_KIND)
    return Lane(
        trace_id=root["trace_id"],
        name=name,
        state=root["state"],
        start=start,
        end=end,
        segments=tuple(divided(segments, engine)),
        spans=tuple(spans),
        outside=sum(call.start < start or call.end > end for call in calls),
        worker=next((span.worker for span in spans if span.span_id == root["span_id"]), None),
    )


def _end_of(row: Row) -> int:
    """Return the end of a row's span; its start if the duration is unknown."""
    return int(row["start_ns"]) + max(row["duration_ns"] or 0, 0)


def _span(row: Row, worker: Worker | None) -> TimedSpan:
    error = ": ".join(filter(None, (row["error_type"], row["error_message"]))) or ERROR
    return TimedSpan(
        row["span_id"],
        row["parent_span_id"],
        row["kind"] or "",
        row["tool_name"] or row["name"] or "",
        row["start_ns"],
        _end_of(row),
        error if row["status"] == ERROR else "",
        row["tokens_in"],
        row["tokens_out"],
        worker,
        row["is_engine_phase"],
    )
