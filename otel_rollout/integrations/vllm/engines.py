"""Follow vLLM's engines: their construction, the spans that they make themselves, requests, and their death.

If vLLM traces (``otlp_traces_endpoint``), it makes a request's span itself, below the span that the trace
headers name. So the headers name the trajectory that made the request.

All engines hand a request to their ``OutputProcessor``, in the caller's context. The same object learns that
the request has ended. So a request of a trajectory is recorded when it is over, and nothing is done for a
token. vLLM counts times only if its log statistics are on; without them a request has its start, end, ids and
token counts. A request that vLLM traces itself is recorded here only if it fails: then vLLM makes no span.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import random
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.environment import NAMES_VARIABLE
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.patching import Function
from otel_rollout.integrations.state import state as engines
from otel_rollout.integrations.vllm import seams
from otel_rollout.record import runtime
from otel_rollout.record.capture import engine_request
from otel_rollout.record.capture.context import is_in_trajectory, without_trajectory
from otel_rollout.record.recording.application import sdk_provider_in
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.runs import membership

ENGINES: Final = {"vllm.v1.engine.async_llm": "AsyncLLM", "vllm.v1.engine.llm_engine": "LLMEngine"}
"""Module → class of an engine."""


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
"""Variable that a tracing engine sets in the environment of its process, for its workers.

The exporter ``otlp`` reads it, and so do the checks whether a process names another target than its run.
"""


@seams.before(
    ENGINES,
    "__init__",
    f"processes that it starts may take {VARIABLE}, which it sets, for the run's target",
)
def _hide(_: Any, vllm_config: Any = None, *__: Any, **___: Any) -> None:
    """Decide this process's run, and list ``VARIABLE`` with the variables that lead to a receiver.

    If the user has set ``VARIABLE``, it is not listed.
    """
    config = getattr(vllm_config, "observability_config", None)
    if getattr(config, "otlp_traces_endpoint", None) is None:
        return
    membership.settle()
    names = [name for name in os.environ.get(NAMES_VARIABLE, "").split(",") if name]
    if not os.environ.get(VARIABLE, "").strip():
        os.environ[NAMES_VARIABLE] = ",".join([*names, VARIABLE])


@seams.after(ENGINES, "__init__", "nothing warns if the engine's settings let it die at its first request")
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
    if module.__name__ in ENGINES:
        seams.wrap(module, f"{ENGINES[module.__name__]}.add_request", _with_headers, _NOT_JOINED)


def _with_headers(original: Function) -> Function:
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
def _run_output_handler(original: Function, /, self: Any) -> Any:
    """Start, outside any trajectory, the task that serves all requests.

    vLLM may start the task with the first request. A task keeps the context in which it is started. vLLM
    makes the span of a request without trace headers below the current span, which would be in the trajectory
    of the first request.
    """
    if getattr(self, "output_handler", None) is not None:
        return original(self)
    outside = contextvars.copy_context()
    with internal_errors("starting a task of vLLM's outside any trajectory"):
        outside.run(lambda: attach(without_trajectory(get_current())))
    return outside.run(original, self)


# --- requests, each recorded when it is over ----------------------------------------------------------------


MAX_OPEN: Final = 1 << 16
"""Maximum requests of one engine that are followed at once; with more, the oldest are not recorded."""
_MODULE: Final = "vllm.v1.engine.output_processor"
_LOST: Final = "requests in vLLM's engine are not traced"
_ABORTED: Final = "aborted"
_FAILED: Final = "error"
"""vLLM's finish reason of a request that the engine could not answer."""


class OpenRequest(NamedTuple):
    """A request that the engine has taken.

    Attributes:
        context: the context in which it was made.
        start_ns: when it arrived, Unix time in ns.
        state: what vLLM knows of the request, changed as tokens arrive.
        is_traced: whether vLLM makes a span when the request finishes.
    """

    context: Context
    start_ns: int
    state: Any
    is_traced: bool


@seams.after(_MODULE, "OutputProcessor.add_request", _LOST)
def _begin(_: None, processor: Any, request: Any, *__: Any, **___: Any) -> None:
    """Follow a request. A request for ``n`` answers arrives as ``n`` requests."""
    context = present_context()
    if runtime.current() is None or not is_in_trajectory(context):
        return
    state = processor.request_states.get(request.request_id)
    requests = engines.requests.setdefault(processor, BoundedDict(MAX_OPEN))
    if state is None or getattr(state, "detokenizer", None) is None or request.request_id in requests:
        return  # an embedding, or further input of a request
    is_traced = bool(getattr(processor, "tracing_enabled", False) and request.trace_headers)
    now = time.time_ns()
    start_ns = engine_request.arrival_ns(request, now) or now
    requests[request.request_id] = OpenRequest(context, start_ns, state, is_traced)


@seams.before(_MODULE, "OutputProcessor._update_stats_from_finished", _LOST)
def _finish(processor: Any, state: Any, finish_reason: Any = None, *_: Any, **__: Any) -> None:
    requests = engines.requests.get(processor) or {}
    request = requests.get(state.request_id)
    if request is None or (request.is_traced and state.stats is None):
        return  # vLLM is about to make its span, and dies of the missing statistics: fail_all() records it
    del requests[state.request_id]
    if not request.is_traced:
        _record(request, _FAILED if str(finish_reason) == _FAILED else None)


@seams.after(
    _MODULE, "OutputProcessor.abort_requests", "requests that are aborted in vLLM's engine are not traced"
)
def _abort(aborted: Iterable[str], processor: Any, *_: Any, **__: Any) -> None:
    requests = engines.requests.get(processor) or {}
    for request_id in aborted if requests else ():
        request = requests.pop(request_id, None)
        if request is not None:
            _record(request, _ABORTED)


@seams.before(_MODULE, "OutputProcessor.propagate_error", "requests of an engine that dies are not traced")
def fail_all(processor: Any, error: BaseException | None = None) -> None:
    """Record all requests of an engine as failed, because it goes on with none of them."""
    requests = engines.requests.pop(processor, None) or {}
    for request in list(requests.values()):
        _record(request, error or _FAILED)


def _record(request: OpenRequest, error: BaseException | str | None) -> None:
    with internal_errors("recording a request of vLLM's"):
        end_ns = time.time_ns()
        found = _attributes(request.state)
        found[semconv.LATENCY_TOTAL] = (end_ns - request.start_ns) / 1e9
        engine_request.record(request.context, (request.start_ns, end_ns), found, error)


def _attributes(state: Any) -> dict[str, float | int | str]:
    """Return what vLLM knows of a request, by the names that its own span has."""
    stats = state.stats
    found: dict[str, Any] = {
        **({} if stats is None else engine_request.times_of_state(stats)),
        semconv.GEN_AI_REQUEST_ID: getattr(state, "external_req_id", None) or state.request_id,
        semconv.ENGINE_PROMPT_TOKENS: getattr(state, "prompt_len", None),
        semconv.ENGINE_COMPLETION_TOKENS: state.detokenizer.num_output_tokens(),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: getattr(state, "max_tokens_param", None),
        semconv.GEN_AI_REQUEST_TEMPERATURE: getattr(state, "temperature", None),
        semconv.GEN_AI_REQUEST_TOP_P: getattr(state, "top_p", None),
        semconv.NUM_PREEMPTED: getattr(stats, "num_preemptions", None) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


# --- an engine that dies in this process -------------------------------------------------------------------


@seams.around("vllm.v1.engine.llm_engine", "LLMEngine.step", "requests of an engine that dies are not traced")
def _step(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the requests of an engine whose step fails, because it answers none of them."""
    try:
        return original(self, *args, **kwargs)
    except Exception as error:
        with internal_errors("recording requests of an engine that died"):
            fail_all(self.output_processor, error)
        raise
