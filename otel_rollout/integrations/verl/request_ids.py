"""Record the inference engine's request id on the span of the model call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from opentelemetry import trace

from otel_rollout.base import semconv
from otel_rollout.integrations.verl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the method that makes request ids (``verl.workers.rollout.llm_server``)."""
    seams.wrap(
        module,
        "LLMServerClient._vllm_request_id",
        _recording_id,
        "model calls do not say under which id the engine knows them",
    )


def _recording_id(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _vllm_request_id(self: Any, *args: Any, **kwargs: Any) -> Any:
        request_id = original(self, *args, **kwargs)
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute(semconv.GEN_AI_REQUEST_ID, str(request_id))
        return request_id

    return _vllm_request_id
