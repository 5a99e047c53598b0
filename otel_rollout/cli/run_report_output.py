"""Print a run's report, and what changed, on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otel_rollout.account.report import said_of_operations_outside
from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.look import fitted_table
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.changes import RunChange, RunComparison, histories_of
from otel_rollout.look.analysis.report.report import RunReport, StepReport
from otel_rollout.look.analysis.report.trainer import Trainer
from otel_rollout.look.conversation import formatting
from otel_rollout.look.fitted_table import TableColumn
from otel_rollout.look.pages.scale import finite

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = " "
_BESIDE: Final = 48
"""Columns of a line for the name of a figure, and its first and last value."""
_SPARK: Final = 48
"""Characters of a sparkline at most; of more steps, each character is the mean of several."""
_MAX_STEPS: Final = 30
"""Steps that a table shows: the last."""
_MAX_CHANGES: Final = 5
"""Changes that are printed without ``--all``."""
_MAX_TOOLS: Final = 12
"""Tools that are listed: those with the most errors."""
_RANKS: Final = {
    "step": 0, "failed": 1, "reward": 1, "tool errors": 1, "trajectories": 2, "no spread": 2,
    "unparsable calls": 2, "longest trajectory": 4, "tokens in": 4, "p10": 5, "p50": 4, "p90": 5,
}  # fmt: skip
"""Rank of a figure: those of a high rank are left out where the terminal has no room."""
_USUAL_RANK: Final = 3
_Curve = tuple[str, Callable[[Any], str], list[float | None]]
"""A figure over steps: its name, its form and its values."""
_UNKNOWN: Final = {report_text.UNKNOWN}
"""Cells of a column that is not known."""
_NOTHING: Final = _UNKNOWN | {"0", "0 %", "0 s"}
"""Cells of a column that has nothing to say."""


def show_report(report: RunReport, location: str) -> None:
    """Print sparklines over steps, a row per step, and the tools."""
    console = Console(highlight=False)
    console.print(Text(printable(report.run.name), style="bold"))
    for title, steps in (("training", report.training), ("validation", report.validation)):
        if not steps:
            continue
        if report.validation:
            console.print(Text(f"\n{title}", style="bold"))
        if len(steps) > 1:
            console.print(_sparklines(steps, console.width))
        shown = steps[-_MAX_STEPS:]
        _print_rows(console, report_text.FIGURES, [report_text.figures(step) for step in shown])
        if any(step.seconds.slowest for step in shown):
            _print_rows(console, report_text.TIMES, [report_text.times(step) for step in shown])
        if any(step.engine for step in shown):
            console.print(Text(report_text.ENGINE_TITLE, style="bold"))
            rows = [report_text.engine(step) for step in shown]
            _print_rows(console, report_text.ENGINE, rows, _UNKNOWN)
        if any(step.trainer for step in shown):
            console.print(Text("what training made of them", style="bold"))
            rows = [report_text.trainer(step) for step in shown]
            _print_rows(console, report_text.TRAINER, rows, _UNKNOWN)
            for line in _trainer_notes(shown):
                console.print(line, soft_wrap=True)
        if len(steps) > _MAX_STEPS:
            console.print(
                f"the last {_MAX_STEPS} of {len(steps)} steps; --step 1-20 shows others", soft_wrap=True
            )
        if any(step.tools for step in steps):
            _print_tools(console, steps)
    if report.operations_outside:
        console.print(f"{said_of_operations_outside(report.operations_outside)}.", soft_wrap=True)
    console.print(Text(printable(f"from {location}")), soft_wrap=True)


def _trainer_notes(steps: Sequence[StepReport]) -> Iterator[Text]:
    """Yield rewards that differ, numbers that are not finite, and the reasons of the filter."""
    for note, names in report_text.trainer_notes(steps):
        yield Text(in_one_line(note), "bold red" if names else "")
        if names:
            yield _examples(names)


def show_changes(comparison: RunComparison, location: str, is_all: bool) -> None:
    """Print what changed, possible causes first, with trajectories to open."""
    console = Console(highlight=False)
    before, after = comparison.before, comparison.after
    title = f"{before.name} → {after.name}"
    if before.run != after.run:
        title = f"{before.run.name}, {before.name} → {after.run.name}, {after.name}"
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
    console.print(Text(report_text.LEGEND, "dim"), soft_wrap=True)
    changes = comparison.changes if is_all else report_text.once(comparison.changes)[:_MAX_CHANGES]
    moved = [change for change in comparison.others if change.surprise]
    for change in (*changes, *(moved if is_all else ())):
        for line in _lines(change):
            console.print(line, soft_wrap=True)
    if not comparison.changes:
        console.print("No figure changed by that much.", soft_wrap=True)
    more = len(comparison.changes) + len(moved) - len(changes)
    if more and not is_all:
        console.print(f"{formatting.counted(more, 'other figure')}: --all", style="dim")
    console.print(Text(printable(f"from {location}")), soft_wrap=True)


def _lines(change: RunChange) -> Iterator[Text]:
    style = {True: "bold red", False: "bold green", None: "bold"}[change.is_worse]
    line = Text(in_one_line(report_text.change(change)), style)
    yield line.append(f"   {report_text.times_usual(change)}", "not bold default")
    for part in report_text.parts(change):
        yield Text(f"    {in_one_line(part)}")
    if change.examples:
        yield _examples(change.examples, change.run)


def _examples(names: Sequence[str], run: str | None = None) -> Text:
    """Return the command that shows the first of some trajectories, and the names of the others."""
    first, *others = map(in_one_line, names)
    also = f"   (also {', '.join(others)})" if others else ""
    of_run = f" --run {in_one_line(run)}" if run else ""
    return Text(f"    otel-rollout show {first}{of_run}{also}", "dim")


def sparkline(values: Sequence[float | None], most: int = _SPARK) -> str:
    """Return a line of at most so many blocks for values; a missing one is a space."""
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
    """Return a row for each figure that is known and moves."""
    number, seconds, percent = report_text.number, report_text.seconds, report_text.percent
    rows: tuple[_Curve, ...] = (
        ("reward", number, [step.reward.mean for step in steps]),
        (
            "groups without spread",
            percent,
            [_share(s.groups_without_spread, s.groups_compared) for s in steps],
        ),
        ("failed", percent, [_share(step.failed, step.trajectories) for step in steps]),
        ("turns", number, [step.turns_mean for step in steps]),
        ("tokens of a reply", number, [_share(step.tokens_out or 0, step.replies) for step in steps]),
        ("cut replies", percent, [_share(step.replies_truncated, step.replies_ended) for step in steps]),
        ("tool errors", percent, [_share(step.tool_errors, step.tool_calls) for step in steps]),
        ("unparsable calls", number, [float(step.parse_failures) for step in steps]),
        ("median time", seconds, [step.seconds.p50 for step in steps]),
        ("longest time", seconds, [step.seconds.max for step in steps]),
        ("policy lag", number, [step.policy_lag.mean for step in steps]),
        *_of_trainer(steps),
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, in_words, values in rows:
        known = [value for value in values if value is not None]
        if known and any(known):
            table.add_row(
                name,
                Text(sparkline(values, min(_SPARK, max(1, columns - _BESIDE))), "cyan"),
                f"{in_words(known[0])} → {in_words(known[-1])}",
            )
    return table


def _of_trainer(steps: Sequence[StepReport]) -> Iterator[_Curve]:
    """Yield what training made of the steps."""

    def values(of: Callable[[Trainer], float | None]) -> list[float | None]:
        return [None if step.trainer is None else of(step.trainer) for step in steps]

    not_trained = values(lambda known: _share(known.known - known.trained, known.known))
    yield "not trained", report_text.percent, not_trained
    yield "advantage", report_text.number, values(lambda known: known.advantage_magnitude)
    yield "mismatch", report_text.number, values(lambda known: known.mismatch_mean)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _print_rows(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    hidden: Container[str] = _NOTHING,
) -> None:
    """Print a row per step, without the columns that have only hidden cells, or no room."""
    columns = [
        TableColumn(heading, list(map(in_one_line, cells)), _RANKS.get(heading, _USUAL_RANK), is_number=True)
        for heading, cells in zip(headings, zip(*rows, strict=True), strict=True)
        if heading == headings[0] or not all(cell in hidden for cell in cells)
    ]
    if left_out := _print_columns(console, columns):
        console.print(Text(f"no room for {', '.join(left_out)}; --html has all", "dim"), soft_wrap=True)


def _print_tools(console: Console, steps: Sequence[StepReport]) -> None:
    """Print a row per tool: how often it fails, since when, and its errors of its calls in each step."""
    tools = histories_of(steps)[:_MAX_TOOLS]
    names = [in_one_line(tool.name or report_text.UNKNOWN) for tool in tools]
    counts = [str(tool.calls) for tool in tools]
    errors = [f"{tool.errors} ({report_text.share(tool.errors, tool.calls)})" for tool in tools]
    since = [tool.since or report_text.UNKNOWN for tool in tools]
    types = [in_one_line(", ".join(f"{each} {n}" for each, n in tool.error_types.items())) for tool in tools]
    columns = [
        TableColumn("tool", names),
        TableColumn("calls", counts, 1, is_number=True),
        TableColumn("tool errors", errors, 1, is_number=True),
        TableColumn("since step", since, 1, is_number=True),
        TableColumn("by type", types, 2, can_be_cut=True),
    ]
    for place in range(max(0, len(steps) - _MAX_STEPS), len(steps) if len(steps) > 1 else 0):
        cells = [f"{of.errors}/{of.calls}" if (of := tool.steps[place]) else "" for tool in tools]
        rank = _USUAL_RANK + len(steps) - place
        columns.insert(-1, TableColumn(f"step {steps[place].name}", cells, rank, is_number=True))
    left_out = _print_columns(console, columns)
    if any(left_out):
        console.print(Text("no room for the errors of the calls in earlier steps", "dim"))


def _print_columns(console: Console, columns: Sequence[TableColumn]) -> list[str]:
    return fitted_table.print_fitted(console, columns, fitted_table.room(console), SIMPLE_HEAD)
