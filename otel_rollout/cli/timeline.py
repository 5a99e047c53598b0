"""Implement the command ``otel-rollout timeline``."""

from __future__ import annotations

from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from otel_rollout.cli.page_output import HtmlOption, write_page, writing
from otel_rollout.cli.table import FromOption, NewestRunOption, errors_reported

if TYPE_CHECKING:
    from otel_rollout.look.analysis.timeline.timeline import Timeline

_NO_STEP: Final = "-"
"""What names the trajectories without a step, as in a trajectory's path."""
_STDOUT: Final = "-"

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
            from otel_rollout.look.analysis.timeline.document import as_json

            typer.echo(to_json(as_json(found), indent=2))
        elif not perfetto:
            from otel_rollout.cli.timeline_output import show

            show(found, location)


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


def _step(text: str | None) -> int | str | None:
    """Return the step that the option names; None without one, or for the trajectories without a step."""
    from otel_rollout.table.rows import integer_in

    if text is None or text == _NO_STEP:
        return None
    number = integer_in(text)
    return text if number is None else number


def _say_written(path: Path) -> None:
    from otel_rollout.base.printable import printable

    if str(path) != _STDOUT:
        typer.echo(printable(f"Written to {path}"), err=True)
