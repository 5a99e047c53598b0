"""Implement the command ``otel-rollout timeline``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from otel_rollout.cli.page_output import HtmlOption, write_page, writing
from otel_rollout.cli.table import FromOption, NewestRunOption, errors_reported

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from otel_rollout.look.analysis.timeline.step_time import PhaseTime
    from otel_rollout.look.analysis.timeline.timeline import Timeline

_NO_STEP: Final = "-"
"""What names the trajectories without a step, as in a trajectory's path."""
_MAX_ROWS: Final = 10
"""Tools, stragglers and processes that the terminal shows of each."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_STDOUT: Final = "-"

StepOption = Annotated[
    str | None,
    typer.Option("--step", help="One step; - for trajectories without one. \\[default: the slowest step]"),
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


def timeline(
    step: StepOption = None,
    validation: ValidationOption = None,
    run: NewestRunOption = None,
    from_: FromOption = None,
    perfetto: PerfettoOption = None,
    html: HtmlOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what the wall time of a step went into, and which trajectories held it."""
    with errors_reported():
        _refuse_two_outputs(perfetto, html, json)
        found, location = _read(step, validation, run, from_)
        if perfetto:
            from otel_rollout.look.analysis.timeline import perfetto as trace

            with writing("output"):
                trace.write(found, perfetto)
            _say_written(perfetto)
        if html:
            from otel_rollout.look.analysis.timeline.page import page_of_timeline

            write_page(html, page_of_timeline(found))
        elif json:
            from otel_rollout.look.analysis.timeline.page import as_json

            typer.echo(_as_text(as_json(found)))
        elif not perfetto:
            from rich.console import Console

            _show(found, Console(highlight=False), location)


def _refuse_two_outputs(perfetto: Path | None, html: Path | None, json: bool) -> None:
    """End the command with an error if two outputs go to standard output, or one is named twice."""
    from otel_rollout.table.select import QueryError

    if html and json:
        raise QueryError("--html and --json are two outputs: name one of them.")
    if str(perfetto) == _STDOUT and (html or json):
        raise QueryError("--perfetto - and another output would mix in standard output: name a file.")


def _read(
    step: str | None, validation: bool | None, run: str | None, from_: str | None
) -> tuple[Timeline, str]:
    """Return the time of the step that the options name, and the name of its source."""
    wanted = _step(step)
    from otel_rollout.cli.sources import as_table
    from otel_rollout.look.analysis.run_choice import run_of
    from otel_rollout.look.analysis.timeline.timeline import slowest_timeline
    from otel_rollout.look.analysis.timeline.timeline import timeline as timeline_of
    from otel_rollout.table.query import Engine

    with as_table(from_) as (store, location):
        engine = Engine(store.open())
        chosen = run_of(engine, run)
        if step is None:
            return slowest_timeline(engine, chosen, validation), location
        return timeline_of(engine, chosen, wanted, bool(validation)), location


def _step(text: str | None) -> int | None:
    """Return the step that the option names; None without one, or for the trajectories without a step."""
    from otel_rollout.table.json_text import MAX_INT, MIN_INT
    from otel_rollout.table.select import QueryError

    if text is None or text == _NO_STEP:
        return None
    try:
        found = int(text)
    except ValueError:
        found = MAX_INT + 1
    if not MIN_INT <= found <= MAX_INT:
        raise QueryError(f"--step {text!r} cannot be read: write one step, such as 12.")
    return found


def _show(timeline: Timeline, console: Console, location: str) -> None:
    """Print the time of a step."""
    from rich.text import Text

    from otel_rollout.base.printable import in_one_line, printable
    from otel_rollout.look.analysis.timeline import text

    lines = [
        Text(f"{text.title(timeline)} of {in_one_line(timeline.run.name)}", "bold"),
        Text(text.summary(timeline)),
        Text(text.straggling(timeline), "bold yellow" if timeline.stragglers else ""),
        *(Text(text.slow(timeline, worker), "yellow") for worker in timeline.slow_workers[:_MAX_ROWS]),
        Text(f"running  {_curve(timeline)}  0 to {timeline.peak}"),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(_phases(timeline))
    if timeline.stragglers:
        console.print(_stragglers(timeline))
    if len(timeline.workers) > 1:
        console.print(_workers(timeline))
    for note in (*text.notes(timeline), f"from {location}"):
        console.print(Text(printable(note)), soft_wrap=True)


def _curve(timeline: Timeline) -> str:
    """Return the running trajectories over the wall time as a row of blocks."""
    top, levels = max(timeline.peak, 1), len(_BLOCKS) - 1
    heights = (min(math.ceil(levels * moment.running / top), levels) for moment in timeline.moments)
    return "".join(_BLOCKS[height] for height in heights)


def _phases(timeline: Timeline) -> Table:
    table = _table("phase", "time", "share", "at once", "of wall time")
    for time in timeline.phases:
        table.add_row(time.phase, *_figures(time))
        if time.phase == "generate":
            for part in timeline.engine:
                table.add_row(f"  {part.name}", *_figures(part))
        if time.phase == "tool":
            _add_tools(table, timeline)
    return table


def _add_tools(table: Table, timeline: Timeline) -> None:
    from rich.text import Text

    from otel_rollout.base.printable import in_one_line

    for tool in timeline.tools[:_MAX_ROWS]:
        table.add_row(Text(f"  {in_one_line(tool.name)}"), *_figures(tool))
    if more := timeline.tools[_MAX_ROWS:]:
        from otel_rollout.look.conversation.formatting import duration

        table.add_row(f"  {len(more)} more", duration(sum(tool.seconds for tool in more)), "", "", "")


def _figures(time: PhaseTime) -> tuple[str, ...]:
    from otel_rollout.look.conversation.formatting import duration

    return duration(time.seconds), f"{time.share:.1%}", f"{time.at_once:.1f}", f"{time.wall_share:.1%}"


def _stragglers(timeline: Timeline) -> Table:
    from rich.text import Text

    from otel_rollout.base.printable import in_one_line
    from otel_rollout.look.conversation.formatting import duration

    table = _table("straggler", "state", "ended after", "took", "process")
    lanes = timeline.stragglers.lanes if timeline.stragglers else ()
    for lane in lanes[:_MAX_ROWS]:
        ended = "" if lane.state == "running" else duration((lane.end - timeline.start) / 1e9)
        process = timeline.worker_names[lane.worker] if lane.worker else ""
        names = (Text(in_one_line(lane.name.path)), lane.state, ended, duration(lane.seconds))
        table.add_row(*names, Text(in_one_line(process)))
    if len(lanes) > _MAX_ROWS:
        table.add_row(f"{len(lanes) - _MAX_ROWS} more", "", "", "", "")
    return table


def _workers(timeline: Timeline) -> Table:
    from rich.text import Text

    from otel_rollout.base.printable import in_one_line
    from otel_rollout.look.conversation.formatting import duration

    table = _table("process", "trajectories", "median", "last ended after")
    for worker in timeline.workers[:_MAX_ROWS]:
        figures = (str(worker.trajectories), duration(worker.median_seconds), duration(worker.last_seconds))
        table.add_row(Text(in_one_line(worker.name)), *figures)
    if len(timeline.workers) > _MAX_ROWS:
        table.add_row(f"{len(timeline.workers) - _MAX_ROWS} more", "", "", "")
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table()
    for place, name in enumerate(columns):
        is_number = name not in ("state", "process") and place > 0
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    return table


def _as_text(values: dict[str, Any]) -> str:
    import json

    return json.dumps(values, indent=2)


def _say_written(path: Path) -> None:
    from otel_rollout.base.printable import printable

    if str(path) != _STDOUT:
        typer.echo(printable(f"Written to {path}"), err=True)
