"""Have vLLM's own span of a request join the trajectory that made the request.

If vLLM traces (``otlp_traces_endpoint``), it makes the span itself, below the span that the trace headers
name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.vllm.patched_modules import seams
from otel_rollout.record.capture.context import is_in_trajectory
from otel_rollout.record.recording.entered import present_context

ENGINES: Final = {"vllm.v1.engine.async_llm": "AsyncLLM", "vllm.v1.engine.llm_engine": "LLMEngine"}
"""Module → class of an engine."""
_LOSS: Final = "vLLM's own spans do not join trajectories, but for gen_ai.request.id on both"
_PARAMETER: Final = "trace_headers"
_propagator: Final = TraceContextTextMapPropagator()


def install(module: ModuleType) -> None:
    """Wrap the method by which an engine takes a request."""
    seams.wrap(module, f"{ENGINES[module.__name__]}.add_request", _with_headers, _LOSS)


def _with_headers(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    if _PARAMETER not in signature.parameters:
        seams.warn_missing(f"parameter {_PARAMETER} of {original.__qualname__}", _LOSS)
        return original

    @functools.wraps(original)
    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        with internal_errors("adding trace headers to a request of vLLM's"):
            if traces(self):
                given = signature.bind_partial(self, *args, **kwargs)
                headers = None if given.arguments.get(_PARAMETER) is not None else _headers()
                if headers:
                    given.arguments[_PARAMETER] = headers
                    _, *args, kwargs = *given.args, given.kwargs  # type: ignore[assignment]
        return original(self, *args, **kwargs)

    return add_request


def traces(engine: Any) -> bool:
    """Return whether an engine makes spans of its own."""
    config = getattr(engine, "observability_config", None)
    if config is None:
        config = getattr(getattr(engine, "vllm_config", None), "observability_config", None)
    return getattr(config, "otlp_traces_endpoint", None) is not None


def _headers() -> dict[str, str]:
    """Return the headers that name the current span; none outside any trajectory."""
    context = present_context()
    headers: dict[str, str] = {}
    if is_in_trajectory(context):
        _propagator.inject(headers, context)
    return headers
