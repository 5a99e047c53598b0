"""Compute a run's figures per step: rewards, replies, tools, tokens, durations and policy lag."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.report.engine_time import StepEngineTime, engine_times_of
from otel_rollout.look.analysis.report.trainer import Trainer, trainers_of
from otel_rollout.look.analysis.run_choice import Run, StepKey, by_step, operations_outside, rows_of
from otel_rollout.look.pages.scale import finite
from otel_rollout.table import filters, views
from otel_rollout.table.query import Engine

_Row = Mapping[str, Any]
_Rows = Sequence[_Row]
_MAX_VALUES: Final = 5
"""Maximum different rewards of a run for each to be counted."""
_MIN_GROUPS: Final = 10
"""Minimum groups of a step to tell the error of its mean reward by their differences."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The rewards of a step's trajectories; without a reward, all fields but the counts are null.

    Attributes:
        count: trajectories with a finite reward.
        missing: ended trajectories without a reward, neither a number nor a text.
        odd: trajectories whose reward is NaN, infinite, or of 1e150 and more; no other figure includes them.
        mean: the mean.
        std: the standard deviation of the sample; null with one reward.
        min: the least.
        p10: a tenth of the rewards is at most this.
        p50: the median.
        p90: nine tenths of the rewards are at most this.
        max: the greatest.
        mean_error: standard error of the mean, from the differences between groups; null with fewer than ten
            groups.
        values: how often each value occurs; empty if the run has more than five different values.
    """

    count: int
    missing: int
    odd: int
    mean: float | None
    std: float | None
    min: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    max: float | None
    mean_error: float | None = None
    values: Mapping[float, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Durations of a step's ended trajectories.

    Attributes:
        count: trajectories with a known duration.
        p50: the median.
        p95: nineteen of twenty trajectories took at most this.
        max: the longest.
        slowest: name of the trajectory that took longest.
        generate: mean seconds of a trajectory in model calls.
        tool: mean seconds in tools.
        reward: mean seconds in evaluators.
        waiting: mean seconds in none of these.
    """

    count: int
    p50: float | None
    p95: float | None
    max: float | None
    slowest: str | None
    generate: float | None
    tool: float | None
    reward: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class PolicyLag:
    """How old the weights were, in steps: the step minus the version that made the first tokens.

    Attributes:
        count: training trajectories whose policy version is known.
        mean: the mean lag; null without any.
        max: the greatest.
        mixed: trajectories during which the weights changed.
    """

    count: int
    mean: float | None
    max: int | None
    mixed: int


@dataclass(frozen=True, slots=True)
class Tool:
    """The calls of a tool in a step.

    Attributes:
        name: the tool's name; null if none was recorded.
        calls: number of calls.
        known: number of those that tell whether they failed.
        errors: number of failed calls; null if no call tells whether it failed.
        error_types: failed calls by the class of their error.
        seconds_mean: mean duration of a call.
    """

    name: str | None
    calls: int
    known: int
    errors: int | None
    error_types: Mapping[str, int]
    seconds_mean: float | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """The figures of a training or validation step.

    Attributes:
        step: the step, a text if it is no number; null for trajectories without one.
        validate: whether the step is of validation.
        trajectories: number of trajectories.
        failed: those that ended with an error.
        running: those that have not ended.
        error_types: failed trajectories by the class of their error.
        groups: number of groups.
        groups_compared: groups in which two trajectories or more have a reward.
        groups_without_spread: those of ``groups_compared`` whose rewards are all equal, which teach nothing.
        reward: the rewards.
        turns_mean: mean model calls of a trajectory.
        turns_std: their standard deviation; null with one trajectory.
        turns_max: the most model calls of a trajectory.
        tokens_in: tokens that the model received; null if none were recorded.
        tokens_out: tokens that it returned.
        replies: model calls.
        replies_ended: model calls with a recorded finish reason.
        replies_truncated: model calls whose reply was cut by its length.
        tool_calls: calls of tools.
        tool_calls_known: those that tell whether they failed.
        tool_calls_std: standard deviation of a trajectory's calls of tools; null with one trajectory.
        tool_errors: failed calls of tools; null if no call tells whether it failed.
        tools: the calls by tool, the most called first.
        parse_failures: spans that tell of a tool call that cannot be parsed.
        seconds: the durations.
        policy_lag: the age of the weights.
        trainer: what training made of the trajectories; null without such scores.
        engine: what their requests took in the inference engine; null if no request was recorded.
    """

    step: filters.Step
    validate: bool
    trajectories: int
    failed: int
    running: int
    error_types: Mapping[str, int]
    groups: int
    groups_compared: int
    groups_without_spread: int
    reward: Reward
    turns_mean: float | None
    turns_std: float | None
    turns_max: int | None
    tokens_in: int | None
    tokens_out: int | None
    replies: int
    replies_ended: int
    replies_truncated: int
    tool_calls: int
    tool_calls_known: int
    tool_calls_std: float | None
    tool_errors: int | None
    tools: tuple[Tool, ...]
    parse_failures: int
    seconds: Seconds
    policy_lag: PolicyLag
    trainer: Trainer | None = None
    engine: StepEngineTime | None = None

    @property
    def name(self) -> str:
        """The first part of the step's trajectory names: ``12``, ``validation/12``, or ``-``."""
        step = filters.NO_STEP if self.step is None else self.step
        return f"{'validation/' if self.validate else ''}{step}"


@dataclass(frozen=True, slots=True)
class RunReport:
    """The figures of a run.

    Attributes:
        run: the run.
        training: its training steps, in order; one without a number is the last.
        validation: its validation steps.
        operations_outside: operations that began outside any trajectory, of the whole run.
    """

    run: Run
    training: tuple[StepReport, ...]
    validation: tuple[StepReport, ...]
    operations_outside: int = 0

    @property
    def steps(self) -> tuple[StepReport, ...]:
        """Training steps, then validation steps."""
        return self.training + self.validation

    def as_json(self) -> dict[str, Any]:
        """Return the report as ``report --json`` prints it."""
        found = asdict(self)
        return {**found.pop("run")._asdict(), **found}


def report_of(engine: Engine, run: Run, condition: str = "true") -> RunReport:
    """Compute the figures of a run's steps.

    Args:
        engine: queries the table.
        run: the run.
        condition: SQL condition on ``step``, ``step_text`` and ``validate``, to compute only some steps.
    """
    kept = rows_of(engine, run)

    def asked(sql: str, rows: str = kept) -> list[dict[str, Any]]:
        return engine.dicts(sql.replace("{rows}", _some(rows, condition)))

    read = {"report_rows": _some(kept, condition)}
    summed, grouped_rewards = (views.over(name, read) for name in ("report_steps", "report_groups"))
    groups, errors, values = (by_step(asked(sql)) for sql in (grouped_rewards, _ERRORS, _VALUES))
    engine.keep(f"{kept}_tools", f"{_TOOLS} WHERE {run.condition} {_OF_TOOLS}")
    tools = by_step(asked("SELECT * FROM {rows} ORDER BY calls DESC, error_type", f"{kept}_tools"))
    trainers = trainers_of(engine, _some(kept, condition))
    engine_times = engine_times_of(engine, run, condition)
    steps = []
    for row in engine.dicts(f"{summed} ORDER BY validate, step NULLS LAST, step_text NULLS LAST"):
        key = filters.step_out_of(row)
        step = _step(key, row, groups[key][0] if groups[key] else {}, errors[key], tools[key], values[key])
        steps.append(replace(step, trainer=trainers.get(key), engine=engine_times.get(key)))
    training = tuple(step for step in steps if not step.validate)
    validation = tuple(step for step in steps if step.validate)
    return RunReport(run, training, validation, engine.count(f"({operations_outside(run)}) AS outside"))


def _some(rows: str, condition: str) -> str:
    return f"(SELECT * FROM {rows} WHERE {condition}) AS row"  # noqa: S608


def _step(key: StepKey, row: _Row, groups: _Row, errors: _Rows, tools: _Rows, values: _Rows) -> StepReport:
    """Build a step's report from the rows of the queries."""
    return StepReport(
        groups=groups.get("groups", 0),
        groups_compared=groups.get("compared", 0),
        groups_without_spread=groups.get("without_spread", 0),
        error_types={each["error_type"]: each["failed"] for each in errors},
        tools=tuple(_tools(tools)),
        reward=Reward(
            **_part(row, "reward_"),
            mean_error=_error(groups),
            values={each["reward"]: each["number"] for each in values},
        ),
        seconds=Seconds(**_part(row, "seconds_")),
        policy_lag=PolicyLag(**_part(row, "lag_")),
        validate=key[0],
        step=key[1],
        **{name: value for name, value in row.items() if not name.startswith(_PARTS)},
    )


def _error(groups: _Row) -> float | None:
    """Return the standard error of a step's mean reward, from its groups; None with few groups."""
    number = groups.get("rewarded", 0)
    if number < _MIN_GROUPS:
        return None
    return finite(math.sqrt(groups["squares"] * number / (number - 1)) / groups["rewards"])


_PARTS = ("reward_", "seconds_", "lag_")


def _part(row: _Row, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _tools(rows: _Rows) -> list[Tool]:
    """Return the calls of each tool in a step, the most called tool first."""
    found = []
    for name, parts in grouped(rows, lambda row: row["tool_name"]).items():
        calls, timed, known = (sum(row[column] for row in parts) for column in ("calls", "timed", "known"))
        types = {row["error_type"]: row["calls"] for row in parts if row["error_type"] is not None}
        mean = sum(row["seconds"] or 0.0 for row in parts) / timed if timed else None
        found.append(Tool(name, calls, known, sum(types.values()) if known else None, types, mean))
    return sorted(found, key=lambda tool: (-tool.calls, tool.name or ""))


_VALUES = f"""
SELECT validate, step, step_text, reward, count(*) AS number
FROM {{rows}}
WHERE reward IS NOT NULL AND (SELECT count(DISTINCT reward) FROM {{rows}}) <= {_MAX_VALUES}
GROUP BY validate, step, step_text, reward
ORDER BY reward
"""  # noqa: S608
_ERRORS = """
SELECT validate, step, step_text, coalesce(error_type, 'error') AS error_type, count(*) AS failed
FROM {rows}
WHERE state = 'error'
GROUP BY validate, step, step_text, coalesce(error_type, 'error')
ORDER BY failed DESC, error_type
"""
_TOOLS = """
SELECT
  validate, step, step_text, tool_name, error_type, CAST(sum(calls) AS BIGINT) AS calls,
  CAST(sum(timed) AS BIGINT) AS timed, CAST(sum(known) AS BIGINT) AS known, sum(duration_ns) / 1e9 AS seconds
FROM called_tools"""
_OF_TOOLS = "GROUP BY validate, step, step_text, tool_name, error_type"
