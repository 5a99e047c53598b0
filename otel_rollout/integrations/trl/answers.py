"""Record prompt and completion of each trajectory: those that TRL scores, and then trains on.

A trainer of one's own may generate several times for a batch. So each generation is noted with its answers,
and the one whose answers TRL gives to the reward functions is recorded at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base.errors import warn_once
from otel_rollout.integrations.trl.batch import Batch, Generated, Sample, describe

_UNCOUNTED: Final = "completions of a batch of TRL's are not recorded: there are {} for {} prompts"
_UNKNOWN: Final = (
    "prompts and completions of a batch of TRL's are not recorded: the trainer has generated several times, "
    "and it is not known which answers it uses"
)


@dataclass(frozen=True)
class Scored:
    """Prompts and completions that TRL gives to the reward functions, as they were at that time."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    generated: Sequence[Generated | None]
    """For each row the generation of the completion; None if that is not certain."""


def note_scored(batch: Batch, prompts: Sequence[Any], completions: Sequence[Any]) -> None:
    """Note what the reward functions are given; they may change it."""
    batch.scored = None
    if not len(prompts) == len(completions) == len(batch.samples):
        warn_once(_UNCOUNTED.format(len(completions), len(batch.samples)), once_for="trl completions")
        return
    batch.scored = Scored(
        [_copy(prompt) for prompt in prompts],
        [_copy(completion) for completion in completions],
        [_generation_of(entry, answer) for entry, answer in zip(batch.samples, completions, strict=True)],
    )


def _copy(messages: Any) -> Any:
    """Return a copy of a conversation; a text as it is."""
    return [dict(message) for message in messages] if isinstance(messages, list) else messages


def _generation_of(entry: Sample, completion: Any) -> Generated | None:
    found = [one for one in entry.generated if one.completion is completion]
    return found[0] if len(found) == 1 else None


def record(batch: Batch, is_over: bool) -> None:
    """Record prompt and completion of each trajectory.

    Args:
        batch: the batch.
        is_over: whether the trainer has returned the batch; otherwise it has failed.
    """
    if batch.is_scored:
        if batch.scored is not None:
            for row, entry in enumerate(batch.samples):
                _record_scored(entry, batch.scored, row)
        return
    for entry in batch.samples:
        candidates = [one for one in entry.generated if one.completion is not None] or entry.generated
        if len(candidates) == 1:
            _record(entry, candidates[0])
        elif candidates and is_over:
            warn_once(_UNKNOWN, once_for="trl several generations")


def _record_scored(entry: Sample, scored: Scored, row: int) -> None:
    generated, completion = scored.generated[row], scored.completions[row]
    known = generated or Generated(scored.prompts[row])
    _record(entry, Generated(known.prompt, completion, known.length))


def _record(entry: Sample, generated: Generated) -> None:
    completion = generated.completion
    entry.trajectory.trajectory.set_input(generated.prompt)
    if completion is None:
        return
    entry.trajectory.trajectory.set_output(completion)
    turns = 1 + (len(completion) if isinstance(completion, list) else 1)
    describe(entry, completion_length=generated.length, num_turns=turns)
