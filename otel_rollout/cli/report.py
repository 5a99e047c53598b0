"""Implement the command ``otel-rollout report``: a run's figures per step, and what changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Final

import typer

from otel_rollout.cli.dumps import reading
from otel_rollout.cli.page_output import HtmlOption, answer
from otel_rollout.cli.run_report_output import show_changes, show_report
from otel_rollout.cli.sources import as_table
from otel_rollout.cli.table import FromOption, NewestRunOption, StepOption, ended_by_ctrl_c, errors_reported
from otel_rollout.look.analysis.report import changes
from otel_rollout.look.analysis.report.changes import RunComparison, Side
from otel_rollout.look.analysis.report.page import page_of_changes, page_of_report
from otel_rollout.look.analysis.report.report import RunReport, StepReport, report_of
from otel_rollout.look.analysis.run_choice import Run, run_of
from otel_rollout.table import filters, views
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError

_STEPS: Final = re.compile(
    r"\s*(?P<first>-?\d+)(?:\s*-\s*(?P<last>-?\d+))?\s*\.\."
    r"\s*(?P<first_after>-?\d+)(?:\s*-\s*(?P<last_after>-?\d+))?\s*"
)
"""Two steps ``40..60``, or two ranges ``30-40..50-60``."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")]


@reading
def report(
    from_: FromOption = None,
    run: NewestRunOption = None,
    step: StepOption = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            help="What changed between two steps (40..60) or ranges (30-40..50-60), or since another run "
            "(its id or experiment).",
            metavar="STEPS or RUN",
        ),
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="With --compare: validation steps instead of training steps.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="With --compare: every figure, not only five.")] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Show a run's figures per step: rewards, groups, replies, tools, tokens, durations; or what changed."""
    with errors_reported(), _opened(from_) as (engine, location):
        chosen = run_of(engine, run)
        if compare is None:
            found = _report(engine, chosen, step, location)
            show = partial(show_report, found, location)
            answer(html, json, partial(page_of_report, found), found.as_json, show)
        else:
            changed = _changes(engine, chosen, compare, step, validation)
            show = partial(show_changes, changed, location, all_)
            answer(html, json, partial(page_of_changes, changed), changed.as_json, show)


@contextmanager
def _opened(from_: str | None) -> Iterator[tuple[Engine, str]]:
    """Yield an engine on the table that is meant, and the name of its source."""
    with as_table(from_) as (store, location), ended_by_ctrl_c(store.location.uri == location):
        yield Engine(store.open(), keep=views.SLOW), location


def _report(engine: Engine, run: Run, step: str | None, location: str) -> RunReport:
    condition = None if step is None else filters.numbers("step", step, "--step")
    found = report_of(engine, run, condition)
    if not found.steps:
        raise QueryError(f"No step of {run.name} fits --step {step!r} in {location}.")
    return found


def _changes(engine: Engine, run: Run, compare: str, step: str | None, validation: bool) -> RunComparison:
    """Compare the steps, or the two runs, that ``--compare`` names.

    Raises:
        QueryError: there is no such run or step.
    """
    if step is not None:
        raise QueryError(
            "--step and --compare exclude each other: write the steps as --compare 30-40..50-60."
        )

    def steps_of(of: Run) -> tuple[StepReport, ...]:
        found = report_of(engine, of)
        return found.validation if validation else found.training

    steps = steps_of(run)
    if match := _STEPS.fullmatch(compare):
        before = _side(run, steps, match["first"], match["last"])
        after = _side(run, steps, match["first_after"], match["last_after"])
        return changes.compare(engine, before, after, [steps])
    other = run_of(engine, compare)
    if other == run:
        raise QueryError(
            f"--compare {compare!r} is the run itself: name another run, or steps such as 40..60."
        )
    older = steps_of(other)
    sides = changes.sides_of_runs((other, older), (run, steps))
    return changes.compare(engine, *sides, [older, steps])


def _side(run: Run, steps: Sequence[StepReport], first: str, last: str | None) -> Side:
    """Return the steps of a run from the first to the last that ``--compare`` names.

    Raises:
        QueryError: the run has none of them.
    """
    least, most = int(first), int(last or first)
    chosen = tuple(step for step in steps if step.step is not None and least <= step.step <= most)
    if not chosen:
        named = first if last is None else f"{first}-{last}"
        numbers = [step.step for step in steps if step.step is not None]
        known = f" It has steps {numbers[0]} to {numbers[-1]}." if numbers else ""
        raise QueryError(f"--compare names step {named}, which {run.name} does not have.{known}")
    return Side(run, chosen)
