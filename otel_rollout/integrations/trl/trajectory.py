"""Record one trajectory per row of a generation batch, from the prompt to the advantage.

``_generate_and_score_completions`` generates and scores all rows of a process together. What the loss makes
of the rows is known later (:mod:`otel_rollout.integrations.trl.loss`).
"""

from __future__ import annotations

import time
from typing import Any, Final

import otel_rollout
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes
from otel_rollout.integrations.trl import generation, loss, rewards
from otel_rollout.integrations.trl.batch import GenerationBatch, Sample, being_current
from otel_rollout.integrations.trl.loss import LossMask
from otel_rollout.integrations.trl.patched_modules import TRAINERS, seams
from otel_rollout.integrations.trl.progress import BatchIdentity, identify
from otel_rollout.record import runtime


@seams.around(TRAINERS, "_generate_and_score_completions", "its rollouts are not traced")
def _generate_and_score(original: Function, /, self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    batch = _begin(self, inputs)
    if batch is None:
        return original(self, inputs, *args, **kwargs)
    try:
        with being_current(batch):
            result = original(self, inputs, *args, **kwargs)
    except BaseException as error:
        _end(batch, error)
        raise
    with internal_errors("recording what TRL made of a batch"):
        record_outcome(batch, result)
    _end(batch, None)
    return result


def _begin(trainer: Any, inputs: Any) -> GenerationBatch | None:
    """Start a trajectory for each row; None if nothing is recorded."""
    if runtime.current() is None:
        return None
    with internal_errors("starting the trajectories of a TRL batch"):
        identity = identify(trainer, len(inputs))
        id_ = f"{trainer.accelerator.process_index}-{time.time_ns():x}"
        samples: list[Sample] = []
        batch = GenerationBatch(trainer, identity, samples, id_)
        try:
            for row, columns in enumerate(inputs):
                samples.append(Sample(_start(identity, row, columns)))
        except BaseException as error:
            _end(batch, error)
            raise
        return batch
    return None


def _start(identity: BatchIdentity, row: int, columns: Any) -> OpenTrajectory:
    environment = columns.get("environment")
    extra: dict[str, Any] = {"environment": environment} if isinstance(environment, str) else {}
    return OpenTrajectory(
        otel_rollout.rollout_trace_attr(
            step=identity.step,
            sample_index=identity.sample_index(row),
            rollout_n=identity.rollout_n(row),
            validate=identity.validate,
            group_size=identity.group_size,
            policy_version_min=identity.policy_version,
            policy_version_max=identity.policy_version,
            **extra,
        )
    )


def _end(batch: GenerationBatch, error: BaseException | None) -> None:
    """End all trajectories. Never raises."""
    with internal_errors("recording prompts and completions of a TRL batch"):
        rewards.record_answers(batch, is_over=error is None)
    for entry in batch.samples:
        with internal_errors("ending a TRL trajectory"):
            generation.settle(batch, entry)
        entry.trajectory.end(error)


# --- what training makes of a batch when it is scored ------------------------------------------------------


_UNCERTAIN: Final = "what training made of a TRL batch is not recorded: there are {} advantages for {} rows"
_NO_REWARD: Final = "no reward function gave a reward"


def record_outcome(batch: GenerationBatch, result: Any) -> None:
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
    log_probs = result.get(loss.TRAINER)
    record_training_outcomes(
        TrainingOutcomes(
            advantage=per_row,
            importance_ratio=mask.importance_ratios(),
            **_rewards(batch, result, totals),
            **loss.mismatch_columns(result, log_probs, mask),
        ),
        trajectory=ids,
        token_values=None if log_probs is None else loss.token_values(result, log_probs, mask),
    )
    is_scored = [True] * len(ids) if totals is None else (totals == totals).tolist()
    reasons = [r or (None if known else _NO_REWARD) for r, known in zip(mask.reasons, is_scored, strict=True)]
    loss.expect(batch, result, ids, mask.tokens, reasons)


def _rewards(batch: GenerationBatch, result: Any, totals: Any) -> dict[str, Any]:
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
    """Return numbers as a list, with None in place of NaN."""
    return [None if value != value else value for value in values.tolist()]
