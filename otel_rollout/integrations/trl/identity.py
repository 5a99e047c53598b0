"""Number the prompts and siblings of a generation batch, over all processes and all batches of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_rollout._state import process
from otel_rollout.integrations.trl.loss_uses import LossUses


@dataclass
class Counted:
    """How far the prompts of training, or of evaluation, are numbered.

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
    """How far a trainer has come.

    Attributes:
        number: number of the trainer among those that have generated in this process, from 1.
        counted: whether it is validation → how far the prompts are numbered.
        uses: what the loss made of the batches.
    """

    number: int
    counted: dict[bool, Counted] = field(default_factory=dict)
    uses: LossUses = field(default_factory=LossUses)


def progress_of(trainer: Any) -> Progress:
    """Return the progress of a trainer."""
    found: Progress | None = process.trainers.get(trainer)
    if found is None:
        process.trainer_count += 1
        found = process.trainers[trainer] = Progress(process.trainer_count)
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
