"""Follow vLLM's engines: their construction, the spans that they make themselves, and their death.

If vLLM traces (``otlp_traces_endpoint``), it makes a request's span itself, below the span that the trace
headers name. So the headers name the trajectory that made the request.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import attach, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base.environment import NAMES_VARIABLE
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.integrations.vllm import requests, seams
from otel_rollout.record.capture.context import is_in_trajectory, without_trajectory
from otel_rollout.record.recording.application import sdk_provider_in
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.runs import membership

ENGINES: Final = {"vllm.v1.engine.async_llm": "AsyncLLM", "vllm.v1.engine.llm_engine": "LLMEngine"}
"""Module → class of an engine."""


def _of_engine(method: str) -> Callable[[ModuleType], str]:
    """Return what names a method of the engine's class in one of vLLM's modules."""
    return lambda module: f"{ENGINES[module.__name__]}.{method}"


# --- construction ------------------------------------------------------------------------------------------


NEEDS_STATISTICS: Final = (
    "vLLM's engine will die at its first request: otlp_traces_endpoint is set, and disable_log_stats is True "
    "(the default of LLM, and of verl). Set disable_log_stats=False "
    "(verl: actor_rollout_ref.rollout.disable_log_stats=False), or no otlp_traces_endpoint"
)
"""Warning for a configuration with which vLLM's engine would die."""
SEEDED: Final = (
    "vLLM has set the seed {} for Python's random numbers in this process, so OpenTelemetry's SDK makes the "
    "ids of earlier runs again. Ids of otel-rollout's spans are not affected. For the other spans of this "
    "process, set a tracer provider with an id_generator that draws from random.SystemRandom()"
)
"""Warning for a process whose SDK draws ids from a generator that vLLM has seeded."""
VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""Variable that an engine that traces sets in its process's environment, for its workers.

The exporter ``otlp`` reads it, and so do the checks whether a process names another target than its run.
"""


@seams.before(
    ENGINES,
    _of_engine("__init__"),
    f"processes that it starts may take {VARIABLE}, which it sets, for the run's target",
)
def _hide(_: Any, vllm_config: Any = None, *__: Any, **___: Any) -> None:
    """Decide the run, and list the variable with those that lead to a receiver, unless the user has set
    it."""
    config = getattr(vllm_config, "observability_config", None)
    if getattr(config, "otlp_traces_endpoint", None) is None:
        return
    membership.settle()
    names = [name for name in os.environ.get(NAMES_VARIABLE, "").split(",") if name]
    if not os.environ.get(VARIABLE, "").strip():
        os.environ[NAMES_VARIABLE] = ",".join([*names, VARIABLE])


@seams.after(
    ENGINES,
    _of_engine("__init__"),
    "nothing warns if the engine's settings let it die at its first request",
)
def _examine(_: None, engine: Any, *__: Any, **___: Any) -> None:
    """Warn of what will go wrong: the engine would die, or ids repeat."""
    if _traces(engine) and getattr(engine, "log_stats", None) is False:
        warn_once(NEEDS_STATISTICS)
    seed = getattr(getattr(engine, "model_config", None), "seed", None)
    if isinstance(seed, int) and _has_seeded_ids() and was_seeded(seed):
        warn_once(SEEDED.format(seed))


def _has_seeded_ids() -> bool:
    """Return whether spans of this process have ids of OpenTelemetry's default generator."""
    provider = sdk_provider_in(trace.get_tracer_provider())
    if provider is None:
        return False
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    return type(provider.id_generator) is RandomIdGenerator


def was_seeded(seed: int) -> bool:
    """Return whether Python's global generator was seeded so, and few numbers were drawn since.

    Only the state is compared, so no number is drawn. The generator's words change all at once, at the first
    draw and then after 624.
    """
    of_seed = random.Random(seed)  # noqa: S311 - compared, not used
    words = random.getstate()[1][:-1]
    if words == of_seed.getstate()[1][:-1]:
        return True
    of_seed.random()
    return bool(words == of_seed.getstate()[1][:-1])


# --- the spans that vLLM makes itself ----------------------------------------------------------------------


_NOT_JOINED: Final = "vLLM's own spans do not join trajectories, but for gen_ai.request.id on both"
_PARAMETER: Final = "trace_headers"
_propagator: Final = TraceContextTextMapPropagator()


def install(module: ModuleType) -> None:
    """Wrap the method by which an engine takes a request."""
    seams.wrap(module, _of_engine("add_request")(module), _with_headers, _NOT_JOINED)


def _with_headers(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    if _PARAMETER not in signature.parameters:
        seams.warn_missing(f"parameter {_PARAMETER} of {original.__qualname__}", _NOT_JOINED)
        return original

    @functools.wraps(original)
    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        with internal_errors("adding trace headers to a request of vLLM's"):
            if _traces(self):
                given = signature.bind_partial(self, *args, **kwargs)
                headers = None if given.arguments.get(_PARAMETER) is not None else _headers()
                if headers:
                    given.arguments[_PARAMETER] = headers
                    _, *args, kwargs = *given.args, given.kwargs  # type: ignore[assignment]
        return original(self, *args, **kwargs)

    return add_request


def _traces(engine: Any) -> bool:
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


@seams.around(
    "vllm.v1.engine.async_llm",
    "AsyncLLM._run_output_handler",
    "vLLM's own spans of requests outside any trajectory may be below another request's",
)
def _run_output_handler(original: Callable[..., Any], /, self: Any) -> Any:
    """Start the task that serves all requests outside any trajectory.

    vLLM may start it with the first request. A task keeps the context in which it is started, and vLLM makes
    the span of a request without trace headers below the current span: that would be the trajectory of the
    first request.
    """
    if getattr(self, "output_handler", None) is not None:
        return original(self)
    outside = contextvars.copy_context()
    with internal_errors("starting a task of vLLM's outside any trajectory"):
        outside.run(lambda: attach(without_trajectory(get_current())))
    return outside.run(original, self)


# --- an engine that dies in this process -------------------------------------------------------------------


@seams.around("vllm.v1.engine.llm_engine", "LLMEngine.step", "requests of an engine that dies are not traced")
def _step(original: Callable[..., Any], /, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the requests of an engine whose step fails: it answers none of them."""
    try:
        return original(self, *args, **kwargs)
    except Exception as error:
        with internal_errors("recording requests of an engine that died"):
            requests.fail_all(self.output_processor, error)
        raise
