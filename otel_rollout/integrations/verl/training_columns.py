"""Reduce the tensors of verl's training batch to one value per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from otel_rollout import runtime
from otel_rollout.base import training_scores
from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.kit.token_sums import counts, means, sums

REJECTED: Final = "rejected: sampler and trainer differ too much (rollout_correction)"
WARM_UP: Final = "critic warm-up: only the critic was trained"
_NO_TOKENS: Final = "no token counts for the loss"
_TOKEN_VALUES: Final = {
    "sampler_logprobs": "rollout_log_probs",
    "trainer_logprobs": "old_log_probs",
    "advantages": "advantages",
    "mask": "response_mask",
}
"""Name of values per token → tensor of the batch."""


@dataclass
class Columns:
    """What training made of the rows of a batch.

    Attributes:
        scores: the score's name → its value for each row; None where nothing is known.
        reasons: why the loss did not use a row.
        tokens: name → values per token of each row; empty unless they are asked for.
    """

    scores: dict[str, list[Any]]
    reasons: list[str | None]
    tokens: dict[str, list[Any]]


def columns_of(data: Any, generated_mask: Any, correction: Any, *, has_actor_update: bool) -> Columns:
    """Return what training made of a batch.

    Args:
        data: a ``DataProto`` after its advantages have been computed.
        generated_mask: the batch's mask before tokens were rejected.
        correction: configuration of verl's ``rollout_correction``; None without.
        has_actor_update: whether the actor is trained on the batch.
    """
    batch, mask = data.batch, data.batch["response_mask"]
    names = set(batch.keys())
    is_bypassed = bool(correction and correction.get("bypass_mode", False))
    trained_tokens = counts(mask)
    generated = trained_tokens if generated_mask is mask else counts(generated_mask)
    scores = _signal(batch, names, mask)
    pairs = zip(trained_tokens, generated, strict=True)
    reasons = [_reason(left, made, has_actor_update) for left, made in pairs]
    if not (is_bypassed and correction.get("rollout_rs", None)):  # else the actor rejects, in other processes
        scores[training_scores.TRAINED] = [reason is None for reason in reasons]
        scores[training_scores.TRAINED_TOKENS] = trained_tokens if has_actor_update else [0] * len(reasons)
    if {"rollout_log_probs", "old_log_probs"} <= names and not is_bypassed:  # else one is a copy of the other
        scores |= logprob_mismatch(batch["rollout_log_probs"], batch["old_log_probs"], generated_mask)
    if "rollout_is_weights" in names:
        scores[training_scores.IMPORTANCE_RATIO] = means(batch["rollout_is_weights"], mask)
    return Columns(scores, reasons, _token_values(batch, names, mask) if _wants_tokens() else {})


def _signal(batch: Any, names: set[str], mask: Any) -> dict[str, list[Any]]:
    """Return the columns of the reward, of the advantage and of the return."""
    scores: dict[str, list[Any]] = {}
    if "advantages" in names:
        advantage = scores[training_scores.ADVANTAGE] = means(batch["advantages"], mask)
        if "returns" in names and not _is_same(batch["returns"], batch["advantages"]):
            returns = means(batch["returns"], mask)
            if returns != advantage:
                scores[training_scores.RETURN] = returns
    if "token_level_rewards" in names:
        rewards = batch["token_level_rewards"]
        scores[training_scores.TRAINED_REWARD] = sums(rewards)
        given = batch["token_level_scores"] if "token_level_scores" in names else rewards
        if not _is_same(given, rewards):
            scores[training_scores.KL_PENALTY] = sums(given, rewards)
    return scores


def _is_same(one: Any, other: Any) -> bool:
    return bool(one is other or one.data_ptr() == other.data_ptr())


def _reason(trained: int, generated: int, has_actor_update: bool) -> str | None:
    if not has_actor_update:
        return WARM_UP
    if trained:
        return None
    return REJECTED if generated else _NO_TOKENS


def _wants_tokens() -> bool:
    active = runtime.current()
    return active is not None and bool(getattr(active.settings, "training_tokens", False))


def _token_values(batch: Any, names: set[str], mask: Any) -> dict[str, list[Any]]:
    """Return views of the rows of the tensors per token, without the padding behind the last token."""
    if "attention_mask" in names:
        lengths = counts(batch["attention_mask"][:, -mask.shape[1] :])
    else:  # padded by the v1 trainer, which has no mask of the padding
        last = [row.nonzero() for row in mask]
        lengths = [int(found[-1]) + 1 if len(found) else 0 for found in last]
    return {
        name: [row[:length] for row, length in zip(batch[tensor].detach(), lengths, strict=True)]
        for name, tensor in _TOKEN_VALUES.items()
        if tensor in names
    }
