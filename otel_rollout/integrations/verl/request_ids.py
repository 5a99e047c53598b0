"""Record the inference engine's request id on the span of the model call."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from opentelemetry import trace

from otel_rollout.base import semconv
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.verl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the method that makes request ids (``verl.workers.rollout.llm_server``)."""
    seams.wrap(
        module,
        "LLMServerClient._vllm_request_id",
        after(_record_id, "recording the engine's id of a request"),
        "model calls do not say under which id the engine knows them",
    )


def _record_id(request_id: Any, *_: Any, **__: Any) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute(semconv.GEN_AI_REQUEST_ID, str(request_id))
