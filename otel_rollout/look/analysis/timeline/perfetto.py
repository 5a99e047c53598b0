"""Write a step's spans as a trace in Chrome's trace-event format (JSON), which Perfetto opens.

The Chromium project calls the format "Trace Event Format". This module writes the events ``M`` (metadata),
``X`` (slice) and ``C`` (counter). Times are whole microseconds since the first span. Two slices of a thread
are nested or apart, because slices that partly overlap would be drawn wrong. So a call that overlaps other
calls of its trajectory goes into a further thread of the trajectory.
"""

from __future__ import annotations

import gzip
import heapq
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, Final

import orjson

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.analysis.timeline import text as timeline_text
from otel_rollout.look.analysis.timeline.lanes import Lane, TimedSpan
from otel_rollout.look.analysis.timeline.phases import OF_KIND
from otel_rollout.look.analysis.timeline.timeline import Timeline

_STEP_PID: Final = 1
"""Process id of the step: for the counters, and for trajectories whose process is unknown."""
_COLOURS: Final = {
    "generate": "thread_state_running",
    "tool": "thread_state_iowait",
    "reward": "rail_animation",
    "agent": "grey",
    "engine queue": "yellow",
    "engine prefill": "thread_state_runnable",
    "engine decode": "good",
}
"""Category → one of the colour names that the format reserves."""
_FAILED: Final = "terrible"
"""Colour name of a slice that failed."""
_COUNTER: Final = "running trajectories"
_COMPRESSED: Final = ".gz"

_Event = dict[str, Any]


def write(timeline: Timeline, path: Path) -> None:
    """Write a trace, event by event.

    Args:
        timeline: the step.
        path: the file; with suffix ``.gz`` it is compressed; ``-`` is standard output.

    Raises:
        OSError: the file cannot be written.
    """
    with _opened(path) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        separator = b"\n"
        for event in events_of(timeline):
            file.write(separator + orjson.dumps(event))
            separator = b",\n"
        file.write(b"\n]}\n")


def events_of(timeline: Timeline) -> Iterator[_Event]:
    """Yield the events of a step: its processes, its counter, and then trajectory by trajectory."""
    origin = min(min(span.start for span in lane.spans) for lane in timeline.lanes)
    workers = dict.fromkeys(lane.worker for lane in timeline.lanes if lane.worker)
    pids = {worker: pid for pid, worker in enumerate(workers, start=_STEP_PID + 1)}
    yield from _process(_STEP_PID, timeline_text.title(timeline))
    for worker, pid in pids.items():
        yield from _process(pid, timeline.worker_names[worker])
    yield from _counters(timeline.lanes, origin)
    first = len(pids) + _STEP_PID + 1  # a thread with the id of a process would be its main thread
    for lane in timeline.lanes:
        pid = pids[lane.worker] if lane.worker else _STEP_PID
        placed = placed_in(lane)
        count = 1 + max(thread for _, thread in placed)
        for thread in range(count):
            name = f"{lane.name.path}, parallel calls {thread}" if thread else lane.name.path
            yield _metadata("thread_name", pid, first + thread, name=in_one_line(name))
            yield _metadata("thread_sort_index", pid, first + thread, sort_index=first + thread)
        for span, thread in placed:
            category = OF_KIND.get(span.kind) or span.kind.lower() or "operation"
            category = f"engine {span.name}" if span.is_engine_phase else category
            yield _slice(span, category, lane, pid, first + thread, origin)
        first += count


def placed_in(lane: Lane) -> list[tuple[TimedSpan, int]]:
    """Return each span with the number of its thread: slices of a thread are nested or apart.

    A span is in its parent's thread, if it ends no later than its parent and overlaps no other span there.
    Otherwise it is in the first free thread. If a span's parent is unknown, the root counts as its parent.
    """
    stacks: list[list[TimedSpan]] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    ids = {span.span_id for span in lane.spans}
    root = next((span.span_id for span in lane.spans if span.parent_id is None), None)
    threads: dict[str, int] = {}
    for span in lane.spans:
        while busy and busy[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        parent = span.parent_id if span.parent_id in ids else root
        thread = threads.get(parent or "")
        if thread is None or not _is_inside(span, parent, stacks[thread]):
            if not free:
                heapq.heappush(free, len(stacks))
                stacks.append([])
            thread = heapq.heappop(free)
            stacks[thread].clear()
            heapq.heappush(busy, (span.end, thread))
        stacks[thread].append(span)
        threads[span.span_id] = thread
    return [(span, threads[span.span_id]) for span in lane.spans]


def _is_inside(span: TimedSpan, parent: str | None, stack: list[TimedSpan]) -> bool:
    """Return whether a span can be drawn inside its parent's slice without overlapping another slice."""
    while stack and stack[-1].end <= span.start:
        stack.pop()
    return bool(stack) and stack[-1].span_id == parent and span.end <= stack[-1].end


def _slice(span: TimedSpan, category: str, lane: Lane, pid: int, tid: int, origin: int) -> _Event:
    """Return the slice of a span."""
    start, end = (span.start - origin) // 1000, (span.end - origin) // 1000
    known = {
        "trajectory": lane.name.path,
        "kind": span.kind,
        "tokens_in": span.tokens_in,
        "tokens_out": span.tokens_out,
        "error": in_one_line(span.error),
        "span_id": span.span_id,
        "trace_id": lane.trace_id if span.parent_id is None else None,
    }
    event: _Event = {
        "ph": "X",
        "name": in_one_line(span.name) or category,
        "cat": in_one_line(category).replace(",", " "),
        "ts": start,
        "dur": end - start,
        "pid": pid,
        "tid": tid,
        "args": {name: value for name, value in known.items() if value not in (None, "")},
    }
    colour = _FAILED if span.error else _COLOURS.get(category)
    return {**event, "cname": colour} if colour else event


def _counters(lanes: Iterable[Lane], origin: int) -> Iterator[_Event]:
    """Yield the number of running trajectories whenever it changes."""
    changes: dict[int, int] = {}
    for lane in lanes:
        for time, change in ((lane.start, 1), (lane.end, -1)):
            microseconds = (time - origin) // 1000
            changes[microseconds] = changes.get(microseconds, 0) + change
    running = 0
    for time, change in sorted(changes.items()):
        running += change
        yield {"ph": "C", "name": _COUNTER, "ts": time, "pid": _STEP_PID, "args": {"running": running}}


def _process(pid: int, name: str) -> Iterator[_Event]:
    yield _metadata("process_name", pid, None, name=in_one_line(name))
    yield _metadata("process_sort_index", pid, None, sort_index=pid)


def _metadata(name: str, pid: int, tid: int | None, /, **args: Any) -> _Event:
    thread = {} if tid is None else {"tid": tid}
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, **thread, "args": args}


def _opened(path: Path) -> AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    if str(path) == "-":
        return nullcontext(sys.stdout.buffer)
    return gzip.open(path, "wb", compresslevel=5) if path.suffix == _COMPRESSED else path.open("wb")
