"""Record what the v1 trainer made of trajectories (``verl.trainer.ppo.v1.trainer_base``).

The trainer's tensors are in the TransferQueue. While the trainer computes advantages, its process has them,
and they are reduced there. The result is recorded as soon as the actor has been updated.

That trainer keeps rows under keys ``{uid}_{session}_{output}``. The prompt's ``uid`` leads to step and
sample; the session is the sibling's index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base import training_scores as names
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Function
from otel_rollout.integrations.verl import known_trajectories, seams
from otel_rollout.integrations.verl.known_trajectories import (
    Eviction,
    Prompt,
    SampleIdentity,
    known,
    plain,
    report_unknown,
    without_doubles,
)
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.training_columns import (
    Columns,
    lags,
    record_columns,
    record_rewards,
    record_untrained,
    trained_columns,
)

# --- which trajectory a row is -----------------------------------------------------------------------------


def note_prompts(manager: Any, prompts: Any, chosen: frozenset[Any] | None) -> None:
    """Remember the prompts that the workers begin to generate from.

    Args:
        manager: verl's ``AgentLoopManagerTQ``.
        prompts: a ``TensorDict``.
        chosen: indices of the samples that are recorded; None for all.
    """
    validate = bool(prompts["validate"]) if "validate" in prompts else False
    step, siblings = plain(prompts["global_steps"]), known_trajectories.group_size(manager, validate)
    sampled: Iterable[Any] = [True] * len(prompts)
    if "__do_sample__" in prompts and not validate and not known_trajectories.samples_greedily(manager):
        sampled = prompts["__do_sample__"]
    for uid, index, is_sampled in zip(prompts["uid"], prompts["index"], sampled, strict=True):
        sample = plain(index)
        first = SampleIdentity(step, sample, 0 if is_sampled else siblings, validate)
        known().prompts[str(uid)] = Prompt(first, chosen is None or sample in chosen)
        known().add(first)


def session_of(key: Any) -> tuple[str, str]:
    """Return the ``uid`` and the session of a key; the session is empty if the key is no trajectory's."""
    parts = str(key).rsplit("_", 2)
    return (parts[0], parts[1]) if len(parts) == 3 and parts[1].isdecimal() else (str(key), "")


def rows_of_keys(keys: Sequence[Any], tags: Sequence[Any]) -> list[SampleIdentity | None]:
    """Return the trajectory of each key; None for a row of which nothing is recorded.

    Args:
        keys: keys of rows in the TransferQueue.
        tags: their tags. A row that pads the batch is no trajectory.
    """
    found: list[SampleIdentity | None] = []
    counted: list[SampleIdentity | None] = []
    unknown = 0
    for key, tag in zip(keys, tags, strict=True):
        uid, session = session_of(key)
        prompt = known().prompts.get(uid)
        is_padding = bool(tag.get("is_padding", False))
        is_known = prompt is not None and session != ""
        unknown += not is_known and not is_padding
        row = None
        if prompt is not None and is_known and not is_padding and prompt.is_recorded:
            row = prompt.first._replace(rollout_n=prompt.first.rollout_n + int(session))
        found.append(row)
        counted.append(prompt.first if row is not None and prompt is not None else None)
    report_unknown(unknown, "this process has not generated them; others may have, before a restart")
    return without_doubles(found, counted)


def forget_prompts(uids: Iterable[str]) -> None:
    """Forget prompts whose trajectories have been trained or removed."""
    for uid in uids:
        known().prompts.pop(uid, None)


# --- rows of a trajectory whose agent loop has returned several outputs ------------------------------------


_SUMS: Final = {names.TRAINED_TOKENS, names.KL_PENALTY}
_LARGEST: Final = {names.POLICY_LAG, names.TRAINED, names.LOGPROB_DIFF_MAX}
_OF_ONE_OUTPUT: Final = {
    names.LOGPROB_DIFF_TOKEN,
    names.LOGPROB_DIFF_TURN,
    names.LOGPROB_DIFF_MEAN,
    names.LOGPROB_DIFF_SHARE,
    names.IMPORTANCE_RATIO,
}
"""Scores that are known of each output, but not of the trajectory: their tokens are counted per output."""


def one_row_per_trajectory(
    rows: Sequence[SampleIdentity | None], keys: Sequence[Any], columns: Columns
) -> tuple[list[SampleIdentity | None], Columns]:
    """Return the trajectories, and what training made of them, with one row for each.

    Args:
        rows: the trajectory of each row.
        keys: keys of the rows, which end with the number of the output.
        columns: what training made of the rows.
    """
    outputs: dict[SampleIdentity, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row is not None:
            outputs[row].append(number)
    if all(len(numbers) == 1 for numbers in outputs.values()):
        return list(rows), columns
    for numbers in outputs.values():
        numbers.sort(key=lambda number: int(str(keys[number]).rpartition("_")[2]))
    groups = list(outputs.values())
    scores = {
        name: [_joined(name, [values[number] for number in group]) for group in groups]
        for name, values in columns.scores.items()
    }
    reasons = [_reason_of_outputs([columns.reasons[number] for number in group]) for group in groups]
    tokens = {name: [values[group[-1]] for group in groups] for name, values in columns.tokens.items()}
    return list(outputs), Columns(scores, reasons, tokens)


def _joined(name: str, values: list[Any]) -> Any:
    """Join the values of a score of a trajectory's outputs, in their order, to the trajectory's value."""
    if len(values) == 1:
        return values[0]
    present = [value for value in values if value is not None]
    if name in _SUMS:
        return sum(present) if present else None
    if name in _LARGEST:
        return next((value for value in present if value != value), max(present, default=None))
    return None if name in _OF_ONE_OUTPUT else values[-1]


def _reason_of_outputs(reasons: list[str | None]) -> str | None:
    """Return why the loss uses no output; None if it uses one."""
    return None if None in reasons else reasons[-1]


# --- groups that the replay buffer removes -----------------------------------------------------------------


STALE: Final = "replay buffer: older than max_off_policy_threshold"
EQUAL_REWARDS: Final = "dynamic sampling: the rewards of its group are equal"
SIBLING_FAILED: Final = "replay buffer: a trajectory of its group failed"
SURPLUS: Final = "dynamic sampling: more groups than needed were left"
_EVICTED: Final = "it is not recorded which trajectories the replay buffer removes"


@seams.before("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer._evict_terminal_groups", _EVICTED)
def _note_reasons(_: Any, global_steps: int, partition_id: str, reasons: Any) -> None:
    stale, equal, failed = reasons[:3]
    evictions = known().evictions
    evictions.clear()
    for uids, reason in ((failed, SIBLING_FAILED), (equal, EQUAL_REWARDS), (stale, STALE)):
        evictions.update((uid, Eviction(reason, global_steps)) for uid in uids)


@seams.before("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer._clear_groups", _EVICTED)
def _record_evicted(buffer: Any, partition_id: str, uids: Any) -> None:
    if not uids or not is_recorded_here():
        return
    stored = buffer.partitions[partition_id]
    keys = [key for key in stored if session_of(key)[0] in uids]
    reasons, versions_behind = [], list[int | None]()
    for key in keys:
        eviction = known().evictions.get(session_of(key)[0])
        oldest = stored[key].get("min_global_steps")
        reasons.append(SURPLUS if eviction is None else eviction.reason)
        versions_behind += [None] if eviction is None else lags(eviction.step - 1, [oldest])
    rows = rows_of_keys(keys, [stored[key] for key in keys])
    found = {row: number for number, row in enumerate(rows) if row is not None}
    record_untrained(
        list(found), [reasons[i] for i in found.values()], [versions_behind[i] for i in found.values()]
    )
    known().evictions.clear()
    forget_prompts(uids)


# --- what training made of the others ----------------------------------------------------------------------


_TRAINER: Final = "verl.trainer.ppo.v1.trainer_base"
_NOT_RECORDED: Final = "it is not recorded what the v1 trainer makes of trajectories"


@dataclass
class _Step:
    """A call of one of the trainer's methods that runs or has run.

    Attributes:
        data: the tensors that the trainer had; None before and afterwards.
        rows: the trajectories of the training batch.
        columns: what training makes of them.
    """

    data: Any = None
    rows: list[SampleIdentity | None] | None = None
    columns: Columns | None = None


def _with_data(observe: Callable[[Any, Any, Any], None]) -> Function:
    """Return a hook that calls ``observe(trainer, batch, data)`` with the tensors that the method had."""

    def hook(original: Function, /, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        step = known().v1_step = _Step()
        result = original(self, batch, *args, **kwargs)
        with internal_errors("recording what training made of trajectories"):
            data, step.data = step.data, None
            if data is not None and is_recorded_here():
                observe(self, batch, data)
        return result

    return hook


@seams.after("verl.trainer.ppo.v1.utils", "compute_advantage_for_multi_trajectories", _NOT_RECORDED)
@seams.after(
    "verl.experimental.reward_loop.reward_loop",
    "RewardLoopManager.compute_rm_score",
    "rewards that the v1 trainer computes after the rollouts are not recorded",
)
def _note_data(data: Any, *_: Any, **__: Any) -> None:
    step = known().v1_step
    if step is not None and step.columns is None:
        step.data = data


@seams.around(_TRAINER, "PPOTrainer._compute_advantage", _NOT_RECORDED)
@_with_data
def _reduce(trainer: Any, batch: Any, data: Any) -> None:
    step = known().v1_step
    rows = rows_of_keys(batch.keys, batch.tags)
    behind = lags(trainer.global_steps - 1, [tag.get("min_global_steps") for tag in batch.tags])
    has_update = trainer.config.trainer.critic_warmup <= trainer.global_steps
    columns = trained_columns(trainer, data, rows, behind, has_actor_update=has_update)
    step.rows, step.columns = one_row_per_trajectory(rows, batch.keys, columns)


@seams.around(_TRAINER, "PPOTrainer._compute_reward_colocate", _NOT_RECORDED)
@_with_data
def _record_rewards(_: Any, batch: Any, data: Any) -> None:
    # Of several outputs of a trajectory, the last has its reward.
    order = sorted(range(len(batch.keys)), key=lambda row: int(str(batch.keys[row]).rpartition("_")[2]))
    rows = rows_of_keys(batch.keys, batch.tags)
    last = {rows[number]: number for number in order}
    record_rewards([row if last[row] == number else None for number, row in enumerate(rows)], data)


@seams.after(_TRAINER, "PPOTrainer._update_critic", _NOT_RECORDED)
def _critic_updated(_: Any, trainer: Any, batch: Any, *__: Any, **___: Any) -> None:
    if trainer.config.trainer.critic_warmup > trainer.global_steps:
        _actor_updated(None, trainer, batch)


@seams.after(_TRAINER, "PPOTrainer._update_actor", _NOT_RECORDED)
def _actor_updated(_: Any, __: Any, batch: Any, *___: Any, **____: Any) -> None:
    step, known().v1_step = known().v1_step, None
    if step is not None and step.rows is not None and step.columns is not None:
        record_columns(step.rows, step.columns)
        forget_prompts(session_of(key)[0] for key in batch.keys)
