"""Record what training made of trajectories, under the same names for every framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import otel_rollout
from otel_rollout.base import training_scores
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.given import reading
from otel_rollout.record import runtime


@dataclass(frozen=True, kw_only=True)
class TrainingOutcomes:
    """What training made of a batch, one entry per trajectory.

    Each attribute is a list, or an array of numpy or torch of shape (batch,); None where nothing is known.
    The meanings are those of :mod:`otel_rollout.base.training_scores`.

    Attributes:
        reason: why the loss does not use a trajectory; counts where ``trained`` is false.
    """

    advantage: Any = None
    return_: Any = None
    trained_reward: Any = None
    kl_penalty: Any = None
    trained: Any = None
    trained_tokens: Any = None
    trained_step: Any = None
    policy_lag: Any = None
    logprob_diff_mean: Any = None
    logprob_diff_max: Any = None
    logprob_diff_token: Any = None
    logprob_diff_turn: Any = None
    logprob_diff_share: Any = None
    importance_ratio: Any = None
    reason: Sequence[str | None] | None = None


def wants_token_values() -> bool:
    """Return whether the settings ask for values per token."""
    active = runtime.current()
    return active is not None and active.settings.training_tokens


@internal_errors("recording what training made of trajectories")
def record_training_outcomes(
    outcomes: TrainingOutcomes,
    *,
    trajectory: Sequence[str | None] | None = None,
    step: Any = None,
    sample_index: Any = None,
    rollout_n: Any = None,
    validate: Any = False,
    token_values: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Record what training made of the trajectories of a batch. Never raises.

    The trajectories are named by their ids, or by their identities, as in :func:`otel_rollout.score_batch`.

    Args:
        outcomes: what training made of them.
        trajectory: ids of the trajectories.
        step: their steps.
        sample_index: their dataset rows.
        rollout_n: their indices in their groups.
        validate: whether their steps are validations.
        token_values: name → for each trajectory one array of shape (tokens,), or None.
    """
    with reading("outcomes="):
        given, reason = vars(outcomes), outcomes.reason
    scores = {
        name.rstrip("_"): values for name, values in given.items() if name != "reason" and values is not None
    }
    comments = {training_scores.TRAINED: reason} if reason is not None else None
    otel_rollout.score_batch(
        scores,
        trajectory=trajectory,
        step=step,
        sample_index=sample_index,
        rollout_n=rollout_n,
        validate=validate,
        comments=comments,
        token_values=token_values,
    )
