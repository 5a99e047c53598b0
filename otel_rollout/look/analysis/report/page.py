"""Write the pages of a run's report and health, of a step, and of what changed between steps or runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from markupsafe import Markup

from otel_rollout.account.report import said_of_operations_outside
from otel_rollout.look.analysis.health.findings import Health
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.changes import RunComparison, histories_of
from otel_rollout.look.analysis.report.measures import MEASURES, Unit, is_said, values_of
from otel_rollout.look.analysis.report.report import RunReport, StepReport
from otel_rollout.look.analysis.report.step import Step
from otel_rollout.look.conversation.formatting import counted, percent
from otel_rollout.look.pages.charts import (
    Axes,
    ChartColumn,
    Colour,
    Point,
    Series,
    Slice,
    column_chart,
    line_chart,
    share_bar,
)
from otel_rollout.look.pages.rendering import Links, render

_COLOURS: Final[tuple[Colour, ...]] = ("user", "tool", "assistant", "evaluator", "failure", "system")
_ORDERS: Final = {
    "widest spread": ("spread", -1),
    "lowest mean": ("mean", 1),
    "highest mean": ("mean", -1),
    "most tool errors": ("tool_errors", -1),
    "longest": ("seconds", -1),
}
"""Order of the groups → figure, and sign of its direction."""
_PHASES: Final = (
    Slice("generate", "assistant"), Slice("tool", "tool"), Slice("reward", "evaluator"),
    Slice("waiting", "system"),
)  # fmt: skip
_COLOURS_OF_VALUES: Final[Mapping[int, tuple[Colour, ...]]] = {
    1: ("user",),
    2: ("assistant", "failure"),
    3: ("assistant", "tool", "failure"),
    4: ("assistant", "user", "tool", "failure"),
    5: ("assistant", "user", "evaluator", "tool", "failure"),
}
"""Number of different rewards → their colours, that of the greatest first."""
_NO_REWARD: Final = Slice("no number", "system")
_CHARTS: Final = {
    "Shares": {
        "groups without spread": "groups_without_spread", "cut replies": "truncated",
        "failed trajectories": "failed", "without a reward": "reward_missing",
        "unparsable calls": "parse_failures",
    },
    "Calls of a trajectory": {"turns": "turns", "tool calls": "tool_calls"},
    "Tokens of a reply": {"mean": "reply_tokens"},
    "Duration of a trajectory": {"median": "seconds_p50", "p95": "seconds_p95", "longest": "seconds_max"},
    "Mean time of a trajectory in the engine": {
        "prefill": "engine_prefill", "queue": "engine_queue", "decode": "engine_decode",
    },
    "First token of a request": {"median": "first_token_p50", "p95": "first_token_p95"},
    "Policy lag, in steps": {"mean": "policy_lag", "greatest": "policy_lag_max"},
    "Magnitude of the advantage": {"mean": "advantage_magnitude"},
    "Mismatch of sampler and trainer, in nats": {"mean": "mismatch_mean"},
}  # fmt: skip
"""Title of a chart → legend of each line → the measure that it shows."""
_MAX_TOOLS: Final = len(_COLOURS)
"""Maximum tools with a line of their own: those with the most calls."""
_MAX_ROWS: Final = 500
"""Maximum steps in the page's tables: the last ones."""


def page_of_report(report: RunReport, links: Links | None = None, health: Health | None = None) -> str:
    """Return the page of a run: its curves over steps, its steps and its tools.

    Args:
        report: the run.
        links: addresses of other pages; by default the page stands alone.
        health: the answers of the run's checks, if they are known.
    """
    links = links or Links()
    return render(
        "report.html", links, report=report, charts=list(_charts(report, links)), text=report_text,
        most=_MAX_ROWS, health=health, counted=counted, said_of_operations_outside=said_of_operations_outside,
    )  # fmt: skip


def page_of_step(step: Step, links: Links | None = None) -> str:
    """Return the page of a step: its figures, and its groups with their trajectories."""
    values = _phases(step.report)
    parts = [replace(part, value=value) for part, value in zip(_PHASES, values, strict=True)]
    has_time = None not in values and any(values)
    bar = share_bar(parts, Axes(number=report_text.seconds))
    return render(
        "step.html", links, step=step, text=report_text, bar=bar if has_time else None, orders=_orders(step),
    )  # fmt: skip


def _orders(step: Step) -> dict[str, list[int]]:
    """Return the place of each group in each order that the page offers; one without the figure is last."""
    found = {}
    for name, (figure, sign) in _ORDERS.items():
        values = [getattr(group, figure) for group in step.groups]
        keys = [(value is None, sign * (value or 0.0), index) for index, value in enumerate(values)]
        places = {key: place for place, key in enumerate(sorted(keys))}
        found[name] = [places[key] for key in keys]
    return found


def _charts(report: RunReport, links: Links) -> Iterator[Markup]:
    """Yield the charts whose figures are known in some step."""
    training = [step for step in report.training if isinstance(step.step, int)]
    validation = [step for step in report.validation if isinstance(step.step, int)]
    yield from _rewards(training, validation, links)
    steps = training or validation
    yield from _lines("Tool errors", steps, links, "share", _tool_errors(steps))
    if timed := [step for step in steps if None not in _phases(step)]:
        columns = [_column(step, str(step.step), _phases(step), links) for step in timed]
        yield column_chart("Mean time of a trajectory", _PHASES, columns, Axes(number=report_text.seconds))
    for title, figures in _CHARTS.items():
        units = {MEASURES[name].unit for name in figures.values()}
        named = {legend: values_of(name, steps) for legend, name in figures.items()}
        yield from _lines(title, steps, links, units.pop(), named)
    yield from _lines("Not trained on", steps, links, "share", _left_out(steps))


def _rewards(
    training: Sequence[StepReport], validation: Sequence[StepReport], links: Links
) -> Iterator[Markup]:
    """Yield a chart of the mean reward, or charts of each reward's share if few different rewards occur."""
    values = sorted(
        {value for step in (*training, *validation) for value in step.reward.values}, reverse=True
    )
    if values:
        parts = [*map(Slice, map(report_text.number, values), _COLOURS_OF_VALUES[len(values)]), _NO_REWARD]
        for steps, title in ((training, "Rewards"), (validation, "Rewards of validation")):
            if any(step.reward.count for step in steps):
                columns = [_shares(step, values, links) for step in steps]
                yield column_chart(title, parts, columns, Axes("step: mean reward", percent))
    elif any(step.reward.count for step in (*training, *validation)):
        points = [_reward_point(step, links) for step in training]
        of_validation = [_reward_point(step, links, has_band=not training) for step in validation]
        lines = (Series("training, p10 to p90", points), Series("validation", of_validation, "evaluator"))
        yield line_chart("Reward, mean", [line for line in lines if line.points], Axes(from_zero=False))


def _tool_errors(steps: Sequence[StepReport]) -> dict[str, list[float | None]]:
    """Return the share of failed calls in each step, of the tools with the most calls."""
    tools = sorted(histories_of(steps), key=lambda tool: -tool.calls)[:_MAX_TOOLS]
    return {
        tool.name or report_text.UNKNOWN: [
            None if of is None or of.errors is None else of.errors / of.known for of in tool.steps
        ]
        for tool in tools
    }


def _left_out(steps: Sequence[StepReport]) -> dict[str, list[float | None]]:
    """Return the share of the trajectories that the loss did not use in each step, by reason."""
    shares = {"all reasons": values_of("not_trained", steps)}
    for reason in _reasons(steps):
        shares[reason] = [
            of.filtered.get(reason, 0) / of.known if (of := step.trainer) and of.known else None
            for step in steps
        ]
    return shares


def _reasons(steps: Sequence[StepReport]) -> list[str]:
    """Return the most frequent reasons of the filter, if there are several."""
    counts = sum((Counter(step.trainer.filtered) for step in steps if step.trainer), Counter[str]())
    return [name for name, _ in counts.most_common(len(_COLOURS) - 1)] if len(counts) > 1 else []


def _lines(
    title: str,
    steps: Sequence[StepReport],
    links: Links,
    unit: Unit,
    named: Mapping[str, Sequence[float | None]],
) -> Iterator[Markup]:
    """Yield a chart of the figures that are worth showing, if there are any."""
    known = {name: values for name, values in named.items() if is_said(values, unit)}
    if known:
        yield line_chart(
            title if len(known) > 1 else f"{title}: {next(iter(known))}",
            [
                Series(name, [_point(*each, links) for each in zip(steps, values, strict=True)], colour)
                for (name, values), colour in zip(known.items(), _COLOURS, strict=False)
            ],
            Axes(number=partial(report_text.in_unit, unit=unit)),
        )


def _shares(step: StepReport, values: Sequence[float], links: Links) -> ChartColumn:
    """Return a column with the shares of the trajectories with each reward, and without a finite one."""
    counts = [step.reward.values.get(value, 0) for value in values]
    shares = [count / step.trajectories for count in (*counts, step.trajectories - sum(counts))]
    label = f"{step.step}: {report_text.number(step.reward.mean)}"
    return _column(step, label, shares, links)


def _column(step: StepReport, label: str, values: Sequence[float | None], links: Links) -> ChartColumn:
    return ChartColumn(label, values, f"step {step.step}", links.step(step.step, step.validate))


def _phases(step: StepReport) -> tuple[float | None, ...]:
    """Return the mean seconds of a trajectory in each of the phases."""
    times = step.seconds
    return times.generate, times.tool, times.reward, times.waiting


def _reward_point(step: StepReport, links: Links, has_band: bool = True) -> Point:
    point = _point(step, step.reward.mean, links)
    return replace(point, low=step.reward.p10, high=step.reward.p90) if has_band else point


def _point(step: StepReport, value: float | None, links: Links) -> Point:
    return Point(float(step.step or 0), value, link=links.step(step.step, step.validate))


def page_of_health(health: Health, links: Links | None = None) -> str:
    """Return the page of a run's health."""
    return render("health.html", links, health=health)


def page_of_changes(comparison: RunComparison) -> str:
    """Return the page of a comparison: the surprising changes first, with trajectories to open."""
    return render("changes.html", None, comparison=comparison, text=report_text)
