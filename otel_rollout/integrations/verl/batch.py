"""A whole batch on its way to the workers: the one place where a limit of groups can be kept exactly.

``AgentLoopManager.generate_sequences`` hands each worker a part of the batch. Which rows are recorded is
chosen before, and travels with the calls as context does (:mod:`otel_rollout.propagation`): nothing is added
to the batch, where agent loops and trainers would find it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from opentelemetry.context import attach, get_current

from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl import seams
from otel_rollout.recording.sampling import Group, GroupSampling, with_chosen
from otel_rollout.runs import membership

_COVERS: Final = "OTEL_ROLLOUT_SAMPLE_GROUPS needs OTEL_ROLLOUT_GROUPS_PER_STEP"


def install(module: ModuleType) -> None:
    """Wrap where a batch is handed out (``agent_loop``; in the v1 trainer ``agent_loop_tq``)."""
    holder = "AgentLoopManagerTQ" if hasattr(module, "AgentLoopManagerTQ") else "AgentLoopManager"
    again = getattr(module, "auto_await", None)
    seams.wrap(module, f"{holder}.generate_sequences", functools.partial(_choosing, again), _COVERS)


def plain_index(index: Any) -> Any:
    """A sample's index as something that equals itself: a tensor is only itself."""
    return index.item() if hasattr(index, "item") else index


def _choosing(again: Callable[..., Any] | None, original: Callable[..., Any]) -> Callable[..., Any]:
    """Args: again: verl's ``auto_await``, which looks at who calls it: it has to be the outermost."""
    inner = getattr(original, "__wrapped__", None)
    if again is not None and inspect.iscoroutinefunction(inner):
        wrapped: Callable[..., Any] = again(_asynchronous(inner))
        return wrapped
    return _asynchronous(original) if inspect.iscoroutinefunction(original) else _synchronous(original)


def _asynchronous(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def generate_sequences(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        with _handing_out(prompts):
            return await original(self, prompts, *args, **kwargs)

    return generate_sequences


def _synchronous(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate_sequences(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        with _handing_out(prompts):
            return original(self, prompts, *args, **kwargs)

    return generate_sequences


@contextlib.contextmanager
def _handing_out(prompts: Any) -> Iterator[None]:
    """A block whose calls tell which rows of a batch are recorded."""
    outside = get_current()
    inside = with_chosen(_chosen(prompts), outside)
    attach(inside)
    try:
        yield
    finally:
        if get_current() is inside:  # else it was closed from elsewhere
            attach(outside)


def _chosen(prompts: Any) -> frozenset[Any] | None:
    """The rows of a batch that are recorded; None where nothing limits them. Never raises."""
    try:
        settings = membership.decide()
        sampling = GroupSampling.of(settings) if settings.enabled else None
        if sampling is None or not sampling.most:
            return None
        described = getattr(prompts, "meta_info", prompts)  # a DataProto's, else a TensorDict
        rows = getattr(prompts, "non_tensor_batch", prompts)
        if "index" not in rows:
            return None
        step = described["global_steps"]
        validate = bool(described["validate"]) if "validate" in described else False
        indices = map(plain_index, rows["index"])
        return sampling.chosen(Group.named(settings.experiment, step, index, validate) for index in indices)
    except Exception as error:  # noqa: BLE001 - what is recorded is what is recorded without a limit
        fault("choosing the groups of a batch", error)
        return None
