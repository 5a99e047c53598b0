"""Record one trajectory per row of a generation batch, from the prompt to the advantage.

``_generate_and_score_completions`` generates and scores all rows of a process together.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout import runtime
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.trl import answers, model_calls, outcome
from otel_rollout.integrations.trl.batch import Batch, Sample, being_current
from otel_rollout.integrations.trl.identity import BatchIdentity, identify
from otel_rollout.integrations.trl.patched_modules import seams, trainer_class


def install(module: ModuleType) -> None:
    """Wrap the method of a trainer that generates and scores a batch."""
    trainer = trainer_class(module)
    seams.wrap(
        module, f"{trainer}._generate_and_score_completions", _tracing, f"{trainer}'s rollouts are not traced"
    )


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _generate_and_score_completions(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        batch = _begin(self, inputs)
        if batch is None:
            return original(self, inputs, *args, **kwargs)
        try:
            with being_current(batch):
                result = original(self, inputs, *args, **kwargs)
        except BaseException as error:
            _end(batch, error)
            raise
        with internal_errors("recording what TRL made of a batch"):
            outcome.record(batch, result)
        _end(batch, None)
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


def _end(batch: Batch, error: BaseException | None) -> None:
    """End all trajectories. Never raises."""
    with internal_errors("recording prompts and completions of a batch of TRL's"):
        answers.record(batch, is_over=error is None)
    for entry in batch.samples:
        with internal_errors("ending a trajectory of TRL's"):
            model_calls.settle(batch, entry)
        entry.trajectory.end(error)
