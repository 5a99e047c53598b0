"""Print a run's report, and what changed, on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from otel_rollout.account.report import said_of_operations_outside
from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.pages.scale import finite

if TYPE_CHECKING:
    from otel_rollout.look.analysis.report.changes import RunChange, RunComparison
    from otel_rollout.look.analysis.report.report import RunReport, StepReport
    from otel_rollout.look.analysis.report.trainer import Trainer

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = " "
_SPARK: Final = 48
"""Characters of a sparkline at most; of more steps, each character is the mean of several."""
_MAX_STEPS: Final = 30
"""Steps that a table shows: the last."""
_MAX_TOOLS: Final = 12
"""Tools that are listed: those with the most calls."""
_NO_LIMIT: Final = 10_000
"""Columns of the console in which a table's natural width is measured."""
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
            _print(console, _sparklines(steps))
        shown = steps[-_MAX_STEPS:]
        _print(console, _step_table(report_text.FIGURES, [report_text.figures(step) for step in shown]))
        if any(step.seconds.slowest for step in shown):
            _print(console, _step_table(report_text.TIMES, [report_text.times(step) for step in shown]))
        if any(step.engine for step in shown):
            console.print(Text(report_text.ENGINE_TITLE, style="bold"))
            rows = [report_text.engine(step) for step in shown]
            _print(console, _step_table(report_text.ENGINE, rows, _UNKNOWN))
        if any(step.trainer for step in shown):
            console.print(Text("what training made of them", style="bold"))
            rows = [report_text.trainer(step) for step in shown]
            _print(console, _step_table(report_text.TRAINER, rows, _UNKNOWN))
            for line in _trainer_notes(shown):
                console.print(line, soft_wrap=True)
        if len(steps) > _MAX_STEPS:
            console.print(
                f"the last {_MAX_STEPS} of {len(steps)} steps; --step 1-20 shows others", soft_wrap=True
            )
        if any(step.tools for step in steps):
            _print(console, _tool_table(steps))
    if report.operations_outside:
        console.print(f"{said_of_operations_outside(report.operations_outside)}.", soft_wrap=True)
    console.print(Text(printable(f"from {location}")), soft_wrap=True)


def _trainer_notes(steps: Sequence[StepReport]) -> Iterator[Text]:
    """Yield rewards that differ, numbers that are not finite, and the reasons of the filter."""
    for note, names in report_text.trainer_notes(steps):
        yield Text(in_one_line(note), "bold red" if names else "")
        if names:
            yield Text(f"    otel-rollout show {in_one_line('   '.join(names))}", "dim")


def show_changes(comparison: RunComparison, location: str) -> None:
    """Print what changed, the most surprising first, with trajectories to open."""
    console = Console(highlight=False)
    before, after = comparison.before, comparison.after
    title = f"{before.name} → {after.name}"
    if before.run != after.run:
        title = f"{before.run.name}, {before.name} → {after.run.name}, {after.name}"
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
    console.print(Text(report_text.LEGEND, "dim"), soft_wrap=True)
    for change in comparison.changes:
        for line in _lines(change):
            console.print(line, soft_wrap=True)
    if not comparison.changes:
        console.print("No figure changed by that much.", soft_wrap=True)
    moved = [change for change in comparison.others if change.surprise]
    if moved:
        named = ", ".join(report_text.change(change) for change in moved[:3])
        console.print(Text(printable(f"changed less: {named}")), soft_wrap=True)
    console.print(Text(printable(f"from {location}")), soft_wrap=True)


def _lines(change: RunChange) -> Iterator[Text]:
    style = {True: "bold red", False: "bold green", None: "bold"}[change.is_worse]
    line = Text(in_one_line(report_text.change(change)), style)
    yield line.append(f"   {report_text.times_usual(change)}", "not bold default")
    for part in report_text.parts(change):
        yield Text(f"    {in_one_line(part)}")
    if change.examples:
        yield Text(f"    otel-rollout show {in_one_line('   '.join(change.examples))}", "dim")


def sparkline(values: Sequence[float | None]) -> str:
    """Return a line of blocks for values; a missing one is a space."""
    width = -(-len(values) // _SPARK)
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


def _sparklines(steps: Sequence[StepReport]) -> Table:
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
        ("parser errors", number, [float(step.parse_failures) for step in steps]),
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
                name, Text(sparkline(values), "cyan"), f"{in_words(known[0])} → {in_words(known[-1])}"
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


def _step_table(
    headings: Sequence[str], rows: Sequence[tuple[str, ...]], hidden: Container[str] = _NOTHING
) -> Table:
    """Return a row per step, without the columns that have only hidden cells."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    kept = [
        index
        for index, values in enumerate(zip(*rows, strict=True))
        if index == 0 or not all(value in hidden for value in values)
    ]
    for index in kept:
        table.add_column(headings[index], justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(in_one_line(row[index])) for index in kept))
    return table


def _tool_table(steps: Sequence[StepReport]) -> Table:
    """Return a row per tool with its calls and errors in all steps."""
    calls: dict[str, int] = {}
    errors: dict[str, dict[str, int]] = {}
    for step in steps:
        for tool in step.tools:
            name = tool.name or report_text.UNKNOWN
            calls[name] = calls.get(name, 0) + tool.calls
            counts = errors.setdefault(name, {})
            for error, count in tool.error_types.items():
                counts[error] = counts.get(error, 0) + count
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("tool", "left"), ("calls", "right"), ("errors", "right"), ("by type", "left")):
        table.add_column(heading, justify=justify, no_wrap=heading != "by type")  # type: ignore[arg-type]
    for name in sorted(calls, key=lambda each: (-calls[each], each))[:_MAX_TOOLS]:
        counts = errors[name]
        types = ", ".join(
            f"{error} {count}" for error, count in sorted(counts.items(), key=lambda each: -each[1])[:4]
        )
        share = report_text.share(sum(counts.values()), calls[name])
        table.add_row(Text(in_one_line(name)), str(calls[name]), share, Text(in_one_line(types)))
    return table


def _print(console: Console, table: Table) -> None:
    """Print a table as wide as its contents: a name that is cut or wrapped cannot be pasted."""
    usual = console.width
    unbounded = console.options.update_width(_NO_LIMIT)
    console.width = max(usual, Measurement.get(console, unbounded, table).maximum)
    console.print(table)
    console.width = usual
