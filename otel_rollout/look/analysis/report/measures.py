"""Define the figures of a step that curves show, and that two steps or runs are compared by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from otel_rollout.look.analysis.report.report import Reward, StepReport, Tool
from otel_rollout.table.training import DIFFERS

Unit = Literal["number", "share", "seconds"]
"""What a figure counts: a share is between 0 and 1."""
_OUTCOMES: Final = ("reward_mean", "groups_without_spread")
_FOLLOWING: Final = (
    "turns", "reply_tokens", "tokens_in", "tokens_out", "tool_calls", "reward_std", "advantage_magnitude",
    "importance_ratio",
)  # fmt: skip
"""Figures that follow from changes elsewhere: a failing tool makes more turns, and more tokens."""
Basis = Literal["guess", "sample", "groups"]
"""What the error of a figure is of."""


@dataclass(frozen=True, slots=True)
class Value:
    """A figure of a step.

    Attributes:
        value: the figure.
        count: number of trajectories, replies or calls that it is the mean of.
        error: its standard error, as a sample of this size has.
        basis: what the error is of: a ``guess``, because the spread of what it is the mean of is not known; a
            ``sample`` whose members are independent; or the differences of ``groups``.
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
        order: SQL expression on a trajectory's row; the greatest show a high figure.
        parts: returns how many of the counted things have each cause.
        tool: the tool whose calls it counts, which the row of a trajectory does not have.
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
    def rank(self) -> int:
        """Place of its change: 0 for a possible cause, 1 for the outcome, 2 for what follows from others."""
        name = self.name.partition(":")[0]
        return 1 if name in _OUTCOMES else 2 if self.unit == "seconds" or name in _FOLLOWING else 0


def share(count: int, whole: int) -> Value | None:
    """Return a share with its error; the error of no case among a few is not zero."""
    if not whole:
        return None
    likely = (count + 1) / (whole + 2)
    return Value(count / whole, whole, math.sqrt(likely * (1 - likely) / whole))


def mean(value: float | None, count: int, std: float | None = None) -> Value | None:
    """Return a mean with its error; without a known spread, the values spread as widely as the mean is."""
    if value is None or not count:
        return None
    error = (abs(value) if std is None else std) / math.sqrt(count)
    return Value(value, count, error, "guess" if std is None else "sample")


def _reward(reward: Reward) -> Value | None:
    """Return the mean reward. Siblings have the same prompt, so that a group says less than its number."""
    if reward.mean is None or reward.mean_error is None:
        return mean(reward.mean, reward.count, reward.std or 0.0)
    return Value(reward.mean, reward.count, reward.mean_error, "groups")


def _per(total: int | None, count: int, std: float | None = None) -> Value | None:
    return None if total is None or not count else mean(total / count, count, std)


def _calls(calls: int, count: int) -> Value | None:
    """Return the calls of a tool by a trajectory; they spread as calls that come by chance."""
    return _per(calls, count, math.sqrt(calls / count) if count else None)


def _ended(step: StepReport) -> int:
    return step.trajectories - step.running


def _tool_causes(step: StepReport) -> dict[str, int]:
    return {f"tool {tool.name or 'without a name'}": tool.errors for tool in step.tools}


_STEP_MEASURES: Final = (
    Measure(
        "reward_mean", "reward, mean", "number",
        lambda step: _reward(step.reward), "down", "reward",
    ),
    Measure(
        "reward_std", "reward, spread", "number",
        lambda step: mean(step.reward.std, step.reward.count), None, "reward",
    ),
    Measure(
        "reward_missing", "trajectories without a reward", "share",
        lambda step: share(step.reward.missing + step.reward.odd, _ended(step)), "up",
        "CASE WHEN state <> 'running' AND reward IS NULL THEN 1 ELSE 0 END",
    ),
    Measure(
        "groups_without_spread", "groups without spread", "share",
        lambda step: share(step.groups_without_spread, step.groups_compared), "up",
        "CASE WHEN has_group_without_spread THEN 1 ELSE 0 END",
    ),
    Measure(
        "failed", "failed trajectories", "share", lambda step: share(step.failed, _ended(step)), "up",
        "CASE WHEN state = 'error' THEN 1 ELSE 0 END", lambda step: dict(step.error_types),
    ),
    Measure(
        "turns", "turns", "number",
        lambda step: mean(step.turns_mean, step.trajectories, step.turns_std), None, "turns",
    ),
    Measure(
        "reply_tokens", "tokens of a reply", "number", lambda step: _per(step.tokens_out, step.replies), None,
        "tokens_out / greatest(turns, 1)",
    ),
    Measure(
        "tokens_in", "tokens in, of a trajectory", "number",
        lambda step: _per(step.tokens_in, step.trajectories), None, "tokens_in",
    ),
    Measure(
        "tokens_out", "tokens out, of a trajectory", "number",
        lambda step: _per(step.tokens_out, step.trajectories), None, "tokens_out",
    ),
    Measure(
        "truncated", "truncated replies", "share",
        lambda step: share(step.replies_truncated, step.replies_ended), "up", "truncated",
    ),
    Measure(
        "tool_calls", "tool calls of a trajectory", "number",
        lambda step: _per(step.tool_calls, step.trajectories, step.tool_calls_std), None, "tool_calls",
    ),
    Measure(
        "tool_errors", "tool errors", "share", lambda step: share(step.tool_errors, step.tool_calls), "up",
        "tool_errors", _tool_causes,
    ),
    Measure(
        "parse_failures", "unparsable calls, of all replies", "share",
        lambda step: share(min(step.parse_failures, step.replies), step.replies), "up", "unparsed",
    ),
    Measure(
        "seconds_p50", "duration, median", "seconds",
        lambda step: mean(step.seconds.p50, _ended(step)), "up", "seconds",
    ),
    Measure(
        "seconds_p95", "duration, p95", "seconds",
        lambda step: mean(step.seconds.p95, max(1, _ended(step) // 20)), "up", "seconds",
    ),
    Measure(
        "seconds_generate", "time in model calls", "seconds",
        lambda step: mean(step.seconds.generate, _ended(step)), "up", "generate_seconds",
    ),
    Measure(
        "seconds_tool", "time in tools", "seconds",
        lambda step: mean(step.seconds.tool, _ended(step)), "up", "tool_seconds",
    ),
    Measure(
        "seconds_reward", "time in rewards", "seconds",
        lambda step: mean(step.seconds.reward, _ended(step)), "up", "reward_seconds",
    ),
    Measure(
        "seconds_waiting", "time waiting", "seconds",
        lambda step: mean(step.seconds.waiting, _ended(step)), "up", "waiting_seconds",
    ),
    Measure(
        "engine_queue", "waiting in the engine's queue", "seconds",
        lambda step: mean(of.queue_seconds, of.trajectories) if (of := step.engine) else None, "up",
        "queue_seconds",
    ),
    Measure(
        "engine_prefill", "prefill in the engine", "seconds",
        lambda step: mean(of.prefill_seconds, of.trajectories) if (of := step.engine) else None, "up",
        "prefill_seconds",
    ),
    Measure(
        "engine_decode", "decode in the engine", "seconds",
        lambda step: mean(of.decode_seconds, of.trajectories) if (of := step.engine) else None, "up",
        "decode_seconds",
    ),
    Measure(
        "first_token_p50", "first token of a request, median", "seconds",
        lambda step: mean(of.first_token_p50, of.requests) if (of := step.engine) else None, "up",
        "first_token_seconds",
    ),
    Measure(
        "first_token_p95", "first token of a request, p95", "seconds",
        lambda step: mean(of.first_token_p95, max(1, of.requests // 20)) if (of := step.engine) else None,
        "up", "first_token_seconds",
    ),
    Measure(
        "calls_without_request", "model calls without the engine's request", "share",
        lambda step: share(of.calls_without_request, step.replies) if (of := step.engine) else None, "up",
        "calls_without_request",
    ),
    Measure(
        "policy_lag", "policy lag, in steps", "number",
        lambda step: mean(step.policy_lag.mean, step.policy_lag.count), "up", "policy_lag",
    ),
    Measure(
        "not_trained", "trajectories not trained on", "share",
        lambda step: share(of.known - of.trained, of.known) if (of := step.trainer) else None, "up",
        "CASE WHEN reason IS NOT NULL THEN 1 ELSE 0 END",
        lambda step: dict(step.trainer.filtered) if step.trainer else {},
    ),
    Measure(
        "rewards_differing", "rewards trained on that are not the recorded ones", "share",
        lambda step: share(of.rewards_differing, of.rewards_compared) if (of := step.trainer) else None, "up",
        f"CASE WHEN {DIFFERS} THEN 1 ELSE 0 END",
    ),
    Measure(
        "advantage_magnitude", "advantage, magnitude", "number",
        lambda step: mean(of.advantage_magnitude, of.advantages) if (of := step.trainer) else None, None,
        "abs(advantage)",
    ),
    Measure(
        "trainer_lag", "policy lag, as trained", "number",
        lambda step: mean(of.lag_mean, of.lags) if (of := step.trainer) else None, "up", "trainer_lag",
    ),
    Measure(
        "mismatch_mean", "mismatch, mean", "number",
        lambda step: mean(of.mismatch_mean, of.mismatches) if (of := step.trainer) else None, "up",
        "mismatch_mean",
    ),
    Measure(
        "importance_ratio", "importance ratio", "number",
        lambda step: mean(of.importance_ratio, of.mismatches) if (of := step.trainer) else None, None,
        "importance_ratio",
    ),
)  # fmt: skip


_SHOWN: Final = (
    Measure("seconds_max", "duration, longest", "seconds", lambda step: mean(step.seconds.max, 1)),
    Measure("policy_lag_max", "policy lag, greatest", "number", lambda step: mean(step.policy_lag.max, 1)),
)
"""Figures that charts show, and steps are not compared by: the more trajectories, the greater they are."""
MEASURES: Final = {measure.name: measure for measure in (*_STEP_MEASURES, *_SHOWN)}
"""Name → measure of a step."""


def values_of(name: str, steps: Iterable[StepReport]) -> list[float | None]:
    """Return a measure's figure of each step; None where a step has none."""
    found = map(MEASURES[name].of, steps)
    return [None if value is None else value.value for value in found]


def measures_of(steps: Sequence[StepReport]) -> Iterator[Measure]:
    """Yield the measures of a step, and three of each tool that the steps call."""
    yield from _STEP_MEASURES
    for name in sorted({tool.name for step in steps for tool in step.tools if tool.name}):
        yield from _of_tool(name)


def _of_tool(name: str) -> Iterator[Measure]:
    def in_step(step: StepReport) -> Tool:
        return next((tool for tool in step.tools if tool.name == name), Tool(name, 0, 0, {}, None))

    yield Measure(
        f"tool_errors:{name}",
        f"tool {name}: errors",
        "share",
        lambda step: share(in_step(step).errors, in_step(step).calls),
        "up",
        "count(*) FILTER (WHERE call.status = 'error')",
        lambda step: dict(in_step(step).error_types),
        tool=name,
    )
    yield Measure(
        f"tool_calls:{name}",
        f"tool {name}: calls of a trajectory",
        "number",
        lambda step: _calls(in_step(step).calls, step.trajectories),
        order="count(*)",
        tool=name,
    )
    yield Measure(
        f"tool_seconds:{name}",
        f"tool {name}: seconds of a call",
        "seconds",
        lambda step: mean(in_step(step).seconds_mean, in_step(step).calls),
        "up",
        "avg(call.duration_ns)",
        tool=name,
    )
