"""Choose the groups of a batch to record, before verl splits the batch; remember the rows for their training.

Only ``AgentLoopManager.generate_sequences`` sees the whole batch, so an exact limit of groups per step must
be applied there. The chosen rows travel in the OpenTelemetry context of Ray's calls
(:mod:`otel_rollout.propagation`). The batch does not change, because agent loops and trainers read it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry.context import get_current

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import current_context
from otel_rollout.integrations.verl.identities import plain
from otel_rollout.integrations.verl.legacy_rows import note_generated
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.v1_rows import note_prompts
from otel_rollout.otlp.groups import Group
from otel_rollout.recording.sampling import GroupSampling, with_chosen
from otel_rollout.runs import membership

_LOSS: Final = "OTEL_ROLLOUT_SAMPLE_GROUPS has no effect; OTEL_ROLLOUT_SAMPLE_RATE has"


def install(module: ModuleType) -> None:
    """Wrap the method that splits a batch among workers.

    The method is in ``agent_loop``; the v1 trainer's is in ``agent_loop_tq``.
    """
    manager = "AgentLoopManagerTQ" if hasattr(module, "AgentLoopManagerTQ") else "AgentLoopManager"
    auto_await = getattr(module, "auto_await", None)
    seams.wrap(module, f"{manager}.generate_sequences", functools.partial(_choosing, auto_await), _LOSS)


def _choosing(auto_await: Callable[..., Any] | None, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``generate_sequences``.

    Args:
        auto_await: verl's decorator of the method. It inspects its caller's frame, so it must stay outermost.
        original: verl's method.
    """
    inner = getattr(original, "__wrapped__", None)
    if auto_await is not None and inspect.iscoroutinefunction(inner):
        wrapped: Callable[..., Any] = auto_await(_asynchronous(inner))
        return wrapped
    return _asynchronous(original) if inspect.iscoroutinefunction(original) else _synchronous(original)


def _asynchronous(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def generate_sequences(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = _chosen_rows(prompts)
        with current_context(with_chosen(chosen, get_current())):
            output = await original(self, prompts, *args, **kwargs)
        _note_generated(self, prompts, output, chosen)
        return output

    return generate_sequences


def _synchronous(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate_sequences(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = _chosen_rows(prompts)
        if not hasattr(prompts, "meta_info"):
            _note_prompts(self, prompts, chosen)
        with current_context(with_chosen(chosen, get_current())):
            output = original(self, prompts, *args, **kwargs)
        _note_generated(self, prompts, output, chosen)
        return output

    return generate_sequences


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
    sampling = GroupSampling.of(settings) if settings.enabled else None
    if sampling is None or not sampling.most:
        return None
    information = getattr(prompts, "meta_info", prompts)  # a DataProto has meta_info, a TensorDict has not
    rows = getattr(prompts, "non_tensor_batch", prompts)
    if "index" not in rows:
        return None
    step = information["global_steps"]
    validate = bool(information["validate"]) if "validate" in information else False
    indices = map(plain, rows["index"])
    return sampling.chosen(Group.named(settings.experiment, step, index, validate) for index in indices)
