"""Reduce the tensors of verl's training batch to one value per row, and record them, one call per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import otel_rollout
from otel_rollout.base import training_scores
from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.kit.token_sums import counts, means, sums
from otel_rollout.integrations.kit.training_outcome import wants_token_values
from otel_rollout.integrations.verl.known_trajectories import SampleIdentity, take_generated_mask
from otel_rollout.integrations.verl.trajectory import is_score

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


def trained_columns(
    trainer: Any,
    data: Any,
    rows: Sequence[SampleIdentity | None],
    behind: list[int | None],
    *,
    has_actor_update: bool,
) -> Columns:
    """Return what a trainer's step made of a batch.

    Args:
        trainer: the trainer.
        data: a ``DataProto`` after its advantages have been computed.
        rows: the trajectories of its rows.
        behind: how many versions the oldest weights of each row are behind.
        has_actor_update: whether the actor is trained on the batch.
    """
    correction = trainer.config.algorithm.get("rollout_correction", None)
    columns = columns_of(data, take_generated_mask(data), correction, has_actor_update=has_actor_update)
    columns.scores[training_scores.POLICY_LAG] = behind
    step = int(trainer.global_steps)  # if it is the trajectory's own, there is nothing to tell
    columns.scores[training_scores.TRAINED_STEP] = [
        None if row is None or row.step == step else step for row in rows
    ]
    return columns


def lags(version: int, oldest: Any) -> list[int | None]:
    """Return how many versions each row's oldest weights are behind; None for a row without versions."""
    return [version - int(one) if hasattr(one, "__index__") else None for one in oldest]


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
    return Columns(scores, reasons, _token_values(batch, names, mask) if wants_token_values() else {})


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


# --- recording ---------------------------------------------------------------------------------------------


def record_columns(rows: Sequence[SampleIdentity | None], columns: Columns) -> None:
    """Record what training made of the rows of a batch; a trajectory that is in it twice is recorded once."""
    chosen = _first_rows(rows)
    scores = {
        name: [values[row] for row in chosen]
        for name, values in columns.scores.items()
        if any(values[row] is not None for row in chosen)
    }
    if not scores:
        return
    tokens: dict[str, Sequence[Any]] = {
        name: [values[row] for row in chosen] for name, values in columns.tokens.items()
    }
    comments = {training_scores.TRAINED: [columns.reasons[row] for row in chosen]}
    otel_rollout.score_batch(scores, **_named(rows, chosen), comments=comments, token_values=tokens or None)


def record_untrained(
    rows: Sequence[SampleIdentity], reasons: Sequence[str], lags: Sequence[int | None] = ()
) -> None:
    """Record that training did not use some trajectories."""
    if not rows:
        return
    scores: dict[str, Sequence[Any]] = {
        training_scores.TRAINED: [False] * len(rows),
        training_scores.TRAINED_TOKENS: [0] * len(rows),
    }
    if any(lag is not None for lag in lags):
        scores[training_scores.POLICY_LAG] = lags
    comments = {training_scores.TRAINED: reasons}
    otel_rollout.score_batch(scores, **_named(rows, range(len(rows))), comments=comments)


def record_rewards(rows: Sequence[SampleIdentity | None], output: Any) -> None:
    """Record rewards that the trainer has computed after the rollouts, as the worker records other rewards.

    Args:
        rows: the trajectories.
        output: verl's ``DataProto`` with ``rm_scores`` and the reward's extra information.
    """
    chosen = _first_rows(rows)
    rewards = output.batch["rm_scores"].sum(-1).tolist()
    scores = {"reward": [rewards[row] for row in chosen]}
    for name in output.meta_info.get("reward_extra_keys", []):
        values = [output.non_tensor_batch[name][row] for row in chosen]
        if name != "reward":
            scores[str(name)] = [value if is_score(value) else None for value in values]
    if chosen:
        otel_rollout.score_batch(scores, **_named(rows, chosen))


def _first_rows(rows: Sequence[SampleIdentity | None]) -> list[int]:
    """Return the numbers of the rows to record."""
    first: dict[SampleIdentity, int] = {}
    for number, row in enumerate(rows):
        if row is not None:
            first.setdefault(row, number)
    return list(first.values())


def _named(rows: Sequence[SampleIdentity | None], chosen: Sequence[int]) -> dict[str, Any]:
    """Return the arguments that name trajectories."""
    named = [row for row in (rows[number] for number in chosen) if row is not None]
    return {name: [getattr(row, name) for row in named] for name in SampleIdentity._fields}
