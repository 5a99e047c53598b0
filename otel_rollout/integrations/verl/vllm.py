"""Have vLLM's own spans of a request join the trajectory that made the request.

verl calls the engine without trace headers. If vLLM traces (``otlp_traces_endpoint``), this module adds them.
vLLM computes spans from its statistics; if they are off (``disable_log_stats``), vLLM's engine dies at the
first request.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.integrations.verl.patched_modules import seams

_LOSS: Final = "vLLM's own spans do not join trajectories, but for gen_ai.request.id on both"
NEEDS_STATISTICS: Final = (
    "vLLM's engine will die at its first request: otlp_traces_endpoint is set, and disable_log_stats is True "
    "(verl's default). Set actor_rollout_ref.rollout.disable_log_stats=False, or no otlp_traces_endpoint"
)
"""Warning for a configuration with which vLLM's engine would die."""
_propagator: Final = TraceContextTextMapPropagator()


def install(module: ModuleType) -> None:
    """Wrap the method that takes requests (``vllm.v1.engine.async_llm``)."""
    seams.wrap(module, "AsyncLLM.generate", _with_headers, _LOSS)


def lacks_statistics(verl_config: Any) -> bool:
    """Return whether verl's configuration lets vLLM trace without statistics."""
    try:
        rollout = verl_config["actor_rollout_ref"]["rollout"]
        engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
        disabled = engine.get("disable_log_stats", rollout.get("disable_log_stats"))
        return bool(engine.get("otlp_traces_endpoint") and disabled)
    except (AttributeError, KeyError, TypeError):
        return False


def _with_headers(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    if "trace_headers" not in signature.parameters:
        seams.warn_missing("parameter trace_headers of vLLM's AsyncLLM.generate", _LOSS)
        return original

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        with internal_errors("adding trace headers to a request of vLLM's"):
            given = signature.bind_partial(self, *args, **kwargs).arguments
            if _is_tracing(self) and given.get("trace_headers") is None:
                headers: dict[str, str] = {}
                _propagator.inject(headers)
                kwargs |= {"trace_headers": headers} if headers else {}
        return original(self, *args, **kwargs)

    return generate


def _is_tracing(engine: Any) -> bool:
    """Return whether the engine makes spans; warn once if its statistics are off."""
    config = getattr(engine, "observability_config", None)
    if config is None:
        config = getattr(getattr(engine, "vllm_config", None), "observability_config", None)
    if getattr(config, "otlp_traces_endpoint", None) is None:
        return False
    if getattr(engine, "log_stats", None) is False:
        warn_once(NEEDS_STATISTICS)
    return True
