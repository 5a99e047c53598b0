"""Print the time of a step on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.look.analysis.timeline import text
from otel_rollout.look.analysis.timeline.timeline import Timeline
from otel_rollout.look.conversation.formatting import duration
from otel_rollout.look.fitted_table import columns_of, print_fitted

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
    phases = text.phase_rows(timeline, _MAX_ROWS)
    tables = (
        (_PHASES, [(f"{'  ' * row.is_inner}{row.name}", *row.figures) for row in phases]),
        (_STRAGGLERS, _first(list(_stragglers(timeline)))),
        (_WORKERS, _first(text.worker_rows(timeline) if len(timeline.workers) > 1 else [])),
    )
    for ranks, rows in tables:
        if rows:
            print_fitted(console, columns_of(rows, ranks, _TEXTS), "--html has all")
    for note in (*text.notes(timeline), f"from {location}"):
        console.print(Text(printable(note)), soft_wrap=True)


def _curve(timeline: Timeline) -> str:
    """Return the running trajectories over the wall time as a row of blocks."""
    top, levels = max(timeline.peak, 1), len(_BLOCKS) - 1
    heights = (min(math.ceil(levels * moment.running / top), levels) for moment in timeline.moments)
    return "".join(_BLOCKS[height] for height in heights)


def _stragglers(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    for lane in timeline.stragglers.lanes if timeline.stragglers else ():
        ended = "" if lane.state == "running" else duration((lane.end - timeline.start) / 1e9)
        process = timeline.worker_names[lane.worker] if lane.worker else ""
        yield lane.name.path, lane.state, ended, duration(lane.seconds), process


def _first(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the first rows, and one that counts the others."""
    first, others = rows[:_MAX_ROWS], len(rows) - _MAX_ROWS
    return [*first, (f"{others} more", *[""] * (len(first[0]) - 1))] if others > 0 else first
