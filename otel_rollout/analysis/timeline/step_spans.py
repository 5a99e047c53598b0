"""Read the spans of one step, as trajectories with their phases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.analysis.timeline.lanes import Lane, Name, Row, end_of, lane_of, root_of
from otel_rollout.table import filters
from otel_rollout.table.json_text import MAX_INT
from otel_rollout.table.row_set import dicts_of
from otel_rollout.viewer.summary import VALIDATION

if TYPE_CHECKING:
    from otel_rollout.analysis.run_choice import Run
    from otel_rollout.analysis.timeline.workers import Worker
    from otel_rollout.table.query import Engine

_MAX_TEXT: Final = 200
"""Characters of a name or error that are read."""
_TRACE_DIGITS: Final = 8
"""Digits of a trace id that tell apart two trajectories with one path."""
_COLUMNS: Final = (
    "trace_id, span_id, parent_span_id, run_id, sample_index, rollout_n, validate, is_root, kind, start_ns, "
    f"duration_ns, left(name, {_MAX_TEXT}) AS name, left(tool_name, {_MAX_TEXT}) AS tool_name, status, "
    f"left(error_type, {_MAX_TEXT}) AS error_type, left(error_message, {_MAX_TEXT}) AS error_message, "
    "tokens_in, tokens_out, resource, scope"
)
IN_TIME: Final = (
    "start_ns > 0 AND (score_name IS NULL OR (duration_ns > 0 AND coalesce(score_by, 'trace') = 'trace' "
    "AND coalesce(score_origin, '') <> 'outside'))"
)
"""Condition that a row takes part of a trajectory's time: a score that was given afterwards does not."""


def lanes_of(engine: Engine, run: Run, step: int | None, validate: bool) -> list[Lane]:
    """Return the trajectories of a step, by start.

    Only rows of the step are read, and a repeated span is recognized among them: the views would read more.

    Args:
        engine: the table.
        run: the run.
        step: the step; None for trajectories without one.
        validate: whether the step is of validation.
    """
    conditions = [
        filters.equals("step", step),
        filters.equals("validate", validate),
        filters.equals("project", run.project),
        filters.equals("experiment", run.experiment),
        IN_TIME,
    ]
    traces = _by_trace(_rows(engine, _COLUMNS, conditions))
    roots = {trace_id: root_of(rows) for trace_id, rows in traces.items()}
    rootless = [trace_id for trace_id, root in roots.items() if root is None or not root["is_root"]]
    elsewhere = _with_root_elsewhere(engine, rootless)
    own = {
        trace_id: rows
        for trace_id, rows in traces.items()
        if trace_id not in elsewhere and (roots[trace_id] or rows[0])["run_id"] == run.run_id
    }
    if not own:
        return []
    names = _names({trace_id: roots[trace_id] or rows[0] for trace_id, rows in own.items()}, step, validate)
    _add_spans_without_identity(engine, own)
    horizon = max(end_of(row) for rows in own.values() for row in rows)
    workers: dict[str | None, Worker | None] = {}
    lanes = [
        lane_of(names[trace_id], rows, roots[trace_id], horizon, workers) for trace_id, rows in own.items()
    ]
    return sorted(lanes, key=lambda lane: (lane.start, lane.trace_id))


def _rows(engine: Engine, columns: str, conditions: Sequence[str]) -> list[dict[str, Any]]:
    return dicts_of(engine.run(f"SELECT {columns} FROM recorded_spans{filters.all_of(conditions)}"))  # noqa: S608


def _by_trace(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each trace by start; of several of one span the latest end, as ``spans.sql``."""
    traces: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        spans = traces[row["trace_id"]]
        known = spans.setdefault(row["span_id"], row)
        if (row["duration_ns"] or -1) > (known["duration_ns"] or -1):
            spans[row["span_id"]] = row
    return {
        trace_id: sorted(spans.values(), key=lambda row: (row["start_ns"], row["span_id"]))
        for trace_id, spans in traces.items()
    }


def _with_root_elsewhere(engine: Engine, trace_ids: Sequence[str]) -> set[str]:
    """Return the traces whose root is of another step: only a part of the trajectory names this step."""
    if not trace_ids:
        return set()
    named = ["is_root", filters.equals("trace_id", list(trace_ids))]
    return {row["trace_id"] for row in _rows(engine, "trace_id", named)}


def _add_spans_without_identity(engine: Engine, traces: dict[str, list[Row]]) -> None:
    """Add spans of other libraries that do not name the step."""
    first = min(row["start_ns"] for rows in traces.values() for row in rows)
    last = max(end_of(row) for rows in traces.values() for row in rows)
    window = ["validate IS NULL", f"start_ns BETWEEN {first} AND {min(last, MAX_INT)}", IN_TIME]
    for trace_id, rows in _by_trace(_rows(engine, _COLUMNS, window)).items():
        if trace_id in traces:
            traces[trace_id] += rows


def _names(standing: Mapping[str, Row], step: int | None, validate: bool) -> dict[str, Name]:
    """Return the name of each trace's trajectory."""
    paths = {trace_id: _path(row, step, validate) for trace_id, row in standing.items()}
    often = Counter(paths.values())
    return {trace_id: _name(path, trace_id, often[path] > 1) for trace_id, path in paths.items()}


def _name(path: str, trace_id: str, is_shared: bool) -> Name:
    return Name(f"{path} ({trace_id[:_TRACE_DIGITS]})", trace_id) if is_shared else Name(path, path)


def _path(row: Row, step: int | None, validate: bool) -> str:
    """Return a trajectory's path, as view ``trajectories`` has it."""
    parts = ["-" if part is None else str(part) for part in (step, row["sample_index"], row["rollout_n"])]
    return "/".join([VALIDATION, *parts] if validate else parts)
