"""Follow a trainer's progress: how its prompts and siblings are numbered, and how the loss uses its rows.

Prompts are numbered over all processes and all batches of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout.base.training_scores import UNUSED
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes
from otel_rollout.integrations.state import state

# --- the loss: kept for each row of a batch, and recorded when the batch is used up ------------------------


PASSED_OVER: Final = "the trainer generated anew without using it"
_MAX_ROUNDS: Final = 64
"""Maximum batches of one trainer that wait for their use. Beyond it, the oldest counts as passed over."""


@dataclass(frozen=True)
class Use:
    """What one call of the loss made of the rows of a micro-batch.

    Attributes:
        version: number of optimizer steps that made the weights.
        tokens: number of tokens of each row that the loss counts; None if the numbers are those of the
            batch's masks.
        reasons: why the loss counts no token of a row; None for a row of which it counts some.
        mismatch: log-probability mismatch of each row, by the score's name.
        token_values: values per token of each row, by name.
    """

    version: int
    tokens: Sequence[int] | None = None
    reasons: Sequence[str | None] = ()
    mismatch: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    token_values: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass
class Round:
    """The rows that were generated together, and the use that the loss made of them.

    Attributes:
        micro_step: number of micro-batches that the trainer had trained on when it generated the rows.
        first: number of the first row.
        ids: ids of the rows' trajectories; None for one that is not recorded.
        version: number of optimizer steps that made the weights which generated the rows.
        tokens: number of tokens of each row that the loss counts; at first, the number that the batch's masks
            give.
        reasons: why the loss learns nothing from a row, by the batch's columns; None if it does learn.
        uses_left: uses of rows until all are used as often as the trainer's settings say.
        versions: version of the weights that learned from each row last; None before.
        masked: why the loss counted no token of a row in any use; None for other rows.
        mismatch: log-probability mismatch of each row, found in its uses, by the score's name.
        token_values: values per token of each row, found in its uses, by name.
        is_recorded: whether the uses so far are recorded.
    """

    micro_step: int
    first: int
    ids: list[str | None]
    version: int
    tokens: list[int]
    reasons: list[str | None]
    uses_left: int
    versions: list[int | None] = field(init=False)
    masked: list[str | None] = field(init=False)
    mismatch: dict[str, list[Any]] = field(default_factory=dict)
    token_values: dict[str, list[Any]] = field(default_factory=dict)
    is_recorded: bool = False

    def __post_init__(self) -> None:
        self.versions = [None] * len(self.ids)
        self.masked = [None] * len(self.ids)

    def note(self, row: int, use: Use, position: int) -> None:
        """Note a use of a row, which is at a position of the micro-batch."""
        if use.tokens is not None:
            reason, is_first = use.reasons[position], self.versions[row] is None
            if is_first or reason is None:
                self.tokens[row], self.masked[row] = use.tokens[position], reason
        self.versions[row] = use.version
        self.uses_left -= 1
        self.is_recorded = False
        for kept, found in ((self.mismatch, use.mismatch), (self.token_values, use.token_values)):
            for name, values in found.items():
                kept.setdefault(name, [None] * len(self.ids))[row] = values[position]

    def record(self, reason_if_unused: str | None) -> None:
        """Record what training made of the rows.

        Args:
            reason_if_unused: the reason of rows that were not used; None if uses cannot be seen, so that the
                batch's masks decide.
        """
        if self.is_recorded:
            return
        self.is_recorded = True
        reasons = [reason or masked for reason, masked in zip(self.reasons, self.masked, strict=True)]
        tokens = self.tokens
        if reason_if_unused is not None:
            used = [version is not None for version in self.versions]
            reasons = [r if u else reason_if_unused for r, u in zip(reasons, used, strict=True)]
            tokens = [count if u else 0 for count, u in zip(tokens, used, strict=True)]
        lags = [None if version is None else version - self.version for version in self.versions]
        record_training_outcomes(
            TrainingOutcomes(
                trained=[reason is None for reason in reasons],
                reason=reasons,
                trained_tokens=tokens,
                trained_step=[self.version + 1 + lag if lag else None for lag in lags],
                policy_lag=[lag if lag is not None and lag >= 0 else None for lag in lags],
                **self.mismatch,
            ),
            trajectory=self.ids,
            token_values=self.token_values or None,
        )


class LossUses:
    """The batches of one trainer that the loss may still use."""

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self.next_row = 0
        """Number of the next row that the trainer generates."""
        self.is_seen = False
        """Whether a use of this trainer was seen. None is seen if the trainer has a loss of its own."""

    def expect(self, round_: Round) -> None:
        """Add a batch that was just generated; record the batches before it.

        A trainer may generate several times before it trains, and use the rows that it likes.
        """
        over = [r for r in self._rounds if r.micro_step != round_.micro_step] or self._rounds[:-_MAX_ROUNDS]
        for old in over:
            old.record(PASSED_OVER if self.is_seen else None)
            self._rounds.remove(old)
        self._rounds.append(round_)
        self.next_row = round_.first + len(round_.ids)

    def note(self, rows: Sequence[int], use: Use) -> None:
        """Note a use of rows, by their numbers; record the batches that are used up."""
        self.is_seen = True
        for position, number in enumerate(rows):
            for round_ in self._rounds:
                if 0 <= number - round_.first < len(round_.ids):
                    round_.note(number - round_.first, use, position)
        for round_ in self._rounds:
            if round_.uses_left <= 0:
                round_.record(PASSED_OVER)

    def close(self, has_failed: bool) -> None:
        """Record the batches that are left when training ends; a later training may still use them."""
        for round_ in self._rounds:
            if self.is_seen or not has_failed:
                round_.record(UNUSED if self.is_seen else None)


# --- prompts and siblings ----------------------------------------------------------------------------------


@dataclass
class Counted:
    """The numbering of the prompts of training, or of those of evaluation.

    Attributes:
        step: the latest step.
        first: number of the first prompt of each step.
        following: number of the step's next prompt.
        unused: a number that is above all numbers so far, of any step.
    """

    step: int
    first: int = 0
    following: int = 0
    unused: int = 0

    def take(self, step: int, prompts: int) -> int:
        """Number a batch's prompts; return the number of the first one.

        A step number that goes back belongs to another training, or to another attempt. Its prompts are
        numbered above all earlier ones.
        """
        if step != self.step:
            self.first = self.unused if step < self.step else self.first
            self.step, self.following = step, self.first
        number = self.following
        self.following += prompts
        self.unused = max(self.unused, self.following)
        return number


@dataclass
class Progress:
    """The progress of a trainer.

    Attributes:
        number: number of the trainer among those that have generated in this process, from 1.
        counted: whether it is validation → the numbering of the prompts.
        uses: what the loss made of the batches.
    """

    number: int
    counted: dict[bool, Counted] = field(default_factory=dict)
    uses: LossUses = field(default_factory=LossUses)


def progress_of(trainer: Any) -> Progress:
    """Return the progress of a trainer."""
    found: Progress | None = state.trainers.get(trainer)
    if found is None:
        state.trainer_count += 1
        found = state.trainers[trainer] = Progress(state.trainer_count)
    return found


@dataclass(frozen=True)
class BatchIdentity:
    """Identity of the trajectories of one process's part of a generation batch.

    Attributes:
        step: number under which the trainer logs the batch.
        validate: whether the batch is an evaluation's.
        policy_version: number of optimizer steps that made the weights.
        group_size: completions per prompt.
        first_row: index of the first row in the batch of all processes.
        first_prompt: number of the first prompt of the batch of all processes.
        trainer_number: number of the trainer in this process, from 1.
    """

    step: int
    validate: bool
    policy_version: int
    group_size: int
    first_row: int
    first_prompt: int
    trainer_number: int

    def sample_index(self, row: int) -> int | str:
        """Return the index of a row's prompt in the step.

        The prompts of the first trainer in a process have numbers. Those of a later trainer have texts such
        as ``2:0``, because the steps of both trainers have the same numbers.
        """
        index = self.first_prompt + (self.first_row + row) // self.group_size
        return index if self.trainer_number == 1 else f"{self.trainer_number}:{index}"

    def rollout_n(self, row: int) -> int:
        """Return the index of a row in its group."""
        return (self.first_row + row) % self.group_size


def identify(trainer: Any, rows: int) -> BatchIdentity:
    """Return the identity of the next batch, and count its prompts.

    Args:
        trainer: the trainer.
        rows: rows of the batch in this process.
    """
    validate = not trainer.model.training
    version = int(trainer.state.global_step)
    step = version if validate else version + 1
    group_size = int(trainer.num_generations_eval if validate else trainer.num_generations)
    progress, accelerator = progress_of(trainer), trainer.accelerator
    counted = progress.counted.setdefault(validate, Counted(step))
    first_prompt = counted.take(step, -(-rows * accelerator.num_processes // group_size))
    first_row = accelerator.process_index * rows
    return BatchIdentity(step, validate, version, group_size, first_row, first_prompt, progress.number)
