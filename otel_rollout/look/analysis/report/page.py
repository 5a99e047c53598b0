"""Write the pages of a run's report, of a step, and of what changed between steps or runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from markupsafe import Markup

from otel_rollout.account.report import said_of_operations_outside
from otel_rollout.look.analysis.health.findings import UNHEALTHY, Health
from otel_rollout.look.analysis.health.page import verdict_of
from otel_rollout.look.analysis.report import text as report_text
from otel_rollout.look.analysis.report.changes import RunComparison
from otel_rollout.look.analysis.report.engine_time import StepEngineTime
from otel_rollout.look.analysis.report.report import RunReport, StepReport
from otel_rollout.look.analysis.report.step import Step
from otel_rollout.look.analysis.report.trainer import Trainer
from otel_rollout.look.conversation.formatting import counted
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
from otel_rollout.look.pages.links import Links
from otel_rollout.look.pages.rendering import render

_COLOURS: Final[tuple[Colour, ...]] = ("user", "tool", "assistant", "evaluator", "failure", "system")
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
_NO_REWARD: Final = Slice("none", "system")
_MAX_TOOLS: Final = len(_COLOURS)
"""Tools with a line of their own: those with the most calls."""
_MAX_ROWS: Final = 500
"""Steps in the page's tables: the last."""

Figure = Callable[["StepReport"], float | None]
"""A step's figure; None where it has none."""


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
        most=_MAX_ROWS, health=health, verdict=_verdict(health, links),
        said_of_operations_outside=said_of_operations_outside,
    )  # fmt: skip


def _verdict(health: Health | None, links: Links) -> str:
    """Return in one line what is wrong with the run, or that nothing is."""
    if health is None:
        return "This run is being checked." if links.health() else "Is anything wrong with this run?"
    wrong = [finding for finding in health.findings if finding.status == UNHEALTHY]
    if not wrong:
        return f"Nothing is wrong, as far as the checks see: {verdict_of(health)}."
    more = f" And {counted(len(wrong) - 1, 'other check')} found something." if len(wrong) > 1 else ""
    return f"{wrong[0].message}{more}"


def page_of_step(step: Step, links: Links | None = None) -> str:
    """Return the page of a step: its figures, and its groups with their trajectories."""
    times = step.report.seconds
    parts = (times.generate, times.tool, times.reward, times.waiting)
    bar = share_bar(
        [Slice(part.name, part.colour, value) for part, value in zip(_PHASES, parts, strict=True)],
        Axes(number=report_text.seconds),
    )
    has_time = any(parts)
    return render(
        "step.html", links, step=step, text=report_text, bar=bar if has_time else None, orders=_orders(step),
    )  # fmt: skip


def _orders(step: Step) -> dict[str, list[int]]:
    """Return the place of each group in each order that the page offers."""
    keys: dict[str, Callable[[int], tuple[bool, float]]] = {
        "widest spread": lambda index: _descending(step.groups[index].spread),
        "lowest mean": lambda index: _ascending(step.groups[index].mean),
        "highest mean": lambda index: _descending(step.groups[index].mean),
        "most tool errors": lambda index: _descending(step.groups[index].tool_errors),
        "longest": lambda index: _descending(step.groups[index].seconds),
    }
    found = {}
    for name, key in keys.items():
        places = [0] * len(step.groups)
        for place, index in enumerate(sorted(range(len(step.groups)), key=key)):
            places[index] = place
        found[name] = places
    return found


def _ascending(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0


def _descending(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _charts(report: RunReport, links: Links) -> Iterator[Markup]:
    """Yield the charts whose figures are known in some step."""
    steps = [step for step in report.training if step.step is not None]
    validation = [step for step in report.validation if step.step is not None]
    if not steps and not validation:
        return
    main = steps or validation
    yield from _rewards(steps, validation, links)
    yield from _lines(
        "Shares", main, links, Axes(number=report_text.percent),
        ("groups without spread", lambda step: _share(step.groups_without_spread, step.groups_compared)),
        ("cut replies", lambda step: _share(step.replies_truncated, step.replies_ended)),
        ("failed trajectories", lambda step: _share(step.failed, step.trajectories)),
        ("without a reward", lambda step: _share(step.reward.missing + step.reward.odd, step.trajectories)),
    )  # fmt: skip
    yield from _tool_lines(main, links)
    yield from _lines(
        "Calls of a trajectory", main, links, Axes(),
        ("turns", lambda step: step.turns_mean),
        ("tool calls", lambda step: _share(step.tool_calls, step.trajectories)),
        ("unparsable calls", lambda step: _share(step.parse_failures, step.trajectories)),
    )  # fmt: skip
    yield from _lines(
        "Tokens of a reply", main, links, Axes(),
        ("mean", lambda step: _share(step.tokens_out, step.replies)),
    )  # fmt: skip
    seconds = Axes(number=report_text.seconds)
    yield from _lines(
        "Duration of a trajectory", main, links, seconds,
        ("median", lambda step: step.seconds.p50),
        ("p95", lambda step: step.seconds.p95),
        ("longest", lambda step: step.seconds.max),
    )  # fmt: skip
    if any(step.seconds.p50 is not None for step in main):
        yield column_chart("Mean time of a trajectory", _PHASES, [_phases(s, links) for s in main], seconds)
    yield from _engine_lines(main, links)
    yield from _lines(
        "Policy lag, in steps", main, links, Axes(),
        ("mean", lambda step: step.policy_lag.mean), ("greatest", lambda step: step.policy_lag.max),
    )  # fmt: skip
    yield from _trainer_lines(main, links)


def _rewards(
    training: Sequence[StepReport], validation: Sequence[StepReport], links: Links
) -> Iterator[Markup]:
    """Yield a chart of the mean reward; of rewards with few values, charts of the values' shares."""
    values = sorted(
        {value for step in (*training, *validation) for value in step.reward.values}, reverse=True
    )
    if values:
        parts = [*map(Slice, map(report_text.number, values), _COLOURS_OF_VALUES[len(values)]), _NO_REWARD]
        for steps, title in ((training, "Rewards"), (validation, "Rewards of validation")):
            if any(step.reward.count for step in steps):
                columns = [_shares(step, values, links) for step in steps]
                yield column_chart(title, parts, columns, Axes("step: mean reward", report_text.percent))
    elif any(step.reward.count for step in (*training, *validation)):
        points = [_reward_point(step, links) for step in training]
        of_validation = [_reward_point(step, links, has_band=not training) for step in validation]
        lines = (Series("training, p10 to p90", points), Series("validation", of_validation, "evaluator"))
        yield line_chart("Reward, mean", [line for line in lines if line.points], Axes(from_zero=False))


def _engine_lines(steps: Sequence[StepReport], links: Links) -> Iterator[Markup]:
    """Yield the charts of the requests in the engine."""

    def figure(of: Callable[[StepEngineTime], float | None]) -> Figure:
        return lambda step: None if step.engine is None else of(step.engine)

    seconds = Axes(number=report_text.seconds)
    yield from _lines(
        "Mean time of a trajectory in the engine", steps, links, seconds,
        ("prefill", figure(lambda known: known.prefill_seconds)),
        ("queue", figure(lambda known: known.queue_seconds)),
        ("decode", figure(lambda known: known.decode_seconds)),
    )  # fmt: skip
    yield from _lines(
        "First token of a request", steps, links, seconds,
        ("median", figure(lambda known: known.first_token_p50)),
        ("p95", figure(lambda known: known.first_token_p95)),
    )  # fmt: skip


def _trainer_lines(steps: Sequence[StepReport], links: Links) -> Iterator[Markup]:
    """Yield the charts of what training made of the trajectories."""

    def figure(of: Callable[[Trainer], float | None]) -> Figure:
        return lambda step: None if step.trainer is None else of(step.trainer)

    percent = Axes(number=report_text.percent)
    yield from _lines(
        "Not trained on", steps, links, percent,
        ("all reasons", figure(lambda known: _share(known.known - known.trained, known.known))),
        *((reason, figure(_filtered_by(reason))) for reason in _reasons(steps)),
    )  # fmt: skip
    yield from _lines(
        "Magnitude of the advantage", steps, links, Axes(),
        ("mean", figure(lambda known: known.advantage_magnitude)),
    )  # fmt: skip
    yield from _lines(
        "Mismatch of sampler and trainer, in nats", steps, links, Axes(),
        ("mean", figure(lambda known: known.mismatch_mean)),
    )  # fmt: skip


def _filtered_by(reason: str) -> Callable[[Trainer], float | None]:
    return lambda known: _share(known.filtered.get(reason, 0), known.known)


def _reasons(steps: Sequence[StepReport]) -> list[str]:
    """Return the most frequent reasons of the filter, if there are several."""
    counts: Counter[str] = Counter()
    for step in steps:
        counts.update(step.trainer.filtered if step.trainer else {})
    return [name for name, _ in counts.most_common(len(_COLOURS) - 1)] if len(counts) > 1 else []


def _lines(
    title: str, steps: Sequence[StepReport], links: Links, axes: Axes, *named: tuple[str, Figure]
) -> Iterator[Markup]:
    """Yield a chart of the figures that are above zero in some step, unless none is."""
    known = [(name, figure) for name, figure in named if any(figure(step) for step in steps)]
    if known:
        yield line_chart(
            title if len(known) > 1 else f"{title}: {known[0][0]}",
            [
                Series(name, [_point(step, figure(step), links) for step in steps], _COLOURS[place])
                for place, (name, figure) in enumerate(known)
            ],
            axes,
        )


def _tool_lines(steps: Sequence[StepReport], links: Links) -> Iterator[Markup]:
    calls: dict[str, int] = {}
    for step in steps:
        for tool in step.tools:
            calls[tool.name or report_text.UNKNOWN] = (
                calls.get(tool.name or report_text.UNKNOWN, 0) + tool.calls
            )
    names = sorted(calls, key=lambda name: (-calls[name], name))[:_MAX_TOOLS]
    figures = [(name, _errors_of(name)) for name in names]
    yield from _lines("Tool errors", steps, links, Axes(number=report_text.percent), *figures)


def _errors_of(name: str) -> Figure:
    def errors(step: StepReport) -> float | None:
        of_name = (tool for tool in step.tools if (tool.name or report_text.UNKNOWN) == name)
        tool = next(of_name, None)
        return None if tool is None else _share(tool.errors, tool.calls)

    return errors


def _shares(step: StepReport, values: Sequence[float], links: Links) -> ChartColumn:
    """Return the shares of the trajectories with each reward, and without one."""
    counts = [step.reward.values.get(value, 0) for value in values]
    shares = [count / step.trajectories for count in (*counts, step.trajectories - sum(counts))]
    label = f"{step.step}: {report_text.number(step.reward.mean)}"
    return ChartColumn(label, shares, f"step {step.step}", links.step(step.step, step.validate))


def _phases(step: StepReport, links: Links) -> ChartColumn:
    times = step.seconds
    values = (times.generate, times.tool, times.reward, times.waiting)
    return ChartColumn(str(step.step), values, link=links.step(step.step, step.validate))


def _reward_point(step: StepReport, links: Links, has_band: bool = True) -> Point:
    point = _point(step, step.reward.mean, links)
    if not has_band:
        return point
    return Point(point.x, point.y, step.reward.p10, step.reward.p90, link=point.link)


def _point(step: StepReport, value: float | None, links: Links) -> Point:
    return Point(float(step.step or 0), value, link=links.step(step.step, step.validate))


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None or not whole else part / whole


def page_of_changes(comparison: RunComparison) -> str:
    """Return the page of a comparison: the surprising changes first, with trajectories to open."""
    return render("changes.html", None, comparison=comparison, text=report_text)
