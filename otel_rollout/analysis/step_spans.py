"""Read the spans of one step, as trajectories with their phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rollout.analysis.phases import OF_KIND, Call, Segment, segments_of
from otel_rollout.analysis.workers import Worker, worker_of
from otel_rollout.base import semconv
from otel_rollout.table import filters
from otel_rollout.table.json_text import MAX_INT
from otel_rollout.table.row_set import dicts_of
from otel_rollout.viewer.summary import VALIDATION

if TYPE_CHECKING:
    from otel_rollout.analysis.run_choice import Run
    from otel_rollout.table.query import Engine

RUNNING: Final = "running"
_ERROR: Final = "error"
_MAX_TEXT: Final = 200
"""Characters of a name or error that are read."""
_TRACE_DIGITS: Final = 8
"""Digits of a trace id that tell apart two trajectories with one path."""
_COLUMNS: Final = (
    "trace_id, span_id, parent_span_id, run_id, sample_index, rollout_n, validate, is_root, kind, start_ns, "
    f"duration_ns, left(name, {_MAX_TEXT}) AS name, left(tool_name, {_MAX_TEXT}) AS tool_name, status, "
    f"left(error_type, {_MAX_TEXT}) AS error_type, left(error_message, {_MAX_TEXT}) AS error_message, "
    "tokens_in, tokens_out, resource"
)
IN_TIME: Final = (
    "start_ns > 0 AND (score_name IS NULL OR (duration_ns > 0 AND coalesce(score_by, 'trace') = 'trace' "
    "AND coalesce(score_origin, '') <> 'outside'))"
)
"""Condition that a row takes part of a trajectory's time: a score that was given afterwards does not."""

_Row = dict[str, Any]


class Span(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Lane:
    """The time of one trajectory.

    Attributes:
        trace_id: id of its trace.
        path: its name, such as ``12/7/3``, with digits of the trace id if several have this name.
        reference: what names the trajectory alone: its path, or the trace id.
        state: ``ok``, ``error`` or ``running``.
        start: nanoseconds.
        end: nanoseconds; of a running trajectory the newest time that is known in its step.
        segments: its phases.
        spans: its spans, by start.
        outside: number of calls that lie partly outside of the trajectory's time.
        worker: the process that recorded the trajectory; None if unknown.
    """

    trace_id: str
    path: str
    reference: str
    state: str
    start: int
    end: int
    segments: tuple[Segment, ...]
    spans: tuple[Span, ...]
    outside: int
    worker: Worker | None

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.end - self.start) / 1e9


def lanes_of(engine: Engine, run: Run, step: int | None, validate: bool) -> list[Lane]:
    """Return the trajectories of a step, by start.

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
        "coalesce(score_by, '') <> 'identity'",
        IN_TIME,
    ]
    traces = _by_trace(_rows(engine, _COLUMNS, conditions))
    stands = {trace_id: root for trace_id, rows in traces.items() if (root := _root_of(rows))}
    rootless = [trace_id for trace_id in traces if trace_id not in stands or not stands[trace_id]["is_root"]]
    for trace_id in _with_root_elsewhere(engine, rootless):
        del traces[trace_id]
    of_run = {
        trace_id: rows
        for trace_id, rows in traces.items()
        if (stands.get(trace_id) or rows[0])["run_id"] == run.run_id
    }
    if not of_run:
        return []
    _add_spans_without_identity(engine, of_run)
    return _lanes(of_run, stands, step, validate)


def span_of_row(row: Mapping[str, Any], worker: Worker | None) -> Span:
    """Return the span of a row."""
    error = ": ".join(filter(None, (row["error_type"], row["error_message"]))) or _ERROR
    return Span(
        row["span_id"],
        row["parent_span_id"],
        row["kind"] or "",
        row["tool_name"] or row["name"] or "",
        row["start_ns"],
        row["start_ns"] + max(row["duration_ns"] or 0, 0),
        error if row["status"] == _ERROR else "",
        row["tokens_in"],
        row["tokens_out"],
        worker,
    )


def calls_in(spans: Iterable[Span]) -> list[Call]:
    """Return the spans that decide a trajectory's phase."""
    return [
        Call(span.start, span.end, OF_KIND[span.kind], span.name) for span in spans if span.kind in OF_KIND
    ]


def _rows(engine: Engine, columns: str, conditions: Sequence[str]) -> list[_Row]:
    return dicts_of(engine.run(f"SELECT {columns} FROM recorded_spans{filters.all_of(conditions)}"))  # noqa: S608


def _by_trace(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """Return the rows of each trace by start; of rows of one span one."""
    traces: dict[str, dict[str, _Row]] = defaultdict(dict)
    for row in rows:
        traces[row["trace_id"]].setdefault(row["span_id"], row)
    return {
        trace_id: sorted(spans.values(), key=lambda row: (row["start_ns"], row["span_id"]))
        for trace_id, spans in traces.items()
    }


def _root_of(rows: Sequence[_Row]) -> _Row | None:
    """Return the row that stands for a trajectory that has ended, as view ``roots`` chooses it."""
    root = next((row for row in rows if row["is_root"]), None)
    return root or next((row for row in rows if row["kind"] == semconv.KIND_AGENT), None)


def _with_root_elsewhere(engine: Engine, trace_ids: Sequence[str]) -> set[str]:
    """Return the traces whose root is of another step: only a part of the trajectory names this step."""
    if not trace_ids:
        return set()
    named = ["is_root", filters.equals("trace_id", list(trace_ids))]
    return {row["trace_id"] for row in _rows(engine, "trace_id", named)}


def _add_spans_without_identity(engine: Engine, traces: dict[str, list[_Row]]) -> None:
    """Add spans of other libraries that do not name the step."""
    first = min(rows[0]["start_ns"] for rows in traces.values())
    last = max(row["start_ns"] + (row["duration_ns"] or 0) for rows in traces.values() for row in rows)
    window = ["validate IS NULL", f"start_ns BETWEEN {first} AND {min(last, MAX_INT)}", IN_TIME]
    for trace_id, rows in _by_trace(_rows(engine, _COLUMNS, window)).items():
        if trace_id in traces:
            traces[trace_id] += rows


def _lanes(
    traces: Mapping[str, Sequence[_Row]], stands: Mapping[str, _Row], step: int | None, validate: bool
) -> list[Lane]:
    horizon = max(row["start_ns"] + (row["duration_ns"] or 0) for rows in traces.values() for row in rows)
    workers: dict[str | None, Worker | None] = {}
    paths = {
        trace_id: _path(stands.get(trace_id) or rows[0], step, validate) for trace_id, rows in traces.items()
    }
    seen: dict[str, int] = defaultdict(int)
    for path in paths.values():
        seen[path] += 1
    found = []
    for trace_id, rows in traces.items():
        spans = []
        for row in rows:
            resource = row["resource"]
            if resource not in workers:
                workers[resource] = worker_of(resource)
            spans.append(span_of_row(row, workers[resource]))
        path, is_shared = paths[trace_id], seen[paths[trace_id]] > 1
        names = (f"{path} ({trace_id[:_TRACE_DIGITS]})", trace_id) if is_shared else (path, path)
        found.append(_lane(trace_id, names, stands.get(trace_id), spans, horizon))
    return sorted(found, key=lambda lane: (lane.start, lane.trace_id))


def _lane(trace_id: str, names: tuple[str, str], root: _Row | None, spans: list[Span], horizon: int) -> Lane:
    spans.sort(key=lambda span: (span.start, -span.end))
    recorded_until = max(span.end for span in spans)
    if root is None:
        start, end, state = spans[0].start, max(horizon, recorded_until), RUNNING
        worker = spans[0].worker
    else:
        start = root["start_ns"]
        end = (
            max(start, recorded_until) if root["duration_ns"] is None else start + max(root["duration_ns"], 0)
        )
        state = _ERROR if root["status"] == _ERROR else "ok"
        worker = next(span.worker for span in spans if span.span_id == root["span_id"])
    calls = calls_in(spans)
    segments = segments_of(calls, start, end, recorded_until if root is None else None)
    outside = sum(call.start < start or call.end > end for call in calls)
    return Lane(trace_id, *names, state, start, end, tuple(segments), tuple(spans), outside, worker)


def _path(row: Mapping[str, Any], step: int | None, validate: bool) -> str:
    """Return a trajectory's name, as view ``trajectories`` has it."""
    parts = ["-" if part is None else str(part) for part in (step, row["sample_index"], row["rollout_n"])]
    return "/".join([VALIDATION, *parts] if validate else parts)
