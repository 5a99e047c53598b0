"""Record the reward functions, metrics and judges that score a rollout."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.verifiers import rollouts
from otel_rollout.integrations.verifiers.patched_modules import seams
from otel_rollout.integrations.verifiers.rollouts import TracedRollout


def install(module: ModuleType) -> None:
    """Wrap the function that calls hooks with the arguments that they name."""
    seams.wrap(module, "invoke", _tracing, "rewards and metrics have no spans; their values are recorded")


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(fn: Any, available: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(fn, available, *args, **kwargs)
        with internal_errors("recording a reward of verifiers"):
            name = _name_of(fn)
            traced = None if name is None else rollouts.running(available.get("trace"))
            if name is not None and traced is not None and inspect.isawaitable(result):
                return _evaluate(traced, name, result)
        return result

    return invoke


def _name_of(hook: Any) -> str | None:
    """Return the name of a hook that scores; None for other hooks."""
    if getattr(hook, "reward", False) is True or getattr(hook, "metric", False) is True:
        return str(hook.__name__)
    judge = getattr(hook, "__self__", None)
    name = getattr(judge, "reward_name", None)
    return name if getattr(hook, "__name__", "") == "score" and isinstance(name, str) else None


async def _evaluate(traced: TracedRollout, name: str, result: Awaitable[Any]) -> Any:
    """Await a hook's result inside a span below the rollout's root."""

    @otel_rollout.rollout_trace_op(name=name, kind=semconv.KIND_EVALUATOR, capture="outputs")
    async def evaluate() -> Any:
        return await result

    with traced.trajectory.inside():
        return await evaluate()
