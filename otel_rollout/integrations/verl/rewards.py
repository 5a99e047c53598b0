"""Record the computation of a trajectory's reward, and the reward as scores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import set_output
from otel_rollout.integrations.verl import trajectory
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here

_MAX_LABEL: Final = 256
"""Characters of a text in a reward's extra information; a longer text is not recorded as a score."""


def install(module: ModuleType) -> None:
    """Wrap the method of the agent-loop worker that computes a reward."""
    worker = trajectory.worker_class(module)
    seams.wrap(module, f"{worker}._compute_score", _tracing, "rewards are not traced")


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _compute_score(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_recorded_here():
            return await original(self, outputs, *args, **kwargs)
        scored = outputs[-1] if isinstance(outputs, list) and outputs else outputs
        call = functools.partial(original, self, outputs, *args, **kwargs)
        if getattr(scored, "reward_score", None) is None and _has_reward_workers(self):
            result = await _Reward(call, scored).compute_score()
        else:  # the agent loop has computed the reward, or the trainer will
            result = await call()
        trajectory.note_outputs(outputs)
        _record_scores(scored)
        return result

    return _compute_score


def _has_reward_workers(worker: Any) -> bool:
    return getattr(worker, "reward_loop_worker_handles", None) is not None or hasattr(
        worker, "reward_manager_worker"
    )


class _Reward:
    """Computation of one reward."""

    def __init__(self, call: Callable[[], Any], scored: Any) -> None:
        self._call = call
        self._scored = scored

    @otel_rollout.rollout_trace_op(name="compute_score", kind=semconv.KIND_EVALUATOR)
    async def compute_score(self) -> Any:
        """Have verl compute the reward inside a span that shows the reward."""
        result = await self._call()
        output = {
            "reward_score": self._scored.reward_score,
            "reward_extra_info": _extra_information(self._scored),
        }
        set_output(output)
        return result


def _extra_information(scored: Any) -> dict[str, Any]:
    information = (getattr(scored, "extra_fields", None) or {}).get("reward_extra_info")
    return information if isinstance(information, dict) else {}


@internal_errors("recording a reward")
def _record_scores(scored: Any) -> None:
    """Record the reward and the values beside it as scores. Never raises."""
    reward = getattr(scored, "reward_score", None)
    if reward is not None:
        otel_rollout.score("reward", reward)
    for name, value in _extra_information(scored).items():
        if name != "reward" and is_score(value):
            otel_rollout.score(str(name), value)
    trajectory.note_reward(reward)


def is_score(value: Any) -> bool:
    """Return whether a value beside the reward is recorded as a score: a number, or a short text."""
    if isinstance(value, str):
        return len(value) <= _MAX_LABEL
    return isinstance(value, (bool, int, float)) or getattr(value, "ndim", None) == 0
