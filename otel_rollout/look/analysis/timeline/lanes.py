"""Divide the time of a trajectory, given the rows of its spans, into phases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from otel_rollout.look.analysis.timeline.engine_phases import EnginePart, divided, parts_of
from otel_rollout.look.analysis.timeline.phases import OF_KIND, Segment, filled
from otel_rollout.look.analysis.timeline.workers import Worker, worker_of

RUNNING: Final = "running"
ERROR: Final = "error"

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
        is_engine_phase: whether it says what an engine did for a request: queue, prefill or decode.
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
        reference: what names it alone: its path, or the trace id.
    """

    path: str
    reference: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The time of one trajectory: until its root ends, and the reward functions that run after that.

    Attributes:
        trace_id: id of its trace.
        name: its name.
        state: ``ok``, ``error`` or ``running``.
        start: nanoseconds.
        end: nanoseconds; of a running trajectory the newest time that is known in its step.
        segments: its phases, those of model calls divided into engine phases where these are known.
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


def lane_of(
    name: Name,
    root: Row,
    parts: Sequence[Segment],
    rows: Sequence[Row],
    horizon: int,
    workers: dict[str | None, Worker | None],
) -> Lane:
    """Return the time of a trajectory.

    Args:
        name: its name.
        root: its row in view ``roots``.
        parts: the time of its calls, as view ``segments`` has it.
        rows: the rows of its spans that take time, at least one.
        horizon: the newest time that is known, until which a running trajectory runs.
        workers: the processes of the resources that have been read, which this function adds to.
    """
    spans = sorted(_spans(rows, workers), key=lambda span: (span.start, -span.end))
    engine = parts_of(EnginePart(span.start, span.end, span.name) for span in spans if span.is_engine_phase)
    recorded_until = max(span.end for span in spans)
    start, is_running = root["start_ns"], root["state"] == RUNNING
    is_known = root["duration_ns"] is not None
    end = start + max(root["duration_ns"], 0) if is_known else max(start, recorded_until)
    end = max(horizon, recorded_until) if is_running else end
    end = max([end, *(part.end for part in parts)])
    segments = filled(parts, start, end, recorded_until if is_running else None)
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


def end_of(row: Row) -> int:
    """Return the end of a row's span; its start if the duration is unknown."""
    return int(row["start_ns"]) + max(row["duration_ns"] or 0, 0)


def _spans(rows: Iterable[Row], workers: dict[str | None, Worker | None]) -> Iterable[TimedSpan]:
    for row in rows:
        resource = row["resource"]
        if resource not in workers:
            workers[resource] = worker_of(resource)
        error = ": ".join(filter(None, (row["error_type"], row["error_message"]))) or ERROR
        yield TimedSpan(
            row["span_id"],
            row["parent_span_id"],
            row["kind"] or "",
            row["tool_name"] or row["name"] or "",
            row["start_ns"],
            end_of(row),
            error if row["status"] == ERROR else "",
            row["tokens_in"],
            row["tokens_out"],
            workers[resource],
            row["is_engine_phase"],
        )
