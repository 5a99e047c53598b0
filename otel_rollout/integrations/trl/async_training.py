"""Record what the asynchronous trainer made of trajectories: trained, dropped as stale, or never used.

The trainer takes training rows from the worker's queue, drops stale ones, packs the others into micro-batches
and trains on these in order. A trajectory may have several rows. It counts as trained if one of them is.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout import runtime
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.training_reasons import UNUSED
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes
from otel_rollout.integrations.trl import async_mismatch
from otel_rollout.integrations.trl.async_groups import Groups
from otel_rollout.integrations.trl.async_mismatch import RowMismatch
from otel_rollout.integrations.trl.patched_modules import seams

_MODULE: Final = "trl.experimental.async_grpo.async_grpo_trainer"
_ATTRIBUTE: Final = "_otel_rollout_consumption"
"""Attribute of TRL's queue dataset that holds its :class:`Consumption`."""
_LOSS: Final = "whether the asynchronous trainer used a trajectory is not recorded"

STALE: Final = "stale: more versions behind the policy than max_staleness"
OVERSIZE: Final = "longer than token_budget"


@dataclass
class _Trajectory:
    """What the trainer made of a trajectory's rows.

    Attributes:
        id: id of the trajectory.
        version: the oldest policy version that made its tokens.
        rows_left: rows that are not settled yet.
        trained_tokens: tokens of its rows in the loss.
        step: the optimizer step that learned from it last; 0 before.
        lag: versions from the oldest to the newest weights that used or dropped a row.
        reason: why its first row that was dropped was dropped.
        mismatch: log-probability mismatch of its trained rows.
    """

    id: str
    version: int
    rows_left: int = 0
    trained_tokens: int = 0
    step: int = 0
    lag: int | None = None
    reason: str = ""
    mismatch: list[RowMismatch] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    number: int
    trajectory: _Trajectory | None
    tokens: int


@dataclass
class _MicroBatch:
    """Rows that are trained on together.

    Attributes:
        rows: the rows; None for one that is not known.
        own: the examples that this process trains on, which come first; the others have other ranks.
    """

    rows: list[_Row | None]
    own: list[Any]


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
        self._batches: deque[_MicroBatch] = deque()
        self._settled: list[_Trajectory] = []
        """Trajectories of which no row is left, and that are not recorded yet."""
        self.version: int | None = None
        """The trainer's policy version when the dataset asked for it last."""

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
            self._settle(self._taken, None, STALE, self.version)
            self._taken = None

    def note_example(self, example: Any) -> None:
        """Note that the dataset has yielded the row taken last."""
        if self._taken is not None:
            self._yielded[id(example)] = (example, self._taken)
            self._taken = None

    def note_batch(self, tree_rows: Any) -> None:
        """Note a micro-batch; older rows that are not in it were dropped, as TRL keeps the order."""
        examples = [example for tree_row in tree_rows for example in tree_row.samples]
        found = [self._yielded.pop(id(example), None) for example in examples]
        rows = [None if pair is None else pair[1] for pair in found]
        newest = max((row.number for row in rows if row is not None), default=0)
        for key, (_, row) in list(self._yielded.items()):
            if row.number < newest:
                del self._yielded[key]
                self._settle(row, None, OVERSIZE)
        self._batches.append(_MicroBatch(rows, list(tree_rows[0].samples)))

    def note_log_probs(self, log_probs: Any) -> None:
        """Note the log probabilities that the loss of the oldest micro-batch has for this process's rows."""
        if self._batches and self._batches[0].own:
            batch = self._batches[0]
            for row, mismatch in zip(batch.rows, async_mismatch.of_rows(batch.own, log_probs), strict=False):
                if row is not None and row.trajectory is not None and mismatch.tokens:
                    row.trajectory.mismatch.append(mismatch)

    def note_training(self, step: int, version: int | None) -> None:
        """Note that the oldest micro-batch was trained on, and record the trajectories that are settled."""
        for row in self._batches.popleft().rows if self._batches else ():
            if row is not None:
                self._settle(row, step, "", version)
        self._record()

    def close(self) -> None:
        """Settle the rows that training has left."""
        self.drop_taken()
        left = [row for batch in self._batches for row in batch.rows if row is not None]
        left += [row for _, row in self._yielded.values()]
        self._batches.clear()
        self._yielded.clear()
        self._read_groups()
        left += [_Row(0, trajectory, 0) for rows in self._rows.values() for trajectory in rows]
        self._rows.clear()
        for row in left:
            self._settle(row, None, UNUSED)
        self._record()

    def _read_groups(self) -> None:
        for group_id, rows in self._groups.new():
            trajectories = {row[0]: _Trajectory(*row) for row in rows if row is not None}
            for row in filter(None, rows):
                trajectories[row[0]].rows_left += 1
            self._rows[group_id] = deque(None if row is None else trajectories[row[0]] for row in rows)

    def _settle(self, row: _Row, step: int | None, reason: str, version: int | None = None) -> None:
        """Note the end of a row, with the trainer's policy version if it is known."""
        trajectory = row.trajectory
        if trajectory is None:
            return
        trajectory.rows_left -= 1
        if version is not None:
            trajectory.lag = max(trajectory.lag or 0, version - trajectory.version)
        if step is None:
            trajectory.reason = trajectory.reason or reason
        else:
            trajectory.step = step
            trajectory.trained_tokens += row.tokens
        if not trajectory.rows_left:
            self._settled.append(trajectory)

    def _record(self) -> None:
        """Record the outcome of the settled trajectories."""
        settled, self._settled = self._settled, []
        if not settled:
            return
        trained = [trajectory.step > 0 for trajectory in settled]
        record_training_outcomes(
            TrainingOutcomes(
                trained=trained,
                reason=[None if t.step else t.reason for t in settled],
                trained_tokens=[t.trained_tokens if t.step else None for t in settled],
                trained_step=[t.step or None for t in settled],
                policy_lag=[t.lag for t in settled],
                **async_mismatch.joined([t.mismatch for t in settled]),
            ),
            trajectory=[t.id for t in settled],
            token_values=async_mismatch.joined_values([t.mismatch for t in settled]),
        )


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


@seams.after(_MODULE, "RolloutQueueDataset.__init__", _LOSS)
def _prepare(_: None, dataset: Any, *__: Any, **___: Any) -> None:
    if runtime.current() is None:
        return
    consumption = Consumption()
    dataset.queue = _WatchedQueue(dataset.queue, consumption)
    dataset.model_version_fn = _noting_version(dataset.model_version_fn, consumption)
    setattr(dataset, _ATTRIBUTE, consumption)


def _noting_version(original: Callable[[], Any], consumption: Consumption) -> Callable[[], Any]:
    @functools.wraps(original)
    def model_version() -> Any:
        version = original()
        consumption.version = version if isinstance(version, int) else None
        return version

    return model_version


def _of(dataset: Any) -> Consumption | None:
    found: Consumption | None = getattr(dataset, _ATTRIBUTE, None)
    return found


@seams.around(_MODULE, "RolloutQueueDataset.__iter__", _LOSS)
def _rows(original: Callable[..., Any], /, self: Any) -> Iterator[Any]:
    return _noting(original(self), _of(self), Consumption.note_example)


@seams.around(_MODULE, "FixedCountBatcher.__iter__", _LOSS)
@seams.around(_MODULE, "TokenBudgetBatcher.__iter__", _LOSS)
def _batches(original: Callable[..., Any], /, self: Any) -> Iterator[Any]:
    return _noting(original(self), _of(self.dataset), Consumption.note_batch)


def _noting(
    items: Iterable[Any], consumption: Consumption | None, note: Callable[[Consumption, Any], None]
) -> Iterator[Any]:
    """Yield what TRL's iterator yields, each item when it is noted."""
    for item in items:
        if consumption is not None:
            with internal_errors("following TRL's training rows"):
                note(consumption, item)
        yield item


@seams.around(
    _MODULE,
    "AsyncGRPOTrainer.compute_loss",
    "the asynchronous trainer's log probabilities are not compared with the server's",
)
def _compute_loss(
    original: Callable[..., Any], /, self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    consumption = _of(getattr(self, "_rollout_dataset", None))
    if consumption is None:
        return original(self, model, inputs, *args, **kwargs)
    watched = async_mismatch.WatchedModel(model)
    result = original(self, watched, inputs, *args, **kwargs)
    with internal_errors("comparing log probabilities of TRL's"):
        # Here TRL has just read its metrics, so reading log probabilities does not wait for the device.
        log_probs = watched.of_tokens(inputs)
        if log_probs is not None:
            consumption.note_log_probs(log_probs)
    return result


@seams.after(_MODULE, "AsyncGRPOTrainer.training_step", _LOSS)
def _note_training(_: Any, trainer: Any, *__: Any, **___: Any) -> None:
    consumption = _of(getattr(trainer, "_rollout_dataset", None))
    if consumption is not None:
        consumption.note_training(int(trainer.state.global_step) + 1, getattr(trainer, "model_version", None))


@seams.around(_MODULE, "AsyncGRPOTrainer._inner_training_loop", _LOSS)
def _train(original: Callable[..., Any], /, self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, *args, **kwargs)
    finally:
        with internal_errors("recording what TRL's training has left"):
            consumption = _of(getattr(self, "_rollout_dataset", None))
            if consumption is not None:
                consumption.close()
