"""Record what the v1 trainer made of trajectories (``verl.trainer.ppo.v1.trainer_base``).

The trainer's tensors are in the TransferQueue. They are in its process while it computes advantages, and are
reduced there; the result is recorded as soon as the actor has been updated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from otel_rollout.base import training_scores
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.verl import v1_rows
from otel_rollout.integrations.verl.identities import Identity
from otel_rollout.integrations.verl.known_trajectories import known, take_generated_mask
from otel_rollout.integrations.verl.legacy_training import lags, trained_steps
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.training_columns import Columns, columns_of
from otel_rollout.integrations.verl.training_records import record_columns, record_rewards
from otel_rollout.integrations.verl.v1_outputs import one_row_per_trajectory

_DOING = "recording what training made of trajectories"
_LOSS = "it is not recorded what the v1 trainer makes of trajectories"


@dataclass
class _Step:
    """A call of the trainer's that is running or has run.

    Attributes:
        data: the tensors that the trainer had; None before and afterwards.
        rows: the trajectories of the training batch.
        columns: what training makes of them.
    """

    data: Any = None
    rows: list[Identity | None] | None = None
    columns: Columns | None = None


def install(module: ModuleType) -> None:
    """Wrap what computes advantages and rewards, and what updates actor and critic."""
    name = module.__name__.rpartition(".")[2]
    if name == "utils":
        seams.wrap(module, "compute_advantage_for_multi_trajectories", after(_note_data, _DOING), _LOSS)
    elif name == "reward_loop":
        loss = "rewards that the v1 trainer computes after the rollouts are not recorded"
        seams.wrap(module, "RewardLoopManager.compute_rm_score", after(_note_data, _DOING), loss)
    else:
        seams.wrap(module, "PPOTrainer._compute_advantage", _with_data(_reduce), _LOSS)
        seams.wrap(module, "PPOTrainer._compute_reward_colocate", _with_data(_record_rewards), _LOSS)
        seams.wrap(module, "PPOTrainer._update_actor", after(_actor_updated, _DOING), _LOSS)
        seams.wrap(module, "PPOTrainer._update_critic", after(_critic_updated, _DOING), _LOSS)


def _with_data(observe: Callable[[Any, Any, Any], None]) -> Callable[..., Any]:
    """Return a wrapper that calls ``observe(trainer, batch, data)`` with the tensors that the method had."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            step = known().v1_step = _Step()
            result = original(self, batch, *args, **kwargs)
            with internal_errors(_DOING):
                data, step.data = step.data, None
                if data is not None and is_recorded_here():
                    observe(self, batch, data)
            return result

        return call

    return wrapper


def _note_data(data: Any, *_: Any, **__: Any) -> None:
    step = known().v1_step
    if step is not None and step.columns is None:
        step.data = data


def _reduce(trainer: Any, batch: Any, data: Any) -> None:
    step = known().v1_step
    config = trainer.config
    has_update = config.trainer.critic_warmup <= trainer.global_steps
    correction = config.algorithm.get("rollout_correction", None)
    rows = v1_rows.rows_of_keys(batch.keys, batch.tags)
    columns = columns_of(data, take_generated_mask(data), correction, has_actor_update=has_update)
    oldest = [tag.get("min_global_steps") for tag in batch.tags]
    columns.scores[training_scores.POLICY_LAG] = lags(trainer.global_steps - 1, oldest)
    columns.scores[training_scores.TRAINED_STEP] = trained_steps(rows, trainer.global_steps)
    step.rows, step.columns = one_row_per_trajectory(rows, batch.keys, columns)


def _record_rewards(_: Any, batch: Any, data: Any) -> None:
    # Of several outputs of a trajectory, the last has its reward.
    order = sorted(range(len(batch.keys)), key=lambda row: int(str(batch.keys[row]).rpartition("_")[2]))
    rows = v1_rows.rows_of_keys(batch.keys, batch.tags)
    last = {rows[number]: number for number in order}
    record_rewards([row if last[row] == number else None for number, row in enumerate(rows)], data)


def _actor_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    _record(batch)


def _critic_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    if trainer.config.trainer.critic_warmup > trainer.global_steps:
        _record(batch)


def _record(batch: Any) -> None:
    step, known().v1_step = known().v1_step, None
    if step is not None and step.rows is not None and step.columns is not None:
        record_columns(step.rows, step.columns)
        v1_rows.forget_prompts(v1_rows.session_of(key)[0] for key in batch.keys)
