"""Record verifiers' rewards and metrics as scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory

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
