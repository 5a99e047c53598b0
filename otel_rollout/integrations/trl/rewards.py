"""Record reward functions: their times, the score of each row, and their errors."""

from __future__ import annotations

import functools
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.integrations.kit.spans import records_content
from otel_rollout.integrations.trl import answers
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl.batch import Batch, Measured, Sample
from otel_rollout.integrations.trl.patched_modules import seams, trainer_class

_MAX_TEXT: Final = 256
"""Characters of a text in an extra column; a longer text is not recorded."""
_SUM: Final = "reward"
"""Name of the score with the weighted sum of the rewards, as TRL names it in its metrics."""
_UNCERTAIN: Final = (
    "rewards of a batch of TRL's are not recorded: there are {} rows of {} functions, for {} rows"
)


def install(module: ModuleType) -> None:
    """Wrap the method of a trainer that calls the reward functions."""
    seams.wrap(module, f"{trainer_class(module)}._calculate_rewards", _tracing, "rewards are not traced")


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _calculate_rewards(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = batches.current(self)
        if batch is None:
            return original(self, *args, **kwargs)
        first = len(batch.measured)
        with internal_errors("reading the completions of a batch of TRL's"):
            batch.is_scored = True
            given = inspect.signature(original).bind(self, *args, **kwargs).arguments
            answers.note_scored(batch, given["prompts"], given["completions"])
        try:
            batch.rewards = original(self, *args, **kwargs)
        except BaseException:
            with internal_errors("recording a reward function that failed"):
                batch.evaluations = batch.measured[first:]
                for entry in batch.samples:
                    _record_evaluations(batch, entry, None)
            raise
        batch.evaluations = batch.measured[first:]
        with internal_errors("reading the extra columns of reward functions"):
            _note_extra_columns(batch)
        return batch.rewards

    return _calculate_rewards


def _note_extra_columns(batch: Batch) -> None:
    """Record short values that reward functions gave to ``log_extra``."""
    for column, values in getattr(batch.trainer, "_pending_extra_logs", {}).items():
        if len(values) != len(batch.samples):
            continue
        for entry, value in zip(batch.samples, values, strict=True):
            if isinstance(value, (bool, int, float)) or _is_short_text(value):
                batches.describe(entry, **{f"extra.{column}": value})


def _is_short_text(value: Any) -> bool:
    """Return whether a value is a text that may be recorded: it may hold an answer, so it is content."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT and records_content()


def record(batch: Batch) -> Any:
    """Record each row's evaluations and rewards; return the tensor of their weighted sums.

    A row for which no function gave a reward has no number. None if the rewards are not known. Call this when
    TRL has read the rewards itself: reading them does not then wait for the device.
    """
    if batch.rewards is None:
        return None
    names, rows = batch.trainer.reward_func_names, len(batch.samples)
    first = batch.identity.first_row
    if batch.rewards.shape != (rows * batch.trainer.accelerator.num_processes, len(names)):
        warn_once(_UNCERTAIN.format(*batch.rewards.shape, rows), once_for="trl rewards")
        return None
    rewards = batch.rewards[first : first + rows]
    weights = batch.trainer.reward_weights.to(rewards.device).unsqueeze(0)
    sums = (rewards * weights).nansum(dim=1).masked_fill(rewards.isnan().all(dim=1), math.nan)
    for entry, row, total in zip(batch.samples, rewards.tolist(), sums.tolist(), strict=True):
        _record_evaluations(batch, entry, row)
        given = {name: value for name, value in zip(names, row, strict=True) if not math.isnan(value)}
        if given:  # the sum wins over a function that is named so
            given[_SUM] = total
        for name, value in given.items():
            entry.trajectory.score(name, value)
    return sums


def _record_evaluations(batch: Batch, entry: Sample, rewards: Sequence[float] | None) -> None:
    """Record a span per reward function; without rewards, one of them has failed."""
    blocks: dict[str, list[Measured]] = defaultdict(list)
    for block in batch.evaluations:
        blocks[block.name].append(block)
    for column, name in enumerate(batch.trainer.reward_func_names):
        timed = blocks[batch.block_name(name)]
        if not timed:
            continue
        block = timed.pop(0)
        value = None if rewards is None or math.isnan(rewards[column]) else rewards[column]
        entry.trajectory.record(
            name,
            semconv.KIND_EVALUATOR,
            block.times,
            output=value,
            attributes={semconv.BATCH_ID: batch.id, semconv.BATCH_SIZE: len(batch.samples)},
            error=block.error,
        )
