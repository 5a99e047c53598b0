"""Implement the command ``otel-rollout timeline``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from otel_rollout.base.printable import in_one_line
from otel_rollout.cli.dumps import reading
from otel_rollout.cli.page_output import HtmlOption, JsonOption, answer, say, tell, writing
from otel_rollout.cli.sources import as_table
from otel_rollout.cli.table import FromOption, NewestRunOption
from otel_rollout.look.analysis.run_choice import run_of, source_said
from otel_rollout.look.analysis.timeline import perfetto as trace
from otel_rollout.look.analysis.timeline import text
from otel_rollout.look.analysis.timeline.page import as_json, page_of_timeline
from otel_rollout.look.analysis.timeline.timeline import Timeline, slowest_timeline
from otel_rollout.look.analysis.timeline.timeline import timeline as timeline_of
from otel_rollout.look.conversation.formatting import duration
from otel_rollout.look.fitted_table import columns_of, print_fitted, print_sentence
from otel_rollout.table import filters
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError

_STDOUT: Final = "-"
_MAX_ROWS: Final = 10
"""Maximum rows that the terminal shows of tools, of stragglers, and of processes."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_PHASES: Final = {"phase": 0, "time": 1, "share": 1, "at once": 2, "of wall time": 3}
_STRAGGLERS: Final = {"straggler": 0, "state": 2, "ended after": 2, "took": 1, "process": 3}
_WORKERS: Final = {"process": 0, "trajectories": 1, "median": 1, "last ended after": 2}
"""Heading of a table → rank of its column."""
_TEXTS: Final = ("phase", "straggler", "state", "process")
"""Headings of the columns that are no numbers."""

StepOption = Annotated[
    str | None,
    typer.Option("--step", help="One step: 12, warm-up; - for none. \\[default: the slowest step]"),
]
ValidationOption = Annotated[
    bool | None, typer.Option("--validation/--training", help="A step of validation, or of training.")
]
PerfettoOption = Annotated[
    Path | None,
    typer.Option(
        "--perfetto", help="Write a trace that ui.perfetto.dev opens to this file (.gz: compressed)."
    ),
]


@reading
def timeline(
    step: StepOption = None,
    validation: ValidationOption = None,
    run: NewestRunOption = None,
    from_: FromOption = None,
    perfetto: PerfettoOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Show what the wall time of a step went into, and which trajectories held it."""
    _refuse_two_outputs(perfetto, html, json)
    with as_table(from_) as (store, location):
        engine = Engine(store.open())
        chosen, location = run_of(engine, run), source_said(engine, run, location)
        if step is None:
            found = slowest_timeline(engine, chosen, validation)
        else:
            found = timeline_of(engine, chosen, filters.step_named(step), bool(validation))
    if perfetto:
        with writing("output"):
            trace.write(found, perfetto)
        if str(perfetto) != _STDOUT:
            say(f"Written to {perfetto}")
    if html or json or not perfetto:
        show = partial(_show, found, location)
        answer(html, json, partial(page_of_timeline, found), partial(as_json, found), show)


def _refuse_two_outputs(perfetto: Path | None, html: Path | None, json: bool) -> None:
    """End the command with an error if two outputs go to standard output, or one is named twice."""
    if html and json:
        raise QueryError("--html and --json are two outputs: name one of them.")
    if str(perfetto) == _STDOUT and (html or json):
        raise QueryError("--perfetto - and another output would mix in standard output: name a file.")


def _show(timeline: Timeline, location: str) -> None:
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
        print_sentence(console, line)
    phases = text.phase_rows(timeline, _MAX_ROWS)
    tables = (
        (_PHASES, [(f"{'  ' * row.is_inner}{row.name}", *row.figures) for row in phases]),
        (_STRAGGLERS, _first(list(_stragglers(timeline)))),
        (_WORKERS, _first(text.worker_rows(timeline) if len(timeline.workers) > 1 else [])),
    )
    for ranks, rows in tables:
        if rows:
            print_fitted(console, columns_of(rows, ranks, _TEXTS), "--html has all")
    tell(*text.notes(timeline), f"from {location}")


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
