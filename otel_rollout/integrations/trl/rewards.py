"""Record reward functions, and the prompts and completions that TRL scores and then trains on.

A user's own trainer may generate several times for a batch. So each generation is kept with its answers. The
root records the generation whose answers TRL gives to the reward functions.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.spans import records_content
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl.batch import Generated, GenerationBatch, Measured, Sample
from otel_rollout.integrations.trl.patched_modules import TRAINERS, seams

# --- reward functions: their times, the score of each row, and their errors --------------------------------


_MAX_TEXT: Final = 256
"""Maximum characters of a text in an extra column; a longer text is not recorded."""
_SUM: Final = "reward"
"""Name of the score with the weighted sum of the rewards, as TRL names it in its metrics."""
_UNCERTAIN: Final = "rewards of a TRL batch are not recorded: there are {} rows of {} functions, for {} rows"


@seams.around(TRAINERS, "_calculate_rewards", "rewards are not traced")
def _calculate_rewards(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    batch = batches.current(self)
    if batch is None:
        return original(self, *args, **kwargs)
    first = len(batch.measured)
    with internal_errors("reading the completions of a TRL batch"):
        batch.is_scored = True
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        note_scored(batch, given["prompts"], given["completions"])
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


def _note_extra_columns(batch: GenerationBatch) -> None:
    """Record short values that reward functions gave to ``log_extra``."""
    for column, values in getattr(batch.trainer, "_pending_extra_logs", {}).items():
        if len(values) != len(batch.samples):
            continue
        for entry, value in zip(batch.samples, values, strict=True):
            if isinstance(value, (bool, int, float)) or _is_short_text(value):
                entry.trajectory.describe({f"{semconv.EXTRA_PREFIX}extra.{column}": value})


def _is_short_text(value: Any) -> bool:
    """Return whether a value is a short text, and content is recorded: the text may hold an answer."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT and records_content()


def record(batch: GenerationBatch) -> Any:
    """Record each row's evaluations and rewards; return the tensor of their weighted sums.

    A row for which no function gave a reward has NaN. The result is None if the rewards are not known. Call
    this after TRL itself has read the rewards: then reading them does not wait for the device.
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


def _record_evaluations(batch: GenerationBatch, entry: Sample, rewards: Sequence[float] | None) -> None:
    """Record a span per reward function; without rewards, one of the functions has failed."""
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


# --- prompt and completion of each trajectory --------------------------------------------------------------


_UNCOUNTED: Final = "completions of a TRL batch are not recorded: there are {} for {} prompts"
_UNKNOWN: Final = (
    "prompts and completions of a TRL batch are not recorded: the trainer has generated several times, "
    "and it is not known which answers it uses"
)


def note_scored(batch: GenerationBatch, prompts: Sequence[Any], completions: Sequence[Any]) -> None:
    """Copy the prompts and completions given to the reward functions, which may change them."""
    batch.scored = ()
    if not len(prompts) == len(completions) == len(batch.samples):
        warn_once(_UNCOUNTED.format(len(completions), len(batch.samples)), once_for="trl completions")
        return
    batch.scored = list(map(_scored, batch.samples, prompts, completions))


def _scored(entry: Sample, prompt: Any, completion: Any) -> Generated:
    """Return a row's scored completion, with the prompt and the length of the generation that made it."""
    found = [one for one in entry.generated if one.completion is completion]
    known = found[0] if len(found) == 1 else Generated(_copy(prompt))
    return Generated(known.prompt, _copy(completion), known.length)


def _copy(messages: Any) -> Any:
    """Return a copy of a conversation; a text as it is."""
    return [dict(message) for message in messages] if isinstance(messages, list) else messages


def record_answers(batch: GenerationBatch, is_over: bool) -> None:
    """Record prompt and completion of each trajectory.

    Args:
        batch: the batch.
        is_over: whether the trainer has returned the batch; otherwise the trainer has failed.
    """
    if batch.is_scored:
        for entry, scored in zip(batch.samples, batch.scored, strict=False):
            _record(entry, scored)
        return
    for entry in batch.samples:
        candidates = [one for one in entry.generated if one.completion is not None] or entry.generated
        if len(candidates) == 1:
            _record(entry, candidates[0])
        elif candidates and is_over:
            warn_once(_UNKNOWN, once_for="trl several generations")


def _record(entry: Sample, generated: Generated) -> None:
    completion = generated.completion
    entry.trajectory.trajectory.set_input(generated.prompt)
    if completion is None:
        return
    entry.trajectory.trajectory.set_output(completion)
    turns = 1 + (len(completion) if isinstance(completion, list) else 1)
    entry.trajectory.describe({semconv.COMPLETION_LENGTH: generated.length, semconv.NUM_TURNS: turns})
