"""Record what training makes of a batch when it is scored: rewards, advantages, and log-probability mismatch.

What the loss makes of the rows is known later (:mod:`otel_rollout.integrations.trl.loss`).
"""

from __future__ import annotations

from typing import Any, Final

from otel_rollout.base.errors import warn_once
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes
from otel_rollout.integrations.trl import loss, mismatch, rewards
from otel_rollout.integrations.trl.batch import Batch
from otel_rollout.integrations.trl.loss_mask import LossMask

_UNCERTAIN: Final = (
    "what training made of a batch of TRL's is not recorded: there are {} advantages for {} rows"
)
_NO_REWARD: Final = "no reward function gave a reward"


def record(batch: Batch, result: Any) -> None:
    """Record the rewards of a batch, and what ``_generate_and_score_completions`` returned for its rows."""
    totals = rewards.record(batch)
    advantages = result["advantages"]
    if tuple(advantages.shape[:1]) != (len(batch.samples),):
        warn_once(_UNCERTAIN.format(tuple(advantages.shape), len(batch.samples)), once_for="trl advantages")
        return
    trajectories = [entry.trajectory for entry in batch.samples]
    ids = [each.trajectory.id if each.is_recording else None for each in trajectories]
    mask = LossMask.of(batch.trainer, result)
    per_row = advantages.tolist() if len(advantages.shape) == 1 else mask.mean(advantages)
    if batch.identity.validate:
        record_training_outcomes(TrainingOutcomes(advantage=per_row), trajectory=ids)
        return
    log_probs = result.get(mismatch.TRAINER)
    record_training_outcomes(
        TrainingOutcomes(
            advantage=per_row,
            importance_ratio=mask.importance_ratios(),
            **_rewards(batch, result, totals),
            **mismatch.columns(result, log_probs, mask),
        ),
        trajectory=ids,
        token_values=None if log_probs is None else mismatch.token_values(result, log_probs, mask),
    )
    is_scored = [True] * len(ids) if totals is None else (totals == totals).tolist()
    reasons = [r or (None if known else _NO_REWARD) for r, known in zip(mask.reasons, is_scored, strict=True)]
    loss.expect(batch, result, ids, mask.tokens, reasons)


def _rewards(batch: Batch, result: Any, totals: Any) -> dict[str, Any]:
    """Return the rewards from which TRL computes the advantages, and the penalties in them.

    RLOO clips the sum of the rewards and subtracts a penalty; GRPO takes the sum.
    """
    if totals is None:
        return {}
    trainer, clip = batch.trainer, getattr(batch.trainer, "reward_clip_range", None)
    if clip:
        totals = totals.clamp(min=clip[0], max=clip[1])
    has_penalty = "old_logps" in result and trainer.beta != 0.0
    if not has_penalty:
        return {"trained_reward": _known(totals)}
    if len(batch.log_probs) != 2:
        return {}
    of_policy, of_reference = batch.log_probs
    divergence = ((of_policy - of_reference) * result["completion_mask"]).sum(-1)
    penalties = trainer.beta * divergence
    return {"trained_reward": _known(totals - penalties), "kl_penalty": penalties.tolist()}


def _known(values: Any) -> list[float | None]:
    """Return numbers, and None for those that are missing."""
    return [None if value != value else value for value in values.tolist()]
