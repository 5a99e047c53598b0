"""Say what a trainer made of a generated trajectory, and plant the faults of a trainer."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

from tests.analysis.generated_faults import LEFT_OUT_GROUPS, PASSED_OVER, Faults

_BETA: Final = 0.05
_OFF: Final = 0.4
"""Nats by which a faulty sampler is off in the second turn."""
_OLD: Final = 6
"""Further versions of lag of a trajectory from a replay buffer."""


def outcome(
    faults: Faults, step: int, group: str, draw: random.Random, tokens: Sequence[int], lag: int,
    reward: float | None, is_cut: bool,
) -> tuple[dict[str, Any], str | None]:  # fmt: skip
    """Return the scores that a trainer gives a trajectory, and why the loss leaves it out.

    Args:
        faults: the run's faults.
        step: the trajectory's step.
        group: names the group for draws that all siblings share.
        draw: draws for this trajectory alone.
        tokens: tokens of each reply.
        lag: versions from the oldest weights of the trajectory to the trainer's.
        reward: the recorded reward.
        is_cut: whether the last reply was cut at its length.
    """
    reason = "overlong" if is_cut else None
    if faults.hits(PASSED_OVER, step, draw):
        return {}, None
    if faults.hits(LEFT_OUT_GROUPS, step, random.Random(group)):
        reason = "too old for the replay buffer"
    is_left_out = faults.hits("training_left_out", step, draw)
    advantage = (reward or 0.0) - 0.5 + draw.gauss(0, 0.1)
    mean = draw.lognormvariate(-4.4, 0.4)
    largest, turn = draw.lognormvariate(-1.2, 0.5), draw.randrange(len(tokens)) + 1
    if len(tokens) > 1 and faults.hits("sampler_mismatch", step, draw):
        mean += _OFF * tokens[1] / sum(tokens)
        largest, turn = largest + _OFF, 2
    penalty = _BETA * draw.random()
    scores: dict[str, Any] = {
        "trained": reason is None and not is_left_out,
        "advantage": math.nan if faults.hits("training_not_finite", step, draw) else advantage,
        "policy_lag": lag + _OLD * faults.hits("training_lag", step, draw),
        "logprob_diff_mean": mean,
        "logprob_diff_max": largest,
        "logprob_diff_turn": turn,
    }
    if reward is not None:
        shaped = 0.3 if faults.hits("trained_reward_differs", step, draw) else 0.0
        scores |= {"trained_reward": reward - penalty - shaped, "kl_penalty": penalty}
    return scores, reason
