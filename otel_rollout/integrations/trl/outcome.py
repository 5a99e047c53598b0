"""Record what training makes of a batch: rewards, advantages, and the tokens that the loss counts."""

from __future__ import annotations

from typing import Any, Final

from otel_rollout.base.errors import warn_once
from otel_rollout.integrations.kit.training_outcome import record_training_outcome
from otel_rollout.integrations.trl import rewards
from otel_rollout.integrations.trl.batch import Batch

_UNCERTAIN: Final = (
    "what training made of a batch of TRL's is not recorded: there are {} advantages for {} rows"
)
_CUT_OFF: Final = "the completion was cut off, and mask_truncated_completions is set"
_OUT_OF_BOUNDS: Final = "the importance sampling ratio is out of bounds"
_MASKED: Final = "no token of the completion is in the loss"
_NO_REWARD: Final = "no reward function gave a reward"


def record(batch: Batch, result: Any) -> None:
    """Record the rewards of a batch, and what ``_generate_and_score_completions`` returned for its rows."""
    are_scored = rewards.record(batch)
    advantages = result["advantages"]
    if tuple(advantages.shape) != (len(batch.samples),):
        warn_once(_UNCERTAIN.format(tuple(advantages.shape), len(batch.samples)), once_for="trl advantages")
        return
    tokens, reasons = _trained_tokens(batch, result)
    for entry, advantage, is_scored, count, reason in zip(
        batch.samples, advantages.tolist(), are_scored, tokens, reasons, strict=True
    ):
        if batch.identity.validate:
            record_training_outcome(entry.trajectory, advantage=advantage)
            continue
        reason_ = reason or (None if is_scored else _NO_REWARD)
        record_training_outcome(
            entry.trajectory,
            advantage=advantage,
            trained=reason_ is None,
            trained_tokens=count,
            reason=reason_,
        )


def _trained_tokens(batch: Batch, result: Any) -> tuple[list[int], list[str | None]]:
    """Return how many tokens of each row the loss counts, and for rows without any the reason."""
    mask = result["completion_mask"]
    kept = [mask.sum(dim=1)]
    if "tool_mask" in result:
        mask = mask * result["tool_mask"]
    kept.append(mask.sum(dim=1))
    if "importance_sampling_ratio" in result:
        mask = mask * (result["importance_sampling_ratio"] != 0)
    kept.append(mask.sum(dim=1))
    is_cut = bool(getattr(batch.trainer, "mask_truncated_completions", False))
    counts = list(zip(*(column.tolist() for column in kept), strict=True))
    return [row[-1] for row in counts], [_reason(is_cut, *row) for row in counts]


def _reason(is_cut: bool, completed: int, of_model: int, counted: int) -> str | None:
    """Return why the loss counts no token of a row; None if it counts some.

    Args:
        is_cut: whether the trainer masks completions that were cut off.
        completed: tokens of the completion that the trainer has not masked.
        of_model: those that the model has generated.
        counted: those that the loss counts.
    """
    if counted:
        return None
    if not completed and is_cut:
        return _CUT_OFF
    return _OUT_OF_BOUNDS if of_model else _MASKED
