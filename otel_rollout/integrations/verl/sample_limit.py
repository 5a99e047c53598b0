"""Choose the samples to record: by a limit of groups per step, and by verl's limit of samples per worker.

Only ``AgentLoopManager.generate_sequences`` sees the whole batch, so an exact limit of groups per step is
applied there, before verl splits the batch. The chosen rows travel in the OpenTelemetry context of Ray's
calls (:mod:`otel_rollout.record.propagation`). The batch does not change, because agent loops and trainers
read it.

With its own limit ``max_samples_per_step_per_worker`` set, verl draws samples from NumPy's global generator.
So tracing would change the random numbers of training. This module hides the limit from verl, and chooses
whole groups by the system's generator.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from opentelemetry.context import get_current

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import current_context
from otel_rollout.base.patching import Function
from otel_rollout.integrations.verl import seams
from otel_rollout.integrations.verl.known_trajectories import plain
from otel_rollout.integrations.verl.legacy_training import note_generated
from otel_rollout.integrations.verl.trace_config import config, is_recorded_here
from otel_rollout.integrations.verl.v1_training import note_prompts
from otel_rollout.otlp.groups import Group
from otel_rollout.record.recording.sampling import GroupSampling, with_chosen
from otel_rollout.record.runs import membership

_MODULE: Final = "verl.experimental.agent_loop.agent_loop"
_random: Final = random.SystemRandom()
_LOSS: Final = "OTEL_ROLLOUT_SAMPLE_GROUPS has no effect; OTEL_ROLLOUT_SAMPLE_RATE has"


# --- the most groups of a step -----------------------------------------------------------------------------


def install(module: ModuleType) -> None:
    """Wrap the method that splits a batch among workers, and hide verl's limit from verl.

    The method is in ``agent_loop``; the v1 trainer's is in ``agent_loop_tq``.
    """
    manager = "AgentLoopManagerTQ" if hasattr(module, "AgentLoopManagerTQ") else "AgentLoopManager"
    auto_await = getattr(module, "auto_await", None)
    seams.wrap(module, f"{manager}.generate_sequences", functools.partial(_choosing, auto_await), _LOSS)
    if module.__name__ == _MODULE and hasattr(module, "RolloutTraceConfig"):
        module.RolloutTraceConfig = _HiddenLimit(module.RolloutTraceConfig)  # type: ignore[attr-defined]


def _choosing(auto_await: Function | None, original: Function) -> Function:
    """Wrap ``generate_sequences``.

    Args:
        auto_await: verl's decorator of the method. It inspects its caller's frame, so it must stay outermost.
        original: verl's method.
    """
    inner = getattr(original, "__wrapped__", None)
    if auto_await is not None and inspect.iscoroutinefunction(inner):
        wrapped: Function = auto_await(_asynchronous(inner))
        return wrapped
    return _asynchronous(original) if inspect.iscoroutinefunction(original) else _synchronous(original)


def _asynchronous(original: Function) -> Function:
    @functools.wraps(original)
    async def generate_sequences(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        with _chosen(self, prompts) as chosen:
            output = await original(self, prompts, *args, **kwargs)
        _note_generated(self, prompts, output, chosen)
        return output

    return generate_sequences


def _synchronous(original: Function) -> Function:
    @functools.wraps(original)
    def generate_sequences(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        with _chosen(self, prompts) as chosen:
            output = original(self, prompts, *args, **kwargs)
        _note_generated(self, prompts, output, chosen)
        return output

    return generate_sequences


@contextmanager
def _chosen(manager: Any, prompts: Any) -> Iterator[frozenset[Any] | None]:
    """Choose the rows to record, and put them into the context inside the block."""
    chosen = _chosen_rows(prompts)
    if not hasattr(prompts, "meta_info"):
        _note_prompts(manager, prompts, chosen)
    with current_context(with_chosen(chosen, get_current())):
        yield chosen


@internal_errors("identifying the rows of a generated batch")
def _note_generated(manager: Any, prompts: Any, output: Any, chosen: frozenset[Any] | None) -> None:
    if hasattr(output, "non_tensor_batch") and is_recorded_here():  # the v1 trainer's workers return nothing
        note_generated(manager, prompts, output, chosen)


@internal_errors("identifying the prompts of a batch")
def _note_prompts(manager: Any, prompts: Any, chosen: frozenset[Any] | None) -> None:
    if is_recorded_here():
        note_prompts(manager, prompts, chosen)


@internal_errors("choosing the groups of a batch")
def _chosen_rows(prompts: Any) -> frozenset[Any] | None:
    """Return the indices of the samples to record; None for no limit. Never raises."""
    settings = membership.decide()
    if not (settings.enabled and settings.sample_groups):
        return None
    information = getattr(prompts, "meta_info", prompts)  # a DataProto has meta_info, a TensorDict has not
    rows = getattr(prompts, "non_tensor_batch", prompts)
    if "index" not in rows:
        return None
    step = information["global_steps"]
    validate = bool(information["validate"]) if "validate" in information else False
    indices = map(plain, rows["index"])
    groups = (Group.named(settings.experiment, step, index, validate) for index in indices)
    return GroupSampling(settings).chosen(groups)


# --- verl's limit of samples per worker --------------------------------------------------------------------


class _Row(dict):  # type: ignore[type-arg]
    """verl's description of a trajectory.

    ``row`` is the trajectory's row in the worker's batch; ``is_chosen`` tells whether to record it.
    """

    row: int
    is_chosen: bool


@seams.around(_MODULE, "get_trajectory_info", "max_samples_per_step_per_worker has no effect")
async def _get_trajectory_info(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    information = await original(*args, **kwargs)
    with internal_errors("choosing which samples are traced"):
        return _with_choice(information) if is_recorded_here() else information
    return information


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
    """An object that forwards attributes to another one, except those that a subclass defines."""

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
