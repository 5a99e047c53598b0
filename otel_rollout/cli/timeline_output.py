"""Print the time of a step on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.look.analysis.timeline import text
from otel_rollout.look.analysis.timeline.step_time import PhaseTime
from otel_rollout.look.analysis.timeline.timeline import Timeline
from otel_rollout.look.conversation.formatting import duration
from otel_rollout.look.fitted_table import columns_of, print_noted

_MAX_ROWS: Final = 10
"""Tools, stragglers and processes that the terminal shows of each."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_PHASES: Final = {"phase": 0, "time": 1, "share": 1, "at once": 2, "of wall time": 3}
_STRAGGLERS: Final = {"straggler": 0, "state": 2, "ended after": 2, "took": 1, "process": 3}
_WORKERS: Final = {"process": 0, "trajectories": 1, "median": 1, "last ended after": 2}
"""Heading of a table → rank of its column."""
_TEXTS: Final = ("phase", "straggler", "state", "process")
"""Headings of the columns that are no numbers."""


def show(timeline: Timeline, location: str) -> None:
    """Print sentences, the phases, the stragglers and the processes."""
    console = Console(highlight=False)
    lines = [
        Text(f"{text.title(timeline)} of {in_one_line(timeline.run.name)}", "bold"),
        Text(text.summary(timeline)),
        Text(text.straggling(timeline), "bold yellow" if timeline.stragglers else ""),
        *(Text(text.slow(timeline, worker), "yellow") for worker in timeline.slow_workers[:_MAX_ROWS]),
        Text(f"running  {_curve(timeline)}  0 to {timeline.peak}"),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
    tables = (
        (_PHASES, list(_phases(timeline))),
        (_STRAGGLERS, _first(_stragglers(timeline))),
        (_WORKERS, _first(_workers(timeline))),
    )
    for ranks, rows in tables:
        if rows:
            print_noted(console, columns_of(rows, ranks, _TEXTS), "--html has all")
    for note in (*text.notes(timeline), f"from {location}"):
        console.print(Text(printable(note)), soft_wrap=True)


def _curve(timeline: Timeline) -> str:
    """Return the running trajectories over the wall time as a row of blocks."""
    top, levels = max(timeline.peak, 1), len(_BLOCKS) - 1
    heights = (min(math.ceil(levels * moment.running / top), levels) for moment in timeline.moments)
    return "".join(_BLOCKS[height] for height in heights)


def _phases(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    """Yield a row for each phase, and below it its parts: an engine's phases, tools."""
    for time in timeline.phases:
        yield time.phase, *_figures(time)
        if time.phase == "generate":
            for part in timeline.engine:
                yield f"  {part.name}", *_figures(part)
        if time.phase == "tool":
            yield from _tools(timeline)


def _tools(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    for tool in timeline.tools[:_MAX_ROWS]:
        yield f"  {tool.name}", *_figures(tool)
    if more := timeline.tools[_MAX_ROWS:]:
        yield f"  {len(more)} more", duration(sum(tool.seconds for tool in more)), "", "", ""


def _figures(time: PhaseTime) -> tuple[str, ...]:
    return duration(time.seconds), f"{time.share:.1%}", f"{time.at_once:.1f}", f"{time.wall_share:.1%}"


def _stragglers(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    for lane in timeline.stragglers.lanes if timeline.stragglers else ():
        ended = "" if lane.state == "running" else duration((lane.end - timeline.start) / 1e9)
        process = timeline.worker_names[lane.worker] if lane.worker else ""
        yield lane.name.path, lane.state, ended, duration(lane.seconds), process


def _workers(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    for worker in timeline.workers if len(timeline.workers) > 1 else ():
        times = duration(worker.median_seconds), duration(worker.last_seconds)
        yield worker.name, str(worker.trajectories), *times


def _first(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the first rows, and one that counts the others."""
    found = list(rows)
    first, others = found[:_MAX_ROWS], len(found) - _MAX_ROWS
    return [*first, (f"{others} more", *[""] * (len(first[0]) - 1))] if others > 0 else first
