"""Define the figures of a step, for curves and for comparisons of steps or runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from otel_rollout.look.analysis.report.engine_time import StepEngineTime
from otel_rollout.look.analysis.report.report import Reward, StepReport, Tool
from otel_rollout.look.analysis.report.trainer import Trainer
from otel_rollout.table.training import DIFFERS

Unit = Literal["number", "share", "seconds"]
"""Unit of a figure; a share is between 0 and 1."""
_OUTCOMES: Final = ("reward_mean", "groups_without_spread")
_FOLLOWING: Final = (
    "turns", "reply_tokens", "tokens_in", "tokens_out", "tool_calls", "reward_std", "advantage_magnitude",
    "importance_ratio",
)  # fmt: skip
"""Figures that follow from changes elsewhere: a failing tool makes more turns, and more tokens."""
Basis = Literal["guess", "sample", "groups"]
"""What the error of a figure was estimated from; see :class:`Value`."""


@dataclass(frozen=True, slots=True)
class Value:
    """A figure of a step.

    Attributes:
        value: the figure.
        count: number of trajectories, replies or calls that it is the mean of.
        error: its standard error, for a sample of this size.
        basis: what the error was estimated from: a ``guess`` of the unknown spread, a ``sample`` of
            independent values, or the differences between ``groups``.
    """

    value: float
    count: int
    error: float
    basis: Basis = "sample"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that steps are compared by.

    Attributes:
        name: its name in ``--json``.
        label: its name for a person.
        unit: what it counts.
        of: returns a step's figure; None if the step has none.
        worse: direction that a trainer does not want; None where either may be right.
        order: SQL expression on a trajectory's row; trajectories with the greatest values show a high figure.
        parts: returns how many of the counted things have each cause.
        tool: the tool whose calls the figure is of; None for a figure of trajectories.
    """

    name: str
    label: str
    unit: Unit
    of: Callable[[StepReport], Value | None]
    worse: Literal["up", "down"] | None = None
    order: str = ""
    parts: Callable[[StepReport], dict[str, int]] | None = None
    tool: str | None = None

    @property
    def is_of_duration(self) -> bool:
        """Whether it is a trajectory's duration, or the time of one of its phases."""
        return self.name.startswith(("seconds_", "engine_"))

    @property
    def rank(self) -> int:
        """Place of its change: 0 for a possible cause, 1 for the outcome, 2 for what follows from others."""
        name = self.name.partition(":")[0]
        return 1 if name in _OUTCOMES else 2 if self.unit == "seconds" or name in _FOLLOWING else 0


def share(count: int | None, whole: int) -> Value | None:
    """Return a share with its error, which is above zero even for a share of 0 or 1."""
    if count is None or not whole:
        return None
    likely = (count + 1) / (whole + 2)
    return Value(count / whole, whole, math.sqrt(likely * (1 - likely) / whole))


def mean(value: float | None, count: int, std: float | None = None) -> Value | None:
    """Return a mean with its error; an unknown standard deviation is taken to be as large as the mean."""
    if value is None or not count:
        return None
    error = (abs(value) if std is None else std) / math.sqrt(count)
    return Value(value, count, error, "guess" if std is None else "sample")


def _p95(value: float | None, count: int) -> Value | None:
    """Return a 95th percentile with its error: one value of twenty is beyond it."""
    found = mean(value, max(1, count // 20))
    return found and replace(found, count=count)


def _reward(reward: Reward) -> Value | None:
    """Return the mean reward, with the error from groups if known: siblings are not independent."""
    if reward.mean is None or reward.mean_error is None:
        return mean(reward.mean, reward.count, reward.std or 0.0)
    return Value(reward.mean, reward.count, reward.mean_error, "groups")


def _per(total: int | None, count: int, std: float | None = None) -> _Given:
    """Return the arguments of :func:`mean` for the total of ``count`` values; None without values."""
    return None if total is None or not count else total / count, count, std


def _ended(step: StepReport) -> int:
    return step.trajectories - step.running


def _tool_causes(step: StepReport) -> dict[str, int]:
    return {f"tool {tool.name or 'without a name'}": tool.errors or 0 for tool in step.tools}


_Given = tuple[Any, ...] | None
"""Arguments of :func:`share` or :func:`mean`; None where a step has no such figure."""
_Of = Callable[["StepReport"], _Given]
_Causes = Callable[["StepReport"], dict[str, int]]


def _share(name: str, label: str, of: _Of, order: str, parts: _Causes | None = None) -> Measure:
    """Return a measure that is a share; a smaller share is better."""
    return Measure(name, label, "share", _value(share, of), "up", order, parts)


def _seconds(
    name: str, label: str, of: _Of, order: str = "", make: Callable[..., Value | None] = mean
) -> Measure:
    """Return a measure that is a duration, by default a mean one; a shorter one is better."""
    return Measure(name, label, "seconds", _value(make, of), "up", order)


def _number(name: str, label: str, of: _Of, order: str = "", worse: Literal["up"] | None = None) -> Measure:
    """Return a measure that is a mean number."""
    return Measure(name, label, "number", _value(mean, of), worse, order)


def _value(make: Callable[..., Value | None], of: _Of) -> Callable[[StepReport], Value | None]:
    return lambda step: None if (given := of(step)) is None else make(*given)


def _engine(of: Callable[[StepEngineTime], _Given]) -> _Of:
    return lambda step: None if step.engine is None else of(step.engine)


def _trainer(of: Callable[[Trainer], _Given]) -> _Of:
    return lambda step: None if step.trainer is None else of(step.trainer)


def _phase(name: str, label: str) -> Measure:
    """Return the measure of a trajectory's mean time in a phase."""
    order = f"{name}_seconds"
    return _seconds(
        f"seconds_{name}", label, lambda step: (getattr(step.seconds, name), step.seconds.count), order
    )


def _engine_phase(name: str, label: str) -> Measure:
    """Return the measure of a trajectory's mean time in a phase of the engine."""
    order = f"{name}_seconds"
    return _seconds(f"engine_{name}", label, _engine(lambda of: (getattr(of, order), of.trajectories)), order)


_STEP_MEASURES: Final = (
    Measure("reward_mean", "reward, mean", "number", lambda step: _reward(step.reward), "down", "reward"),
    _number("reward_std", "reward, spread", lambda step: (step.reward.std, step.reward.count), "reward"),
    _share(
        "reward_missing", "trajectories without a reward",
        lambda step: (step.reward.missing, _ended(step)),
        "CASE WHEN state <> 'running' AND has_no_reward THEN 1 ELSE 0 END",
    ),
    _share(
        "groups_without_spread", "groups without spread",
        lambda step: (step.groups_without_spread, step.groups_compared),
        "CASE WHEN has_group_without_spread THEN 1 ELSE 0 END",
    ),
    _share(
        "failed", "failed trajectories", lambda step: (step.failed, _ended(step)),
        "CASE WHEN state = 'error' THEN 1 ELSE 0 END", lambda step: dict(step.error_types),
    ),
    _number("turns", "turns", lambda step: (step.turns_mean, step.trajectories, step.turns_std), "turns"),
    _number(
        "reply_tokens", "tokens of a reply", lambda step: _per(step.tokens_out, step.replies),
        "tokens_out / greatest(turns, 1)",
    ),
    _number(
        "tokens_in", "tokens in, of a trajectory", lambda step: _per(step.tokens_in, step.trajectories),
        "tokens_in",
    ),
    _number(
        "tokens_out", "tokens out, of a trajectory", lambda step: _per(step.tokens_out, step.trajectories),
        "tokens_out",
    ),
    _share(
        "truncated", "cut replies", lambda step: (step.replies_truncated, step.replies_ended),
        "truncated",
    ),
    _number(
        "tool_calls", "tool calls of a trajectory",
        lambda step: _per(step.tool_calls, step.trajectories, step.tool_calls_std), "tool_calls",
    ),
    _share(
        "tool_errors", "tool errors", lambda step: (step.tool_errors, step.tool_calls_known), "tool_errors",
        _tool_causes,
    ),
    _share(
        "parse_failures", "unparsable calls, of all replies",
        lambda step: (min(step.parse_failures, step.replies), step.replies), "unparsed",
    ),
    _seconds(
        "seconds_p50", "duration, median", lambda step: (step.seconds.p50, step.seconds.count), "seconds",
    ),
    _seconds(
        "seconds_p95", "duration, p95", lambda step: (step.seconds.p95, step.seconds.count), "seconds", _p95,
    ),
    _phase("generate", "time in model calls"),
    _phase("tool", "time in tools"),
    _phase("reward", "time in rewards"),
    _phase("waiting", "time waiting"),
    _engine_phase("queue", "waiting in the engine's queue"),
    _engine_phase("prefill", "prefill in the engine"),
    _engine_phase("decode", "decode in the engine"),
    _seconds(
        "first_token_p50", "first token of a request, median",
        _engine(lambda of: (of.first_token_p50, of.requests)), "first_token_seconds",
    ),
    _seconds(
        "first_token_p95", "first token of a request, p95",
        _engine(lambda of: (of.first_token_p95, of.requests)), "first_token_seconds", _p95,
    ),
    _share(
        "calls_without_request", "model calls without the engine's request",
        lambda step: (step.engine.calls_without_request, step.replies) if step.engine else None,
        "calls_without_request",
    ),
    _number(
        "policy_lag", "policy lag, in steps", lambda step: (step.policy_lag.mean, step.policy_lag.count),
        "policy_lag", "up",
    ),
    _share(
        "not_trained", "trajectories not trained on",
        _trainer(lambda of: (of.known - of.trained, of.known)),
        "CASE WHEN reason IS NOT NULL THEN 1 ELSE 0 END",
        lambda step: dict(step.trainer.filtered) if step.trainer else {},
    ),
    _share(
        "rewards_differing", "rewards trained on that are not the recorded ones",
        _trainer(lambda of: (of.rewards_differing, of.rewards_compared)),
        f"CASE WHEN {DIFFERS} THEN 1 ELSE 0 END",
    ),
    _number(
        "advantage_magnitude", "advantage, magnitude",
        _trainer(lambda of: (of.advantage_magnitude, of.advantages)), "abs(advantage)",
    ),
    _number(
        "trainer_lag", "policy lag, as trained", _trainer(lambda of: (of.lag_mean, of.lags)), "trainer_lag",
        "up",
    ),
    _number(
        "mismatch_mean", "mismatch, mean", _trainer(lambda of: (of.mismatch_mean, of.mismatches)),
        "mismatch_mean", "up",
    ),
    _number(
        "importance_ratio", "importance ratio",
        _trainer(lambda of: (of.importance_ratio, of.importance_ratios)), "importance_ratio",
    ),
)  # fmt: skip


_SHOWN: Final = (
    _seconds("seconds_max", "duration, longest", lambda step: (step.seconds.max, 1)),
    _number("policy_lag_max", "policy lag, greatest", lambda step: (step.policy_lag.max, 1)),
)
"""Figures of charts only: a maximum grows with the number of trajectories, so it does not compare steps."""
MEASURES: Final = {measure.name: measure for measure in (*_STEP_MEASURES, *_SHOWN)}
"""Name → measure of a step."""


def values_of(name: str, steps: Iterable[StepReport]) -> list[float | None]:
    """Return a measure's figure of each step; None where a step has none."""
    found = map(MEASURES[name].of, steps)
    return [None if value is None else value.value for value in found]


def is_said(values: Sequence[float | None], unit: Unit) -> bool:
    """Return whether a curve is worth showing: a share if ever above 0, another figure if ever known."""
    return any(values) if unit == "share" else any(value is not None for value in values)


def measures_of(steps: Sequence[StepReport]) -> Iterator[Measure]:
    """Yield the measures of a step, and three of each tool that the steps call."""
    yield from _STEP_MEASURES
    for name in sorted({tool.name for step in steps for tool in step.tools if tool.name}):
        yield from _of_tool(name)


def _of_tool(name: str) -> Iterator[Measure]:
    def in_step(step: StepReport) -> Tool:
        return next((tool for tool in step.tools if tool.name == name), Tool(name, 0, 0, 0, {}, None))

    def calls(step: StepReport) -> _Given:
        """Return the mean calls of a trajectory, with the standard deviation of a Poisson distribution."""
        number, count = in_step(step).calls, step.trajectories
        return _per(number, count, math.sqrt(number / count) if count else None)

    errors = _share(
        f"tool_errors:{name}",
        f"tool {name}: errors",
        lambda step: (in_step(step).errors, in_step(step).known),
        "count(*) FILTER (WHERE call.status = 'error')",
        lambda step: dict(in_step(step).error_types),
    )
    per_trajectory = _number(
        f"tool_calls:{name}", f"tool {name}: calls of a trajectory", calls, "count(call.span_id)"
    )
    seconds = _seconds(
        f"tool_seconds:{name}",
        f"tool {name}: seconds of a call",
        lambda step: (in_step(step).seconds_mean, in_step(step).calls),
        "avg(call.duration_ns)",
    )
    yield from (replace(measure, tool=name) for measure in (errors, per_trajectory, seconds))
