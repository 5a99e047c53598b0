"""Record a generation batch: one trajectory per row, from the prompt to the advantage.

``_generate_and_score_completions`` generates and scores all rows of a process together. The batch is current
while this method runs, also in the coroutines that TRL runs on its event loop.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import otel_rollout
from otel_rollout import runtime
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.trl.identity import BatchIdentity, identify
from otel_rollout.integrations.trl.patched_modules import seams, trainer_class

if TYPE_CHECKING:
    from otel_rollout.integrations.trl.model_calls import ModelCall
    from otel_rollout.integrations.trl.tools import Turn


def install(module: ModuleType) -> None:
    """Wrap the method of a trainer that generates and scores a batch."""
    trainer = trainer_class(module)
    seams.wrap(
        module, f"{trainer}._generate_and_score_completions", _tracing, f"{trainer}'s rollouts are not traced"
    )


@dataclass
class Sample:
    """One row of a batch.

    Attributes:
        trajectory: the row's trajectory.
        prompt: messages or text, once the environment has added its observation.
        completion: messages of the completion, which TRL's tool loop appends to; empty for text.
        unsettled: the model call whose answer TRL has not parsed yet.
        answered_from: number of messages of the completion when that call began.
    """

    trajectory: OpenTrajectory
    prompt: Any = None
    completion: list[Any] = field(default_factory=list)
    unsettled: ModelCall | None = None
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
class Batch:
    """The rows that one process generates and scores together.

    Attributes:
        trainer: the trainer.
        identity: identity of the rows.
        samples: the rows.
        id: names the batch, uniquely in the run.
        measured: blocks that TRL's profiler has timed so far.
        model_calls: number of batched model calls that are attributed to rows.
        completions: messages of the rows' completions while TRL's tool loop runs; else None.
        contexts: token ids of the rows' prompts and of their completions while the tool loop runs.
        turns: the tool calls of each row while the tool loop runs.
        rewards: tensor of rewards of all processes, per row and function; None before it is computed.
        evaluations: blocks of the reward functions.
    """

    trainer: Any
    identity: BatchIdentity
    samples: Sequence[Sample]
    id: str
    measured: list[Measured] = field(default_factory=list)
    model_calls: int = 0
    completions: list[Any] | None = None
    contexts: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    turns: Sequence[Turn] = ()
    rewards: Any = None
    evaluations: Sequence[Measured] = ()

    def block_name(self, name: str) -> str:
        """Return the name that TRL's profiler gives a block of this trainer."""
        return f"{type(self.trainer).__name__}.{name}"


_current: ContextVar[Batch | None] = ContextVar("otel-rollout-trl-batch", default=None)
_NO_BATCH: Final = (
    "otel_rollout.integrations.trl.sample({}) joins nothing: call it in a rollout_func, with the index of "
    "one of its prompts"
)


def current(trainer: Any = None) -> Batch | None:
    """Return the current batch; None for a batch of another trainer than the given one."""
    batch = _current.get()
    return batch if batch is None or trainer is None or batch.trainer is trainer else None


def sample(index: int) -> AbstractContextManager[None]:
    """Return a block that makes a trajectory of this ``rollout_func`` call the current one.

    What runs inside the block is recorded in the trajectory of that prompt. The block may be entered in
    another thread or task than the one that has made it. Without tracing it does nothing.

    Args:
        index: index of the prompt among the prompts that the function was called with.
    """
    batch = _current.get()
    if batch is not None and 0 <= index < len(batch.samples):
        return batch.samples[index].trajectory.inside()
    if runtime.current() is not None:
        warn_once(_NO_BATCH.format(index), once_for="trl sample outside of a rollout_func")
    return nullcontext()


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _generate_and_score_completions(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        batch = _begin(self, inputs)
        if batch is None:
            return original(self, inputs, *args, **kwargs)
        token = _current.set(batch)
        try:
            result = original(self, inputs, *args, **kwargs)
        except BaseException as error:
            _end(batch, error)
            raise
        finally:
            _current.reset(token)
        _conclude(batch, result)
        return result

    return _generate_and_score_completions


def _begin(trainer: Any, inputs: Any) -> Batch | None:
    """Start a trajectory for each row; None if nothing is recorded."""
    if runtime.current() is None:
        return None
    with internal_errors("starting the trajectories of a batch of TRL's"):
        identity = identify(trainer, len(inputs))
        id_ = f"{trainer.accelerator.process_index}-{time.time_ns():x}"
        samples: list[Sample] = []
        batch = Batch(trainer, identity, samples, id_)
        try:
            for row, columns in enumerate(inputs):
                samples.append(Sample(_start(identity, row, columns)))
        except BaseException as error:
            _end(batch, error)
            raise
        return batch
    return None


def _start(identity: BatchIdentity, row: int, columns: Any) -> OpenTrajectory:
    environment = columns.get("environment")
    extra: dict[str, Any] = {"environment": environment} if isinstance(environment, str) else {}
    return OpenTrajectory(
        otel_rollout.rollout_trace_attr(
            step=identity.step,
            sample_index=identity.sample_index(row),
            rollout_n=identity.rollout_n(row),
            validate=identity.validate,
            group_size=identity.group_size,
            policy_version_min=identity.policy_version,
            policy_version_max=identity.policy_version,
            **extra,
        )
    )


def _conclude(batch: Batch, result: Any) -> None:
    from otel_rollout.integrations.trl import outcome

    with internal_errors("recording what TRL made of a batch"):
        outcome.record(batch, result)
    _end(batch, None)


def _end(batch: Batch, error: BaseException | None) -> None:
    """End all trajectories. Never raises."""
    from otel_rollout.integrations.trl import model_calls

    for entry in batch.samples:
        with internal_errors("ending a trajectory of TRL's"):
            model_calls.settle(batch, entry)
        entry.trajectory.end(error)


def describe(entry: Sample, **attributes: Any) -> None:
    """Set attributes of a row's root span, named below ``rollout.``; leave out None."""
    root = entry.trajectory.trajectory.root
    if root is None or not root.is_recording():
        return
    for name, value in attributes.items():
        if value is not None:
            root.set_attribute(semconv.EXTRA_PREFIX + name, value)
