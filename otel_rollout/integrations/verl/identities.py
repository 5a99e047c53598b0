"""Compute which trajectory a row is, in the agent-loop worker and in the trainer's process alike.

The trainers identify a trajectory differently:

- In the v1 trainer all siblings share one ``trajectory``, whose ``rollout_n`` is 0. The sibling's index is
  ``session_id``.
- The legacy trainer counts siblings anew in each worker. ``priority`` is the row's index in the whole batch.
- REMAX adds one greedy rollout per prompt as a baseline. Its index follows those of the siblings.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

BASELINE: Final = "baseline"
"""Extra attribute of a trajectory that is a baseline, which no loss uses."""


class Identity(NamedTuple):
    """The identity of a trajectory, as its root span has it."""

    step: Any
    sample_index: Any
    rollout_n: Any
    validate: bool = False


def group_size(configured: Any, validate: bool) -> int:
    """Return the configured number of trajectories per prompt; 0 if unknown.

    Args:
        configured: verl's worker or manager of agent loops.
        validate: whether the prompts are validated.
    """
    try:
        rollout = configured.config.actor_rollout_ref.rollout
        return int(rollout.val_kwargs.n if validate else rollout.n)
    except Exception:  # noqa: BLE001 - another version's configuration
        return 0


def samples_greedily(configured: Any) -> bool:
    """Return whether all training rollouts are greedy, so that a baseline cannot be told from them.

    Args:
        configured: verl's worker or manager of agent loops.
    """
    try:
        return bool(configured.config.actor_rollout_ref.rollout.temperature == 0)
    except Exception:  # noqa: BLE001 - another version's configuration
        return True


def sibling_index(counted: int, row: int | None, row_in_batch: Any, siblings: int) -> int:
    """Return the index in its group of a trajectory of the legacy trainer, from 0.

    Args:
        counted: index that the worker has counted.
        row: the trajectory's row in the worker's part of the batch.
        row_in_batch: the trajectory's row in the whole batch; None if this version does not tell.
        siblings: configured size of the group; 0 if unknown.
    """
    if row_in_batch is None or siblings < 1:
        return counted
    # The group of the worker's first row may have started in another worker's part of the batch.
    return int(row_in_batch if counted == row else counted) % siblings


def plain(value: Any) -> Any:
    """Return a number or text of numpy or torch as a plain value; equal tensors are different keys."""
    return value.item() if hasattr(value, "item") else value
