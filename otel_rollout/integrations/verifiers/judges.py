"""Record the model calls of judges.

They are no turns of the agent, so their spans are those of plain operations, inside the reward that asks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import set_attributes
from otel_rollout.integrations.verifiers import chat, rollouts
from otel_rollout.integrations.verifiers.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the method that asks a judge's model."""
    seams.wrap(module, "Judge.complete", _tracing, "judges' model calls are not traced")


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def complete(self: Any, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if rollouts.running(kwargs.get("trace")) is None:
            return await original(self, messages, *args, **kwargs)
        call = functools.partial(original, self, messages, *args, **kwargs)
        return await _JudgeCall(call, self.config.model).judge(_shown(messages))

    return complete


def _shown(messages: Any) -> Any:
    with internal_errors("showing what a judge is asked"):
        return messages if isinstance(messages, str) else chat.shown(messages)
    return None


class _JudgeCall:
    """A call of a judge's model."""

    def __init__(self, call: Callable[[], Any], model: Any) -> None:
        self._call = call
        self._model = model

    @otel_rollout.rollout_trace_op(name="judge", kind=semconv.KIND_CHAIN)
    async def judge(self, messages: Any) -> Any:
        """Have verifiers ask the judge inside a span."""
        response = await self._call()
        usage = getattr(response, "usage", None)
        attributes = {
            semconv.GEN_AI_REQUEST_MODEL: self._model,
            semconv.GEN_AI_USAGE_INPUT_TOKENS: getattr(usage, "input_tokens", None),
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: getattr(usage, "completion_tokens", None),
        }
        set_attributes(trace.get_current_span(), attributes)
        return response
