"""Implement the command ``otel-rollout report``: a run's figures per step, and what changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otel_rollout.account.report import said_of_operations_outside
from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.cli.dumps import reading, source_options
from otel_rollout.cli.page_output import HtmlOption, answer, tell
from otel_rollout.cli.sources import as_table
from otel_rollout.cli.table import FromOption, NewestRunOption, StepOption, ended_by_ctrl_c
from otel_rollout.look.analysis.report import changes
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.changes import RunChange, RunComparison, Side
from otel_rollout.look.analysis.report.measures import MEASURES, is_said, values_of
from otel_rollout.look.analysis.report.page import page_of_changes, page_of_report
from otel_rollout.look.analysis.report.report import RunReport, StepReport, report_of
from otel_rollout.look.analysis.run_choice import Run, no_step, run_of, source_said
from otel_rollout.look.conversation import formatting
from otel_rollout.look.fitted_table import TableColumn, print_fitted, print_sentence
from otel_rollout.look.pages.scale import finite
from otel_rollout.table import filters
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError

OptionsOf: TypeAlias = Callable[[str | None], Mapping[str, str | None]]
"""Function: name of a run → the options that name it and its source."""
_STEPS: Final = re.compile(
    r"\s*(?P<first>-?\d+)(?:\s*[-\u2013]\s*(?P<last>-?\d+))?\s*\.\."
    r"\s*(?P<first_after>-?\d+)(?:\s*[-\u2013]\s*(?P<last_after>-?\d+))?\s*"
)
"""Two steps ``40..60``, or two ranges ``30-40..50-60``."""


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
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Show a run's figures per step: rewards, groups, replies, tools, tokens, durations; or what changed."""
    with as_table(from_) as (store, location), ended_by_ctrl_c(store.location.uri == location):
        engine = Engine(store.open())
        chosen = run_of(engine, run)
        found: RunReport | RunComparison
        if compare is None:
            found = report_of(engine, chosen, "true" if step is None else filters.steps(step, "--step"))
            if not found.steps:
                raise no_step(engine, chosen, f"step {step}")
            location, options = source_said(engine, run, location), source_options(from_, run)
            show = partial(show_report, found, location, options)
            answer(html, json, partial(page_of_report, found), found.as_json, show)
        else:
            changed = _changes(engine, chosen, compare, step, validation)
            show = partial(show_changes, changed, location, all_, partial(source_options, from_))
            answer(html, json, partial(page_of_changes, changed), changed.as_json, show)


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
        if before == after:
            raise QueryError(f"--compare {compare} names the same steps twice: name two that differ.")
        return changes.compare(engine, before, after, [steps])
    try:
        other = run_of(engine, compare, besides=run)
    except QueryError as error:
        is_steps = ".." in compare or not compare.strip("0123456789- ")
        hint = " Steps are numbers alone, such as 40..60 or 30-40..50-60." if is_steps else ""
        raise QueryError(f"{error}{hint}") from error
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
    chosen = tuple(step for step in steps if isinstance(step.step, int) and least <= step.step <= most)
    if not chosen:
        named = first if last is None else f"{first}-{last}"
        known = formatting.steps_in_words(step.step for step in steps)
        raise QueryError(f"--compare names step {named}, which {run.name} does not have. It has {known}.")
    return Side(run, chosen)


# --- on the terminal ----------------------------------------------------------------------------------------


_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = " "
_BESIDE: Final = 48
"""Columns of a line for the name of a figure, and its first and last value."""
_SPARK: Final = 48
"""Maximum characters of a sparkline; with more steps, each character is the mean of several."""
_MAX_STEPS: Final = 30
"""Maximum steps that a table shows: the last ones."""
_MAX_CHANGES: Final = 5
"""Changes that are printed without ``--all``."""
_RANKS: Final = {
    "step": 0, "failed": 1, "reward": 1, "tool errors": 1, "trajectories": 2, "no spread": 2,
    "unparsable calls": 2, "longest trajectory": 4, "tokens in": 4, "p10": 5, "p50": 4, "p90": 5,
}  # fmt: skip
"""Figure → its rank: on a narrow terminal, figures with the highest rank are left out first."""
_USUAL_RANK: Final = 3
_CURVES: Final = {
    "reward": "reward_mean", "groups without spread": "groups_without_spread", "failed": "failed",
    "turns": "turns", "tokens of a reply": "reply_tokens", "cut replies": "truncated",
    "tool errors": "tool_errors", "unparsable calls": "parse_failures", "median time": "seconds_p50",
    "longest time": "seconds_max", "policy lag": "policy_lag", "not trained": "not_trained",
    "advantage": "advantage_magnitude", "mismatch": "mismatch_mean",
}  # fmt: skip
"""Name of a line → the measure that it shows."""


def show_report(report: RunReport, location: str, options: Mapping[str, str | None]) -> None:
    """Print sparklines over steps, a row per step, and the tools."""
    console = Console(highlight=False)
    console.print(Text(printable(report.run.name), style="bold"))
    for title, steps in (("training", report.training), ("validation", report.validation)):
        if not steps:
            continue
        if report.validation:
            console.print(Text(f"\n{title}", style="bold"))
        numbered = [step for step in steps if isinstance(step.step, int)]  # a text has no place on a curve
        if len(numbered) > 1:
            console.print(_sparklines(numbered, console.width))
        shown = steps[-_MAX_STEPS:]
        for table in report_text.tables(shown):
            console.print(Text(table.title, style="bold"), end="\n" if table.title else "")
            _print_columns(console, table.columns)
        for note, names in report_text.trainer_notes(shown):
            print_sentence(console, Text(in_one_line(note), "bold red" if names else ""))
            if names:
                opening = formatting.command("show", names, options)
                console.print(Text(f"    {opening}", "dim"), soft_wrap=True)
        if len(steps) > _MAX_STEPS:
            tell(f"the last {_MAX_STEPS} of {len(steps)} steps; --step 1-20 shows others")
        if any(step.tools for step in steps):
            _print_tools(console, steps)
    if report.operations_outside:
        tell(f"{said_of_operations_outside(report.operations_outside)}.")
    tell(f"from {location}")


def show_changes(comparison: RunComparison, location: str, is_all: bool, options_of: OptionsOf) -> None:
    """Print what changed, possible causes first, with trajectories to open."""
    console = Console(highlight=False)
    before, after = comparison.before, comparison.after
    title = f"{before.name} → {after.name}"
    if before.run != after.run:
        title = f"{before.run.name}, {before.name} → {after.run.name}, {after.name}"
    print_sentence(console, Text(printable(title), style="bold"))
    print_sentence(console, Text(report_text.LEGEND, "dim"))
    changes = comparison.changes if is_all else report_text.once(comparison.changes)[:_MAX_CHANGES]
    moved = [change for change in comparison.others if change.surprise]
    for change in (*changes, *(moved if is_all else ())):
        for line in _lines(change, options_of):
            console.print(line, soft_wrap=True)
    if not comparison.changes:
        tell("No figure changed by that much.")
    more = len(comparison.changes) + len(moved) - len(changes)
    if more and not is_all:
        console.print(f"{formatting.counted(more, 'other figure')}: --all", style="dim")
    tell(f"from {location}")


def _lines(change: RunChange, options_of: OptionsOf) -> Iterator[Text]:
    style = {True: "bold red", False: "bold green", None: "bold"}[change.is_worse]
    line = Text(in_one_line(report_text.change(change)), style)
    yield line.append(f"   {report_text.times_usual(change)}", "not bold default")
    for part in report_text.parts(change):
        yield Text(f"    {in_one_line(part)}")
    if change.examples:
        yield Text(f"    {formatting.command('show', change.examples, options_of(change.run))}", "dim")


def sparkline(values: Sequence[float | None], most: int = _SPARK) -> str:
    """Return a line of at most ``most`` blocks for values; a missing value is a space."""
    width = -(-len(values) // most)
    means = [_mean(values[first : first + width]) for first in range(0, len(values), width)] if values else []
    known = [value for value in means if value is not None]
    if not known:
        return _GAP * len(means)
    low, high = min(known), max(known)
    return "".join(_GAP if value is None else _block(value, low, high) for value in means)


def _block(value: float, low: float, high: float) -> str:
    share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
    return _BLOCKS[min(len(_BLOCKS) - 1, int(share * len(_BLOCKS)))]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [each for value in values if (each := finite(value)) is not None]
    return sum(each / len(known) for each in known) if known else None


def _sparklines(steps: Sequence[StepReport], columns: int) -> Table:
    """Return a table with a sparkline for each figure that is worth showing."""
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, measure in _CURVES.items():
        values = values_of(measure, steps)
        unit = MEASURES[measure].unit
        if is_said(values, unit):
            known = [value for value in values if value is not None]
            ends = " → ".join(report_text.in_unit(known[place], unit) for place in (0, -1))
            line = sparkline(values, min(_SPARK, max(1, columns - _BESIDE)))
            table.add_row(name, Text(line, "cyan"), ends)
    return table


def _print_columns(console: Console, columns: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print a row per step, without the columns for which the terminal is too narrow."""
    shown = [
        TableColumn(heading, list(map(in_one_line, cells)), _RANKS.get(heading, _USUAL_RANK), is_number=True)
        for heading, cells in columns
    ]
    print_fitted(console, shown, "--html has all", SIMPLE_HEAD)


def _print_tools(console: Console, steps: Sequence[StepReport]) -> None:
    """Print a row per tool, with a line per class of its errors.

    A narrow terminal has the steps since which tools fail, those before, and then the last ones.
    """
    console.print(Text("tools", style="bold"))
    found = report_text.tools(steps, _MAX_STEPS)
    tools, calls, errors, since, *by_step, types = [
        (head, list(map(in_one_line, cells))) for head, cells in found
    ]
    headings = [heading for heading, _ in by_step]
    risen = [headings.index(f"step {name}") for name in since[1] if f"step {name}" in headings]
    around = [place for rise in risen for place in (rise, rise - 1) if place >= 0]
    by_need = list(dict.fromkeys([*around, *reversed(range(len(by_step)))]))
    columns = [
        TableColumn(*tools),
        *(TableColumn(*column, 1, is_number=True) for column in (calls, errors, since)),
        *(
            TableColumn(*column, _USUAL_RANK + by_need.index(place), is_number=True)
            for place, column in enumerate(by_step)
        ),
        TableColumn(types[0], [cell.replace(", ", "\n") for cell in types[1]], 2),
    ]
    print_fitted(console, columns, "--html has all", SIMPLE_HEAD)
