"""Record the trajectories of TRL's asynchronous GRPO worker.

The worker is a child process of the trainer, and does not know in which step the trainer uses a trajectory.
So the step is the policy version with which the trajectory's group was started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import otel_rollout
from otel_rollout import runtime
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import set_attributes
from otel_rollout.integrations.trl.async_rollouts import Rollout, prepare, rollouts_of, running
from otel_rollout.integrations.trl.patched_modules import LOOP, WORKER, seams
from otel_rollout.propagation import process_pools


@seams.after(WORKER, f"{LOOP}.__init__", "prompts are counted from 0 after each start of the worker")
def _prepare(_: None, loop: Any, *__: Any, **kwargs: Any) -> None:
    prepare(loop, int(kwargs.get("dataset_start_index") or 0))
    process_pools.prepare_process()


@seams.around(WORKER, f"{LOOP}._generate_one", "trajectories of its worker are not traced")
async def _generate_one(
    original: Callable[..., Any], /, self: Any, prompt: Any, *args: Any, **kwargs: Any
) -> Any:
    if runtime.current() is None:
        return await original(self, prompt, *args, **kwargs)
    group_id = kwargs.get("group_id", args[2] if len(args) > 2 else 0)
    with _start(self, group_id) as trajectory:
        rollout = Rollout(trajectory, prompt)
        if trajectory.root is not None:
            trajectory.root.set_attribute(semconv.GROUP_ID, str(group_id))
        with running(rollout):
            try:
                trajectory.set_input(prompt)
                result = await original(self, prompt, *args, **kwargs)
                _conclude(self, rollout, result)
                return result
            finally:
                rollout.end_call()


def _start(loop: Any, group_id: int) -> otel_rollout.Trajectory:
    """Return the block of a trajectory with the identity from TRL's arguments."""
    with internal_errors("identifying a trajectory of TRL's"):
        size = int(loop.num_generations)
        rollouts = rollouts_of(loop)
        step, index = rollouts.count_sibling(group_id, loop.model_version, size)
        return otel_rollout.rollout_trace_attr(
            sample_index=rollouts.first_prompt + group_id,
            step=step,
            rollout_n=index,
            group_size=size,
        )
    return otel_rollout.rollout_trace_attr()


@internal_errors("recording the result of a trajectory of TRL's")
def _conclude(loop: Any, rollout: Rollout, result: Any) -> None:
    """Describe the trajectory, set its output, and keep it until its group is scored."""
    root = rollout.trajectory.root
    if root is None or not rollout.is_recording:
        return
    rollout.end_call()
    completion, completion_ids, sequences, *_ = result
    rollouts_of(loop).keep(completion, rollout)
    versions = rollout.policy_versions
    set_attributes(
        root,
        {
            semconv.POLICY_VERSION_MIN: min(versions, default=None),
            semconv.POLICY_VERSION_MAX: max(versions, default=None),
            semconv.NUM_TURNS: 1 + len(completion),
            semconv.COMPLETION_LENGTH: len(completion_ids),
            semconv.TRAINING_ROWS: len(sequences),
        },
    )
    rollout.trajectory.set_output(completion)
