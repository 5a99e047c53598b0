"""Record what the legacy trainer made of trajectories (``verl.trainer.ppo.ray_trainer``).

When the trainer updates the actor, its batch holds everything: rewards, advantages, log probabilities and
the mask. The trainers that inherit from this one (one step off-policy) are recorded as well.

The trainer reorders, filters and joins batches, and keeps nothing that tells a row from its siblings. Tracing
adds no column for that, because training must get the same batch as without tracing. But each row has objects
of its own (the list ``tool_rewards``, for example), which move with the row. So a row is recognized by such
an object.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from otel_rollout.integrations.verl import known_trajectories, seams
from otel_rollout.integrations.verl.known_trajectories import (
    GeneratedBatch,
    SampleIdentity,
    known,
    plain,
    report_unknown,
    without_doubles,
)
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.training_columns import (
    lags,
    record_columns,
    record_rewards,
    record_untrained,
    trained_columns,
)

# --- which trajectory a row is -----------------------------------------------------------------------------


_LARGE: Final = "multi_modal_inputs"
"""Column whose objects may hold images; if possible, rows are recognized by those of another one."""


def note_generated(manager: Any, prompts: Any, output: Any, chosen: frozenset[Any] | None) -> None:
    """Remember which trajectory each row of a generated batch is.

    Args:
        manager: verl's ``AgentLoopManager``.
        prompts: the batch that was generated from.
        output: the generated batch, in the same order.
        chosen: indices of the samples that are recorded; None for all.
    """
    validate = bool(prompts.meta_info.get("validate", False))
    if not _is_trained_here() or (validate and "rm_scores" in set(output.batch.keys())):
        return
    column = _telling_column(output.non_tensor_batch)
    if column is None:
        report_unknown(len(output), "rows of a generated batch have no object of their own")
        return
    greedy = _greedy(manager, prompts)
    rows = _identities(manager, prompts, validate, greedy)
    for row in rows:
        known().add(row)
    objects = list(output.non_tensor_batch[column])
    recorded = [row if chosen is None or row.sample_index in chosen else None for row in rows]
    by_object = dict(zip(map(id, objects), recorded, strict=True))
    baselines = {row for row, is_greedy in zip(rows, greedy, strict=True) if is_greedy}
    known().batches.append(GeneratedBatch(column, objects, by_object, baselines, validate))


def _is_trained_here() -> bool:
    """Return whether the trainer is patched in this process; otherwise no batch waits for its training."""
    trainer = getattr(sys.modules.get(_TRAINER), "RayPPOTrainer", None)
    return hasattr(getattr(trainer, "_update_actor", None), "__wrapped__")


def _telling_column(columns: Any) -> str | None:
    """Return the name of a column whose objects are all different, and belong to one row each."""
    for name in sorted(columns, key=lambda name: (name == _LARGE, name)):
        values = columns[name]
        if (
            getattr(values, "ndim", 0) == 1
            and all(type(value) in (list, dict) for value in values)
            and len(set(map(id, values))) == len(values)
        ):
            return str(name)
    return None


def _identities(manager: Any, prompts: Any, validate: bool, greedy: list[bool]) -> list[SampleIdentity]:
    """Return the identities that the workers give to the rows."""
    columns, step = prompts.non_tensor_batch, plain(prompts.meta_info.get("global_steps", -1))
    siblings = known_trajectories.group_size(manager, validate)
    size = len(prompts)
    part = -(-size // max(1, len(manager.agent_loop_workers)))
    indices = list(map(plain, columns.get("index", [row % part for row in range(size)])))
    priority = columns.get("priority", [None] * size)
    found: list[SampleIdentity] = []
    counted = 0
    for row, index in enumerate(indices):
        is_next = row % part > 0 and indices[row - 1] == index
        counted = counted + 1 if is_next else 0
        number = known_trajectories.sibling_index(counted, row % part, priority[row], siblings)
        found.append(SampleIdentity(step, index, siblings if greedy[row] else number, validate))
    return found


def _greedy(manager: Any, prompts: Any) -> list[bool]:
    """Return which rows are greedy baselines."""
    sampled = prompts.non_tensor_batch.get("__do_sample__")
    if sampled is None or known_trajectories.samples_greedily(manager):
        return [False] * len(prompts)
    return [not bool(value) for value in sampled]


def rows_of(data: Any) -> list[SampleIdentity | None]:
    """Return the trajectory of each row of a batch; None for a row of which nothing is recorded."""
    by_column: dict[str, dict[int, SampleIdentity | None]] = {}
    for batch in known().batches:
        by_column.setdefault(batch.column, {}).update(batch.rows)
    found: list[SampleIdentity | None] = [None] * len(data)
    unknown = set(range(len(data)))
    for column, rows in by_column.items():
        for row, value in enumerate(data.non_tensor_batch.get(column, ())):
            if id(value) in rows:
                found[row] = rows[id(value)]
                unknown.discard(row)
    report_unknown(len(unknown), "this process's AgentLoopManager has not generated them")
    return without_doubles(found)


def take_left_out(data: Any) -> tuple[list[SampleIdentity], list[SampleIdentity]]:
    """Forget the batches that a training batch is made of; return the trajectories that are not in it.

    A batch without any row in the training batch was left out as a whole, if a later batch has a row there.

    Returns:
        The trajectories that were left out, and the baselines.
    """
    batches = known().batches
    present = {id(value) for batch in batches for value in data.non_tensor_batch.get(batch.column, ())}
    used = [number for number, batch in enumerate(batches) if not present.isdisjoint(batch.rows)]
    left_out: list[SampleIdentity] = []
    baselines: list[SampleIdentity] = []
    for _ in range(max(used, default=-1) + 1):
        batch = batches.popleft()
        absent = [row for key, row in batch.rows.items() if key not in present]
        for row in without_doubles(absent) if not batch.validate else ():
            if row is not None:
                (baselines if row in batch.baselines else left_out).append(row)
    return left_out, baselines


def forget_validation() -> None:
    """Forget the batches of a validation, after their rewards have been recorded."""
    batches = known().batches
    kept = [batch for batch in batches if not batch.validate]
    batches.clear()
    batches.extend(kept)


# --- what training made of it ------------------------------------------------------------------------------


_TRAINER: Final = "verl.trainer.ppo.ray_trainer"
_LEFT_OUT: Final = "left out of the training batch"
_FILTERED: Final = "dynamic sampling: its group was filtered, or more groups than needed were left"
_BASELINE: Final = "greedy baseline of REMAX"
_NOT_RECORDED: Final = "it is not recorded what the legacy trainer makes of trajectories"


@seams.after(_TRAINER, "RayPPOTrainer._update_actor", _NOT_RECORDED)
def _actor_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    if is_recorded_here():
        _record(trainer, batch, has_actor_update=True)


@seams.after(_TRAINER, "RayPPOTrainer._update_critic", _NOT_RECORDED)
def _critic_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    if is_recorded_here() and trainer.config.trainer.critic_warmup > trainer.global_steps:
        _record(trainer, batch, has_actor_update=False)


def _record(trainer: Any, batch: Any, *, has_actor_update: bool) -> None:
    algorithm = trainer.config.algorithm
    rows = rows_of(batch)
    left_out, baselines = take_left_out(batch)
    oldest = batch.non_tensor_batch.get("min_global_steps", [None] * len(rows))
    behind = lags(_version(trainer), oldest)
    record_columns(rows, trained_columns(trainer, batch, rows, behind, has_actor_update=has_actor_update))
    filtering = algorithm.get("filter_groups", None)
    reason = _FILTERED if filtering and filtering.get("enable", False) else _LEFT_OUT
    reasons = [reason] * len(left_out) + [_BASELINE] * len(baselines)
    record_untrained([*left_out, *baselines], reasons)


def _version(trainer: Any) -> int:
    """Return the version of the weights before the update, as the sampler numbers versions."""
    publishes_at_start = hasattr(trainer, "_async_gen_next_batch")  # one step off-policy
    return int(trainer.global_steps) - (0 if publishes_at_start else 1)


@seams.after(_TRAINER, "RayPPOTrainer._compute_reward_colocate", _NOT_RECORDED)
def _rewarded(output: Any, _: Any, batch: Any, *__: Any, **___: Any) -> None:
    if is_recorded_here() and hasattr(output, "non_tensor_batch"):
        record_rewards(rows_of(batch), output)
        forget_validation()
