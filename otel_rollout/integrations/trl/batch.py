"""Hold the rows that TRL generates and scores together, each with its trajectory.

The batch is current while the trainer works on it, also in the coroutines that TRL runs on its event loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout.base.errors import warn_once
from otel_rollout.base.finalizers import variable_set
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.trl.patched_modules import seams
from otel_rollout.integrations.trl.progress import BatchIdentity
from otel_rollout.record import runtime


@dataclass
class Generation:
    """One batched model call.

    Attributes:
        times: start and end, Unix time in ns.
        rows: number of rows.
        completion_ids: generated token ids per row. TRL may shorten them in place, to fit its limit.
        log_probs: log probabilities per row; None if the backend gives none.
        lengths: number of tokens that were generated per row.
        error: the exception with which the call failed.
    """

    times: tuple[int, int]
    rows: int
    completion_ids: Sequence[Any] = ()
    log_probs: Sequence[Any] | None = None
    lengths: Sequence[int] = ()
    error: BaseException | None = None


@dataclass(frozen=True)
class GeneratedCall:
    """The part of one row in a batched model call.

    Attributes:
        generation: the batched call.
        position: the row's position in it.
        context: the messages, or the text, that were sent.
        prompt_ids: the token ids that were sent.
    """

    generation: Generation
    position: int
    context: Any
    prompt_ids: Any


@dataclass
class Generated:
    """What one generation has made of a row.

    Attributes:
        prompt: messages or text, once the environment has added its observation.
        completion: messages or text; None while it is not known.
        length: tokens of the completion that the model has generated.
    """

    prompt: Any
    completion: Any = None
    length: int | None = None


@dataclass
class Sample:
    """One row of a batch.

    Attributes:
        trajectory: the row's trajectory.
        generated: what each generation so far has made of the row.
        prompt: messages or text of the generation that runs.
        completion: messages of its completion, which TRL's tool loop appends to; empty for text.
        unsettled: the model call whose answer TRL has not parsed yet.
        answered_from: number of messages of the completion when that call began.
    """

    trajectory: OpenTrajectory
    generated: list[Generated] = field(default_factory=list)
    prompt: Any = None
    completion: list[Any] = field(default_factory=list)
    unsettled: GeneratedCall | None = None
    answered_from: int = 0


@dataclass(frozen=True)
class Measured:
    """A block that TRL's profiler has timed.

    Attributes:
        name: the trainer's class and the block, such as ``GRPOTrainer.transformers.generate``.
        times: start and end, Unix time in ns.
        error: the exception that left the block.
    """

    name: str
    times: tuple[int, int]
    error: BaseException | None


@dataclass
class GenerationBatch:
    """The rows that one process generates and scores together.

    Attributes:
        trainer: the trainer.
        identity: identity of the rows.
        samples: the rows.
        id: names the batch, uniquely in the run.
        measured: blocks that TRL's profiler has timed so far.
        is_generating: whether a generation runs.
        model_calls: number of its batched model calls that are attributed to rows.
        completions: messages of the rows' completions while TRL's tool loop runs; else None.
        contexts: token ids of the rows' prompts and of their completions while the tool loop runs.
        turns: the ``ToolTurn`` of each row while the tool loop runs.
        is_scored: whether reward functions were called. What is generated later does not belong to the batch.
        scored: what the latest reward functions were given for each row; empty if that is not certain.
        rewards: tensor of rewards of all processes, per row and function; None before it is computed.
        evaluations: blocks of the reward functions.
        log_probs: tensors of log probabilities that the trainer has computed before the rewards, in order.
    """

    trainer: Any
    identity: BatchIdentity
    samples: Sequence[Sample]
    id: str
    measured: list[Measured] = field(default_factory=list)
    is_generating: bool = False
    model_calls: int = 0
    completions: list[Any] | None = None
    contexts: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    turns: Sequence[Any] = ()
    is_scored: bool = False
    scored: Sequence[Generated] = ()
    rewards: Any = None
    evaluations: Sequence[Measured] = ()
    log_probs: list[Any] = field(default_factory=list)

    def block_name(self, name: str) -> str:
        """Return the name that TRL's profiler gives a block of this trainer."""
        return f"{type(self.trainer).__name__}.{name}"


_current: ContextVar[GenerationBatch | None] = ContextVar("otel-rollout-trl-batch", default=None)
_LATE: Final = (
    "a generation is not recorded: the trainer generates while the rewards of a TRL batch are "
    "calculated, or later"
)
_NO_BATCH: Final = (
    "otel_rollout.integrations.trl.sample({}) joins nothing: call it in a rollout_func, with the index of "
    "one of its prompts"
)


def current(trainer: Any = None) -> GenerationBatch | None:
    """Return the current batch; None for a batch of another trainer than the given one."""
    batch = _current.get()
    return batch if batch is None or trainer is None or batch.trainer is trainer else None


def generating(trainer: Any) -> GenerationBatch | None:
    """Return the current batch while its rows may be generated.

    A reward function may generate with the trainer, for example as a judge.
    """
    batch = current(trainer)
    if batch is None or not batch.is_scored:
        return batch
    warn_once(_LATE, once_for="trl generation after rewards")
    return None


def being_current(batch: GenerationBatch | None) -> AbstractContextManager[None]:
    """Return a context manager that makes a batch current; for None, no batch is current."""
    return variable_set(_current, batch)


@seams.before(
    "trl.extras.profiling",
    "ProfilingContext.__exit__",
    "reward functions have no spans, and the times of model calls include the update of the weights",
)
def _note_block(block: Any, kind: Any = None, error: Any = None, stack: Any = None) -> None:
    """Keep the times of a block in which TRL generates or calls a reward function."""
    running = _current.get()
    if running is not None and block._start_time is not None:
        end_ns, seconds = time.time_ns(), time.perf_counter() - block._start_time
        running.measured.append(Measured(block.name, (end_ns - int(seconds * 1e9), end_ns), error))


def sample(index: int) -> AbstractContextManager[None]:
    """Return a context manager that makes the trajectory of one prompt of a ``rollout_func`` current.

    What runs inside the block is recorded in the trajectory of that prompt. The block may be entered in
    another thread or task than the one that called this function. Without tracing, the block does nothing.

    Args:
        index: index of the prompt among the prompts that the function was called with.
    """
    batch = _current.get()
    if batch is not None and 0 <= index < len(batch.samples):
        return batch.samples[index].trajectory.inside()
    if runtime.current() is not None:
        warn_once(_NO_BATCH.format(index), once_for="trl sample outside of a rollout_func")
    return nullcontext()
