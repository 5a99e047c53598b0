"""Record the requests of a trajectory in vLLM's engine, each when it is over.

All engines hand a request to ``OutputProcessor.add_request``, in the caller's context, and learn there that
it has ended. So nothing is done for a token. vLLM counts times only if its log statistics are on; without
them a request has its start, end, ids and token counts. A request that vLLM traces itself is recorded here
only if it fails: then vLLM makes no span.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from opentelemetry.context import Context

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.state import state as engines
from otel_rollout.integrations.vllm import seams
from otel_rollout.record import runtime
from otel_rollout.record.capture import engine_request
from otel_rollout.record.capture.context import is_in_trajectory
from otel_rollout.record.recording.entered import present_context

MAX_OPEN: Final = 1 << 16
"""Requests of one engine that are followed at once; of more, the oldest are not recorded."""
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
    """Follow a request; each of the ``n`` of a request for several answers is one."""
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
    """Record the requests of an engine that goes on with none of them."""
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
