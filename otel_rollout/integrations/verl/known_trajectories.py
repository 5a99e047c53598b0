"""Identify the trajectories of verl's trainers, and keep those that wait for their training.

An identity is computed in the agent-loop worker and in the trainer's process alike. The trainers identify a
trajectory differently:

- In the v1 trainer all siblings share one ``trajectory``, whose ``rollout_n`` is 0. The sibling's index is
  ``session_id``.
- The legacy trainer counts siblings anew in each worker. ``priority`` is the row's index in the whole batch.
- REMAX adds one greedy rollout per prompt as a baseline. Its index follows those of the siblings.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import warn_once
from otel_rollout.integrations.state import state
from otel_rollout.integrations.verl import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.record import runtime

BASELINE: Final = "baseline"
"""Extra attribute of a trajectory that is a baseline, which no loss uses."""


class SampleIdentity(NamedTuple):
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

    If the configuration has no temperature in its usual place, the result is True.

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
    """Convert a number or text of numpy or torch to a plain value: equal tensors are different keys."""
    return value.item() if hasattr(value, "item") else value


# --- what the trainer's process knows ----------------------------------------------------------------------


_MAX_BATCHES: Final = 16
"""Maximum batches of the legacy trainer that wait; dynamic sampling generates several for one training."""
_MAX_PROMPTS: Final = 1 << 17
"""Maximum prompts of the v1 trainer that wait for their training, and maximum identities that are counted."""


@dataclass
class GeneratedBatch:
    """A batch of the legacy trainer that has been generated and waits for its training.

    Attributes:
        column: name of the column whose objects tell the rows apart.
        objects: those objects; held, so that no other object gets their ids.
        rows: id of an object → the row's identity; None for a trajectory that is not recorded.
        baselines: identities of the rows that are baselines.
        validate: whether the batch is of a validation.
    """

    column: str
    objects: list[Any]
    rows: dict[int, SampleIdentity | None]
    baselines: set[SampleIdentity]
    validate: bool


class Prompt(NamedTuple):
    """A prompt of the v1 trainer: what the identities of its trajectories have in common.

    Attributes:
        first: identity of the prompt's first trajectory.
        is_recorded: whether its trajectories are recorded.
    """

    first: SampleIdentity
    is_recorded: bool


class Eviction(NamedTuple):
    """Why the replay buffer removes a group, and the trainer's step."""

    reason: str
    step: int


@dataclass
class KnownTrajectories:
    """Trajectories whose training this process may see."""

    batches: deque[GeneratedBatch] = field(default_factory=lambda: deque(maxlen=_MAX_BATCHES))
    prompts: BoundedDict[str, Prompt] = field(default_factory=lambda: BoundedDict(_MAX_PROMPTS))
    """``uid`` → the prompt of the v1 trainer."""
    times: BoundedDict[SampleIdentity, int] = field(default_factory=lambda: BoundedDict(_MAX_PROMPTS))
    """Identity → how many trajectories have it. The v1 trainer's prompts count by their first trajectory."""
    evictions: dict[str, Eviction] = field(default_factory=dict)
    """``uid`` of a group that the replay buffer is removing → why."""
    generated_mask: tuple[weakref.ref[Any], Any] | None = None
    """A batch, and its mask before the rejection of tokens."""
    v1_step: Any = None
    """The v1 trainer's step between its advantages and its update."""

    def add(self, identity: SampleIdentity) -> None:
        """Count an identity: two trajectories of one identity cannot be told apart."""
        self.times[identity] = self.times.get(identity, 0) + 1


def known() -> KnownTrajectories:
    """Return the trajectories that this process knows."""
    if state.trajectories is None:
        state.trajectories = KnownTrajectories()
    found: KnownTrajectories = state.trajectories
    return found


def without_doubles(
    rows: Sequence[SampleIdentity | None], counted: Sequence[SampleIdentity | None] | None = None
) -> list[SampleIdentity | None]:
    """Replace identities that several trajectories have by None, and count them.

    Args:
        rows: the trajectories.
        counted: the identities under which they were counted; by default ``rows``.
    """
    times = known().times
    is_double = [row is not None and times.get(row, 0) > 1 for row in counted or rows]
    if any(is_double):
        warn_once(
            "several of verl's trajectories have the same step, sample_index and rollout_n, for example "
            "because rows of the dataset have the same extra_info.index; what training makes of them is not "
            "recorded"
        )
        count_unknown(sum(is_double))
    return [None if double else row for row, double in zip(rows, is_double, strict=True)]


def report_unknown(number: int, reason: str) -> None:
    """Count rows of a batch whose trajectories are not known; warn once for each reason."""
    if number:
        warn_once(f"what training makes of some of verl's trajectories is not recorded: {reason}")
        count_unknown(number)


def count_unknown(number: int) -> None:
    """Count trajectories of which nothing is recorded, because their identity is not known."""
    active = runtime.current()
    if active is not None:
        active.writer.counters.skip("score_of_unknown", number)


@seams.before(
    "verl.trainer.ppo.rollout_corr_helper",
    "compute_rollout_correction_and_add_to_batch",
    "trajectories that rollout_correction rejects are recorded as ones without tokens",
)
def _note_generated_mask(batch: Any, *_: Any, **__: Any) -> None:
    """Remember a batch's mask before verl rejects tokens whose policies differ.

    verl replaces the mask, so a rejected trajectory could not be told from one without tokens afterwards.
    """
    if is_recorded_here():
        known().generated_mask = weakref.ref(batch), batch.batch["response_mask"]


def take_generated_mask(data: Any) -> Any:
    """Return a batch's mask as it was before tokens were rejected, and forget it; else the present mask."""
    noted, known().generated_mask = known().generated_mask, None
    return noted[1] if noted is not None and noted[0]() is data else data.batch["response_mask"]
