"""Record what the asynchronous trainer made of each trajectory: trained, dropped as stale, or never used.

The trainer takes training rows from the worker's queue, drops stale ones, packs the others into micro-batches
and trains on these in order. A trajectory may have several rows. It counts as trained if one of them is.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout import runtime
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.kit.training_outcome import record_training_outcome
from otel_rollout.integrations.trl.async_groups import Groups
from otel_rollout.integrations.trl.patched_modules import seams

_ATTRIBUTE: Final = "_otel_rollout_consumption"
"""Attribute of TRL's queue dataset that holds its :class:`Consumption`."""
_LOSS: Final = "whether the asynchronous trainer used a trajectory is not recorded"
TRAINED_STEP: Final = "trained_step"
"""Score: the optimizer step that learned from the trajectory; the last one, if its rows were split."""

STALE: Final = "stale: more versions behind the policy than max_staleness"
OVERSIZE: Final = "longer than token_budget"
UNUSED: Final = "training ended before it was used"


def install(module: ModuleType) -> None:
    """Wrap the trainer's consumption of the queue (``trl.experimental.async_grpo.async_grpo_trainer``)."""
    prepared = after(_prepare, "preparing to follow TRL's training rows")
    seams.wrap(module, "RolloutQueueDataset.__init__", prepared, _LOSS)
    seams.wrap(module, "RolloutQueueDataset.__iter__", _noting_rows, _LOSS)
    for batcher in ("FixedCountBatcher", "TokenBudgetBatcher"):
        seams.wrap(module, f"{batcher}.__iter__", _noting_batches, _LOSS)
    trained = after(_note_training, "recording that TRL has trained on rows")
    seams.wrap(module, "AsyncGRPOTrainer.training_step", trained, _LOSS)
    seams.wrap(module, "AsyncGRPOTrainer._inner_training_loop", _closing, _LOSS)


@dataclass
class _Trajectory:
    id: str
    rows_left: int = 0
    trained_tokens: int = 0
    step: int = 0
    reason: str = ""


@dataclass(frozen=True)
class _Row:
    number: int
    trajectory: _Trajectory | None
    tokens: int


class Consumption:
    """What the trainer does with the rows that it takes from the worker's queue."""

    def __init__(self) -> None:
        self._groups = Groups()
        self._rows: dict[int, deque[_Trajectory | None]] = {}
        """Group → trajectories of its rows that are still in the queue."""
        self._taken: _Row | None = None
        """The row that was taken last, if the dataset has not yielded it."""
        self._count = 0
        self._yielded: dict[int, tuple[Any, _Row]] = {}
        """Id of an example that is in no micro-batch yet → the example and its row."""
        self._batches: deque[list[_Row]] = deque()

    def take(self, sample: Any) -> None:
        """Note a row that was taken from the queue."""
        self.drop_taken()
        self._read_groups()
        rows = self._rows.get(sample.group_id)
        trajectory = rows.popleft() if rows else None
        if rows is not None and not rows:
            del self._rows[sample.group_id]
        self._count += 1
        self._taken = _Row(self._count, trajectory, int(sample.completion_mask[1:].sum()))

    def drop_taken(self) -> None:
        """Note that the row taken last was dropped, unless the dataset has yielded it."""
        if self._taken is not None:
            self._settle(self._taken, None, STALE)
            self._taken = None

    def note_example(self, example: Any) -> None:
        """Note that the dataset has yielded the row taken last."""
        if self._taken is not None:
            self._yielded[id(example)] = (example, self._taken)
            self._taken = None

    def note_batch(self, tree_rows: Any) -> None:
        """Note a micro-batch; older rows that are not in it were dropped, as TRL keeps the order."""
        examples = [example for tree_row in tree_rows for example in tree_row.samples]
        batch = [found[1] for found in (self._yielded.pop(id(e), None) for e in examples) if found]
        newest = max((row.number for row in batch), default=0)
        for key, (_, row) in list(self._yielded.items()):
            if row.number < newest:
                del self._yielded[key]
                self._settle(row, None, OVERSIZE)
        self._batches.append(batch)

    def note_training(self, step: int) -> None:
        """Note that the oldest micro-batch was trained on."""
        for row in self._batches.popleft() if self._batches else ():
            self._settle(row, step, "")

    def close(self) -> None:
        """Settle the rows that training has left."""
        self.drop_taken()
        left = [row for batch in self._batches for row in batch]
        left += [row for _, row in self._yielded.values()]
        self._batches.clear()
        self._yielded.clear()
        self._read_groups()
        left += [_Row(0, trajectory, 0) for rows in self._rows.values() for trajectory in rows]
        self._rows.clear()
        for row in left:
            self._settle(row, None, UNUSED)

    def _read_groups(self) -> None:
        for group_id, ids in self._groups.new():
            trajectories = {id_: _Trajectory(id_) for id_ in ids if id_ is not None}
            for id_ in filter(None, ids):
                trajectories[id_].rows_left += 1
            self._rows[group_id] = deque(None if id_ is None else trajectories[id_] for id_ in ids)

    def _settle(self, row: _Row, step: int | None, reason: str) -> None:
        """Note the end of a row; with its trajectory's last row, record the outcome."""
        trajectory = row.trajectory
        if trajectory is None:
            return
        trajectory.rows_left -= 1
        if step is None:
            trajectory.reason = trajectory.reason or reason
        else:
            trajectory.step = step
            trajectory.trained_tokens += row.tokens
        if trajectory.rows_left:
            return
        is_trained = trajectory.step > 0
        record_training_outcome(
            trajectory.id,
            trained=is_trained,
            trained_tokens=trajectory.trained_tokens if is_trained else None,
            reason=trajectory.reason,
        )
        if is_trained:
            otel_rollout.score(TRAINED_STEP, trajectory.step, trajectory=trajectory.id)


class _WatchedQueue:
    """The worker's queue, as the dataset sees it."""

    def __init__(self, queue: Any, consumption: Consumption) -> None:
        self._queue = queue
        self._consumption = consumption

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take a row from the queue."""
        sample = self._queue.get(*args, **kwargs)
        with internal_errors("following TRL's training rows"):
            self._consumption.take(sample)
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _prepare(_: None, dataset: Any, *__: Any, **___: Any) -> None:
    if runtime.current() is None:
        return
    consumption = Consumption()
    dataset.queue = _WatchedQueue(dataset.queue, consumption)
    setattr(dataset, _ATTRIBUTE, consumption)


def _of(dataset: Any) -> Consumption | None:
    found: Consumption | None = getattr(dataset, _ATTRIBUTE, None)
    return found


def _noting_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        consumption = _of(self)
        for example in original(self):
            if consumption is not None:
                with internal_errors("following TRL's training rows"):
                    consumption.note_example(example)
            yield example

    return __iter__


def _noting_batches(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        consumption = _of(self.dataset)
        for tree_rows in original(self):
            if consumption is not None:
                with internal_errors("following TRL's micro-batches"):
                    consumption.note_batch(tree_rows)
            yield tree_rows

    return __iter__


def _note_training(_: Any, trainer: Any, *__: Any, **___: Any) -> None:
    consumption = _of(trainer._rollout_dataset)
    if consumption is not None:
        consumption.note_training(int(trainer.state.global_step) + 1)


def _closing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _inner_training_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            with internal_errors("recording what TRL's training has left"):
                consumption = _of(getattr(self, "_rollout_dataset", None))
                if consumption is not None:
                    consumption.close()

    return _inner_training_loop
