"""vLLM's own tracing: its spans of a request join the trajectory that made it.

verl calls the engine without trace headers. Where vLLM traces (``otlp_traces_endpoint``), they are added.
vLLM needs its statistics for that: without them (``disable_log_stats``) its engine dies at the first request.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base.errors import fault, warn_once
from otel_rollout.integrations.verl import seams

_COVERS: Final = "vLLM's own spans do not join trajectories, but for gen_ai.request.id on both"
NEEDS_STATISTICS: Final = (
    "vLLM's engine will die at its first request: otlp_traces_endpoint is set, and disable_log_stats is True "
    "(verl's default). Set actor_rollout_ref.rollout.disable_log_stats=False, or no otlp_traces_endpoint"
)
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
            if _traces(self) and given.get("trace_headers") is None:
                headers: dict[str, str] = {}
                _propagator.inject(headers)
                kwargs |= {"trace_headers": headers} if headers else {}
        except Exception as error:  # noqa: BLE001 - the request goes out without
            fault("adding trace headers to a request of vLLM's", error)
        return original(self, *args, **kwargs)

    return generate


def _traces(engine: Any) -> bool:
    """Tell whether the engine makes spans; warn once where it is going to fail at that."""
    configured = getattr(engine, "observability_config", None)
    if configured is None:
        configured = getattr(getattr(engine, "vllm_config", None), "observability_config", None)
    if getattr(configured, "otlp_traces_endpoint", None) is None:
        return False
    if getattr(engine, "log_stats", None) is False:
        warn_once(NEEDS_STATISTICS)
    return True
