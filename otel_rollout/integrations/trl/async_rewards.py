"""Record rewards and advantages of TRL's asynchronous GRPO worker.

A group is scored after its trajectories have ended. So the spans of the reward functions and the scores are
added to ended trajectories.
"""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import otel_rollout
from otel_rollout import runtime
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.integrations.kit.open_operation import OpenOperation
from otel_rollout.integrations.kit.seams import around
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes
from otel_rollout.integrations.trl import async_groups
from otel_rollout.integrations.trl.async_rollouts import Rollout, rollouts_of
from otel_rollout.integrations.trl.patched_modules import LOOP, WORKER, seams

_REWARD_PREFIX = "rewards/"
"""Prefix of a reward function's name among the metrics of a sample."""
_SUM = "reward"
"""Name of the sum of the rewards among the metrics of a sample, and of its score."""
_NO_ROW = "none of its tokens can be trained"


@seams.around(WORKER, f"{LOOP}._score_group", "rewards and advantages of its worker are not traced")
async def _score_group(
    original: Callable[..., Any], /, self: Any, group: Any, *args: Any, **kwargs: Any
) -> Any:
    if runtime.current() is None:
        return await original(self, group, *args, **kwargs)
    rollouts = _take(self, group)
    functions = self.reward_funcs
    is_async = getattr(sys.modules.get(WORKER), "is_async_callable", inspect.iscoroutinefunction)
    calls = [_RewardCall(function, is_async(function)) for function in functions]
    self.reward_funcs = [call.function for call in calls]
    try:
        samples = await original(self, group, *args, **kwargs)
    finally:
        self.reward_funcs = functions
        _record_calls(self, rollouts, calls)
    _record_scores(rollouts, group, samples)
    return samples


@internal_errors("looking up the trajectories of a group")
def _take(loop: Any, group: Any) -> list[Rollout | None]:
    """Return the group's trajectories in TRL's order; None for those that are not recorded."""
    rollouts = rollouts_of(loop)
    return [rollouts.take(completion) for completion in group.completions]


# --- the calls of reward functions -------------------------------------------------------------------------


class _RewardCall:
    """One call of a reward function, which rewards a whole group."""

    def __init__(self, function: Callable[..., Any], is_async: bool) -> None:
        self.times: tuple[int, int] | None = None
        self.rewards: Sequence[Any] = ()
        self.error: BaseException | None = None
        self.function = around(self._await if is_async else self._call)(function)
        """The function, noting times and result of its call."""

    async def _await(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with self._timed():
            self.rewards = rewards = await function(*args, **kwargs)
        return rewards

    def _call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with self._timed():
            self.rewards = rewards = function(*args, **kwargs)
        return rewards

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start_ns = time.time_ns()
        try:
            yield
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.times = (start_ns, time.time_ns())


@internal_errors("recording calls of reward functions")
def _record_calls(loop: Any, rollouts: list[Rollout | None] | None, calls: list[_RewardCall]) -> None:
    """Record each reward function in each trajectory of the group."""
    for name, call in zip(loop.reward_func_names, calls, strict=False):
        for index, rollout in enumerate(rollouts or ()):
            if rollout is not None and call.times is not None:
                operation = OpenOperation(
                    str(name),
                    semconv.KIND_EVALUATOR,
                    rollout.context,
                    attributes={semconv.BATCH_SIZE: len(rollouts or ())},
                    start_ns=call.times[0],
                )
                reward = call.rewards[index] if index < len(call.rewards) else None
                operation.end(output=reward, error=call.error, end_ns=call.times[1])


# --- scores ------------------------------------------------------------------------------------------------


@internal_errors("recording rewards of TRL's")
def _record_scores(rollouts: list[Rollout | None] | None, group: Any, samples: Sequence[Any]) -> None:
    """Record the group's rewards and advantages: TRL's samples are the training rows of its trajectories."""
    counts = [len(rows) for rows in group.completions_sequences]
    if rollouts is None or len(counts) != len(rollouts) or sum(counts) != len(samples):
        warn_once("TRL's worker returned other training rows than its trajectories have: no rewards recorded")
        return
    rows_of = [
        None if rollout is None else (str(rollout.trajectory.id), rollout.oldest_version(group.model_version))
        for rollout in rollouts
    ]
    async_groups.publish(
        group.group_id, [row for row, count in zip(rows_of, counts, strict=True) for _ in range(count)]
    )
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    rows = [samples[first] if count else None for first, count in zip(firsts, counts, strict=True)]
    ids = [None if rollout is None else rollout.trajectory.id for rollout in rollouts]
    otel_rollout.score_batch(_rewards(rows), trajectory=ids)
    record_training_outcomes(
        TrainingOutcomes(
            advantage=[None if row is None else row.advantage for row in rows],
            trained_reward=_column(rows, _SUM),
            trained=[False if row is None else None for row in rows],
            reason=[_NO_ROW if row is None else None for row in rows],
        ),
        trajectory=ids,
    )


def _rewards(rows: Sequence[Any]) -> dict[str, list[float | None]]:
    """Return the rewards of training rows by the score's name; None where a function gave none."""
    names = dict.fromkeys(name for row in rows if row is not None for name in row.metrics)
    found = {n.removeprefix(_REWARD_PREFIX): _column(rows, n) for n in names if n.startswith(_REWARD_PREFIX)}
    return found | {_SUM: _column(rows, _SUM)}  # the sum wins over a function that is named so


def _column(rows: Sequence[Any], name: str) -> list[float | None]:
    values = [math.nan if row is None else row.metrics.get(name, math.nan) for row in rows]
    return [None if math.isnan(value) else value for value in values]
