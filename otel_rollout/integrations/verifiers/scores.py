"""Record verifiers' rewards, metrics and judges: their calls as operations, their values as scores.

An environment's ``finalize`` gives rewards after it has seen all rollouts of an episode, and a trainer stamps
step and policy versions when it uses the episode. Both are recorded as scores, after the rollout has ended.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from opentelemetry import trace as spans

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.kit.spans import set_attributes
from otel_rollout.integrations.verifiers import chat, rollouts, seams

REWARD = "reward"
"""Score of the weighted sum of all rewards."""


@internal_errors("recording rewards of verifiers")
def record_all(trajectory: OpenTrajectory, trace: Any) -> None:
    """Record the rewards and metrics of a rollout that ends. Never raises."""
    for name, value, comment in of_trace(trace):
        trajectory.score(name, value, comment)


def of_trace(trace: Any) -> Iterator[tuple[str, float, str | None]]:
    """Yield name, value and comment of a trace's scores.

    A reward function that gave nothing has no score. Without any reward there is no sum of them.
    """
    for name, value in trace.metrics.items():
        if name not in trace.rewards and name != REWARD and is_score(value):
            yield name, value, None
    given = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    for name, reward in given.items():
        if name != REWARD and is_score(reward.score):
            yield name, reward.score, comment_of(reward.weight)
    if given and is_score(trace.reward):
        yield REWARD, trace.reward, None


def comment_of(weight: float) -> str | None:
    """Return the comment of a reward: its weight in the sum, unless it is 1."""
    return None if weight == 1 else f"weight {weight:g}"


def is_score(value: Any) -> bool:
    """Return whether a reward or metric is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


# --- calls of reward functions, metrics and judges ---------------------------------------------------------


@seams.around(
    "verifiers.v1.utils.decorators", "invoke", "rewards and metrics have no spans; their values are recorded"
)
def _invoke(original: Function, /, fn: Any, available: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a hook with the arguments that it names."""
    result = original(fn, available, *args, **kwargs)
    with internal_errors("recording a reward of verifiers"):
        name = _name_of(fn)
        traced = None if name is None else rollouts.running(available.get("trace"))
        if name is not None and traced is not None and inspect.isawaitable(result):
            return _evaluate(traced.trajectory, name, result)
    return result


def _name_of(hook: Any) -> str | None:
    """Return the name of a hook that scores; None for other hooks."""
    if getattr(hook, "reward", False) is True or getattr(hook, "metric", False) is True:
        return str(hook.__name__)
    judge = getattr(hook, "__self__", None)
    name = getattr(judge, "reward_name", None)
    return name if getattr(hook, "__name__", "") == "score" and isinstance(name, str) else None


async def _evaluate(trajectory: OpenTrajectory, name: str, result: Awaitable[Any]) -> Any:
    """Await a hook's result inside a span below the rollout's root."""

    @otel_rollout.rollout_trace_op(name=name, kind=semconv.KIND_EVALUATOR, capture="outputs")
    async def evaluate() -> Any:
        return await result

    with trajectory.inside():
        return await evaluate()


@seams.around("verifiers.v1.judge", "Judge.complete", "judges' model calls are not traced")
async def _complete(original: Function, /, self: Any, messages: Any, *args: Any, **kwargs: Any) -> Any:
    if rollouts.running(kwargs.get("trace")) is None:
        return await original(self, messages, *args, **kwargs)
    shown = None
    with internal_errors("showing what a judge is asked"):
        shown = messages if isinstance(messages, str) else chat.shown(messages)
    return await _judge(lambda: original(self, messages, *args, **kwargs), self.config.model, shown)


@otel_rollout.rollout_trace_op(name="judge", kind=semconv.KIND_CHAIN, exclude=("call", "model"))
async def _judge(call: Callable[[], Awaitable[Any]], model: Any, messages: Any) -> Any:
    """Have verifiers ask the judge. The call is no turn of the agent, but an operation inside the reward."""
    response = await call()
    usage = getattr(response, "usage", None)
    attributes = {
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: getattr(usage, "input_tokens", None),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: getattr(usage, "completion_tokens", None),
    }
    set_attributes(spans.get_current_span(), attributes)
    return response


# --- what becomes known after a rollout has ended ----------------------------------------------------------


@seams.after("verifiers.v1.trace", "Trace.record_reward", "rewards given after a rollout are not recorded")
def _reward(_: None, trace: Any, name: str, *__: Any, **___: Any) -> None:
    trajectory = rollouts.ended(trace)
    if trajectory is None:
        return
    reward = trace.rewards[name]
    if name != REWARD and is_score(reward.score):
        comment = comment_of(reward.weight)
        otel_rollout.score(name, reward.score, comment=comment, trajectory=trajectory)
    if is_score(trace.reward):
        otel_rollout.score(REWARD, trace.reward, trajectory=trajectory)


@seams.after("verifiers.v1.trace", "Trace.record_metric", "metrics given after a rollout are not recorded")
def _measure(_: None, trace: Any, name: str, *__: Any, **___: Any) -> None:
    trajectory, value = rollouts.ended(trace), trace.metrics[name]
    if trajectory is not None and name not in (REWARD, *trace.rewards) and is_score(value):
        otel_rollout.score(name, value, trajectory=trajectory)


@seams.after("verifiers.v1.episode", "Episode.record_run", "rollouts for a trainer have no step")
def _stamp(_: None, episode: Any, run: Any) -> None:
    """Record the step, the policy versions and the group that a trainer stamps on an episode."""
    work = getattr(run, "work", None)
    if work is None:  # an evaluation has none
        return
    facts = {
        semconv.STEP: work.step,
        semconv.VALIDATE: work.type == "eval",
        semconv.POLICY_VERSION_MIN: getattr(work.policy, "start", None),
        semconv.POLICY_VERSION_MAX: getattr(work.policy, "end", None),
        semconv.GROUP_ID: getattr(episode.group, "id", None),
    }
    known = {semconv.short_name(name): fact for name, fact in facts.items() if fact is not None}
    for trace in episode.traces:
        trajectory = rollouts.ended(trace)
        if trajectory is not None:
            for name, fact in known.items():
                otel_rollout.score(name, fact, trajectory=trajectory)
