"""vLLM's own tracing: its spans of a request join the trajectory that made it.

verl calls the engine without trace headers. Where vLLM traces (``otlp_traces_endpoint``), they are added.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.capture.guard import fault
from otel_rollout.integrations.verl import seams

_COVERS: Final = "vLLM's own spans do not join trajectories, but for gen_ai.request.id on both"
_propagator: Final = TraceContextTextMapPropagator()


def install(module: ModuleType) -> None:
    """Wrap what takes requests (``vllm.v1.engine.async_llm``)."""
    seams.wrap(module, "AsyncLLM.generate", _with_headers, _COVERS)


def _with_headers(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    if "trace_headers" not in signature.parameters:
        seams.missing("parameter trace_headers of vLLM's AsyncLLM.generate", _COVERS)
        return original

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind_partial(self, *args, **kwargs).arguments
            if _is_traced(self) and given.get("trace_headers") is None:
                headers: dict[str, str] = {}
                _propagator.inject(headers)
                kwargs |= {"trace_headers": headers} if headers else {}
        except Exception as error:  # noqa: BLE001 - the request goes out without
            fault("adding trace headers to a request of vLLM's", error)
        return original(self, *args, **kwargs)

    return generate


def _is_traced(engine: Any) -> bool:
    configured = getattr(engine, "observability_config", None)
    if configured is None:
        configured = getattr(getattr(engine, "vllm_config", None), "observability_config", None)
    endpoint = getattr(configured, "otlp_traces_endpoint", None)
    return endpoint is not None and trace.get_current_span().get_span_context().is_valid
