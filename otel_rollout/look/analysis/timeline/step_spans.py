"""Read the spans of one step, as trajectories with their phases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.look.analysis.timeline.lanes import Lane, Name, Row, end_of, lane_of
from otel_rollout.look.analysis.timeline.phases import Segment
from otel_rollout.table import filters
from otel_rollout.table.json_text import MAX_INT
from otel_rollout.table.row_set import dicts_of

if TYPE_CHECKING:
    from otel_rollout.look.analysis.run_choice import Run
    from otel_rollout.look.analysis.timeline.workers import Worker
    from otel_rollout.table.query import Engine

_MAX_TEXT: Final = 200
"""Characters of a name or error that are read."""
_TRACE_DIGITS: Final = 8
"""Digits of a trace id that tell apart two trajectories with one path."""
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


def lanes_of(engine: Engine, run: Run, step: int | str | None, validate: bool) -> list[Lane]:
    """Return the trajectories of a step, by start.

    Only rows of the step are read, and those of other libraries in its time, which name no step.

    Args:
        engine: the table.
        run: the run.
        step: the step, a text if it is no number; None for trajectories without one.
        validate: whether the step is of validation.
    """
    conditions = [
        filters.equals("step_text" if isinstance(step, str) else "step", step),
        filters.equals("validate", validate),
        filters.equals("project", run.project),
        filters.equals("experiment", run.experiment),
    ]
    times = "min(start_ns) AS first, max(start_ns + coalesce(duration_ns, 0)) AS last"
    recorded = filters.all_of([*conditions, "start_time IS NOT NULL", "score_name IS NULL"])
    (window,) = dicts_of(engine.run(f"SELECT {times} FROM recorded_spans{recorded}"))  # noqa: S608
    if window["first"] is None:
        return []
    last = min(window["last"], MAX_INT)
    beside = f"validate IS NULL AND start_ns BETWEEN {window['first']} AND {last}"
    narrowed = engine.narrowed(f"({' AND '.join(conditions)}) OR ({beside})")
    rooted = {row["trace_id"] for row in dicts_of(narrowed.run("SELECT trace_id FROM spans WHERE is_root"))}
    roots = [row for row in _roots(narrowed) if row["run_id"] == run.run_id]
    elsewhere = _with_root_elsewhere(
        engine, [row["trace_id"] for row in roots if row["trace_id"] not in rooted]
    )
    return _lanes(narrowed, [row for row in roots if row["trace_id"] not in elsewhere])


def lanes_in(narrowed: Engine) -> list[Lane]:
    """Return the trajectories among rows, by start."""
    return _lanes(narrowed, _roots(narrowed))


def _roots(narrowed: Engine) -> list[dict[str, Any]]:
    return dicts_of(
        narrowed.run("SELECT trace_id, span_id, run_id, path, state, start_ns, duration_ns FROM roots")
    )


def _lanes(narrowed: Engine, roots: Sequence[Row]) -> list[Lane]:
    """Return the lanes of trajectories, by start; one whose spans take no time is left out."""
    rows = _by_trace(narrowed, f"SELECT {_COLUMNS} FROM {_SPANS} ORDER BY span.start_ns, span.span_id")  # noqa: S608
    parts = _by_trace(
        narrowed, "SELECT trace_id, start_ns, end_ns, phase, name FROM segments ORDER BY start_ns"
    )
    roots = [root for root in roots if root["trace_id"] in rows]
    horizon = max((end_of(row) for root in roots for row in rows[root["trace_id"]]), default=0)
    often = Counter(root["path"] for root in roots)
    workers: dict[str | None, Worker | None] = {}
    lanes = [
        lane_of(
            _name(root["path"], root["trace_id"], often[root["path"]] > 1),
            root,
            [Segment(*list(part.values())[1:]) for part in parts.get(root["trace_id"], ())],
            rows[root["trace_id"]],
            horizon,
            workers,
        )
        for root in roots
    ]
    return sorted(lanes, key=lambda lane: (lane.start, lane.trace_id))


def _by_trace(narrowed: Engine, sql: str) -> dict[str, list[Row]]:
    traces: dict[str, list[Row]] = defaultdict(list)
    for row in dicts_of(narrowed.run(sql)):
        traces[row["trace_id"]].append(row)
    return dict(traces)


def _with_root_elsewhere(engine: Engine, trace_ids: Sequence[str]) -> set[str]:
    """Return the traces whose root is of another step: only a part of the trajectory names this step."""
    if not trace_ids:
        return set()
    named = filters.all_of(["is_root", filters.equals("trace_id", trace_ids)])
    found = engine.run(f"SELECT trace_id FROM recorded_spans{named}")  # noqa: S608
    return {row["trace_id"] for row in dicts_of(found)}


def _name(path: str, trace_id: str, is_shared: bool) -> Name:
    return Name(f"{path} ({trace_id[:_TRACE_DIGITS]})", trace_id) if is_shared else Name(path, path)
