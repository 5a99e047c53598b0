"""Choose samples by verl's limit, without training's random generators.

With the limit ``max_samples_per_step_per_worker`` set, verl draws samples from NumPy's global generator. So
tracing would change the random numbers of training. This module hides the limit from verl, and chooses whole
groups by the system's generator.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.verl.identities import plain
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import config, is_recorded_here

_random: Final = random.SystemRandom()


def install(module: ModuleType) -> None:
    """Wrap the function that lists trajectories, and hide the limit from verl."""
    seams.wrap(module, "get_trajectory_info", _choosing, "max_samples_per_step_per_worker has no effect")
    if hasattr(module, "RolloutTraceConfig"):
        module.RolloutTraceConfig = _HiddenLimit(module.RolloutTraceConfig)  # type: ignore[attr-defined]


class _Row(dict):  # type: ignore[type-arg]
    """verl's description of a trajectory.

    ``row`` is the trajectory's row in the worker's batch; ``is_chosen`` tells whether to record it.
    """

    row: int
    is_chosen: bool


def _choosing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def get_trajectory_info(*args: Any, **kwargs: Any) -> Any:
        information = await original(*args, **kwargs)
        with internal_errors("choosing which samples are traced"):
            return _with_choice(information) if is_recorded_here() else information
        return information

    return get_trajectory_info


def _with_choice(information: list[dict[str, Any]]) -> list[_Row]:
    """Mark all trajectories of as many samples as the limit allows."""
    samples = [plain(entry["sample_index"]) for entry in information]
    distinct = list(dict.fromkeys(samples))
    limit = getattr(config(), "max_samples_per_step_per_worker", None)
    chosen = set(distinct if limit is None or limit >= len(distinct) else _random.sample(distinct, limit))
    rows = []
    for number, (entry, sample) in enumerate(zip(information, samples, strict=True)):
        row = _Row(entry)
        row.row = number
        row.is_chosen = sample in chosen
        rows.append(row)
    return rows


class _Proxy:
    """Forward attributes to another object, except those that a subclass defines."""

    def __init__(self, target: Any) -> None:
        self.__dict__["target"] = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["target"], name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.__dict__["target"],)


class _HiddenLimit(_Proxy):
    """``RolloutTraceConfig`` as verl's module sees it."""

    def get_instance(self) -> Any:
        """Return the configuration, without a limit if trajectories are chosen here."""
        instance = self.__dict__["target"].get_instance()
        return _Unlimited(instance) if is_recorded_here() else instance


class _Unlimited(_Proxy):
    """A configuration that shows no limit."""

    max_samples_per_step_per_worker = None
