"""Record what the legacy trainer made of trajectories (``verl.trainer.ppo.ray_trainer``).

When the trainer updates the actor, its batch holds everything: rewards, advantages, log probabilities and
the mask. The trainers that inherit from this one (one step off-policy) are recorded as well.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from otel_rollout.base import training_scores
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.verl import legacy_rows
from otel_rollout.integrations.verl.identities import Identity
from otel_rollout.integrations.verl.known_trajectories import take_generated_mask
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.training_columns import columns_of
from otel_rollout.integrations.verl.training_records import record_columns, record_rewards, record_untrained

_LEFT_OUT: Final = "left out of the training batch"
_FILTERED: Final = "dynamic sampling: its group was filtered, or more groups than needed were left"
_BASELINE: Final = "greedy baseline of REMAX"
_NOT_RECORDED: Final = "it is not recorded what the legacy trainer makes of trajectories"


def install(module: ModuleType) -> None:
    """Wrap the methods that update actor and critic, and the one that computes rewards."""
    trainer = getattr(module, "RayPPOTrainer", None)
    if "_update_actor" not in vars(trainer or object):  # before 0.7 it is a part of fit()
        seams.warn_missing("RayPPOTrainer._update_actor", _NOT_RECORDED)
        return
    doing = "recording what training made of trajectories"
    seams.wrap(module, "RayPPOTrainer._update_actor", after(_actor_updated, doing), _NOT_RECORDED)
    for name, observe in (("_update_critic", _critic_updated), ("_compute_reward_colocate", _rewarded)):
        if name in vars(trainer or object):
            seams.wrap(module, f"RayPPOTrainer.{name}", after(observe, doing), _NOT_RECORDED)


def _actor_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    if is_recorded_here():
        _record(trainer, batch, has_actor_update=True)


def _critic_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    if is_recorded_here() and trainer.config.trainer.critic_warmup > trainer.global_steps:
        _record(trainer, batch, has_actor_update=False)


def _record(trainer: Any, batch: Any, *, has_actor_update: bool) -> None:
    algorithm = trainer.config.algorithm
    rows = legacy_rows.rows_of(batch)
    left_out, baselines = legacy_rows.take_left_out(batch)
    correction = algorithm.get("rollout_correction", None)
    columns = columns_of(batch, take_generated_mask(batch), correction, has_actor_update=has_actor_update)
    oldest = batch.non_tensor_batch.get("min_global_steps", [None] * len(rows))
    columns.scores[training_scores.POLICY_LAG] = lags(_version(trainer), oldest)
    columns.scores[training_scores.TRAINED_STEP] = trained_steps(rows, trainer.global_steps)
    record_columns(rows, columns)
    filtering = algorithm.get("filter_groups", None)
    reason = _FILTERED if filtering and filtering.get("enable", False) else _LEFT_OUT
    reasons = [reason] * len(left_out) + [_BASELINE] * len(baselines)
    record_untrained([*left_out, *baselines], reasons)


def _version(trainer: Any) -> int:
    """Return the version of the weights before the update, in the numbers that the sampler gets."""
    if hasattr(
        trainer, "_async_gen_next_batch"
    ):  # one step off-policy, which publishes weights at a step's start
        return int(trainer.global_steps)
    return int(trainer.global_steps) - 1


def lags(version: int, oldest: Any) -> list[int | None]:
    """Return how many versions each row's oldest weights are behind; None for a row without versions."""
    return [version - int(one) if hasattr(one, "__index__") else None for one in oldest]


def trained_steps(rows: list[Identity | None], step: int) -> list[int | None]:
    """Return the step that learns from each trajectory, where it is not the trajectory's own."""
    return [None if row is None or row.step == step else int(step) for row in rows]


def _rewarded(output: Any, _: Any, batch: Any, *__: Any, **___: Any) -> None:
    if is_recorded_here() and hasattr(output, "non_tensor_batch"):
        record_rewards(legacy_rows.rows_of(batch), output)
        legacy_rows.forget_validation()
