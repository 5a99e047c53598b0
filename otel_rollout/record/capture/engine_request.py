"""Record a request in an inference engine, and its phases, below the model call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import StatusCode

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, pass_on, warn_once
from otel_rollout.base.given import reading, text_given
from otel_rollout.otlp.engine_phases import MAX_SECONDS
from otel_rollout.record import runtime
from otel_rollout.record.capture import span_io
from otel_rollout.record.capture.context import is_in_trajectory
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.recording.identity import identity_in
from otel_rollout.record.recording.span import RecordingSpan


def record(
    context: Context,
    times: tuple[int, int],
    attributes: Mapping[str, float | int | str],
    error: BaseException | str | None = None,
) -> None:
    """Record a request that is over as a span below a context's span, with the phases whose times are known.

    Nothing is recorded if the context's trace is not recorded.

    Args:
        context: the context of the model call.
        times: start and end of the request, Unix time in ns.
        attributes: attributes of the span, by names of :mod:`otel_rollout.base.semconv`.
        error: the exception, or a word, with which the request failed.
    """
    active, parent = runtime.current(), trace.get_current_span(context)
    if active is None or not parent.get_span_context().is_valid:
        return
    name, start_ns = semconv.ENGINE_REQUEST, times[0]
    span = span_io.start(active, name, semconv.KIND_CHAIN, parent, context, start_ns)
    if span is None or not span.is_recording():
        return
    try:
        for key, value in attributes.items():
            span.set_attribute(key, value)
        if isinstance(error, BaseException):
            span_io.fail(span, error)
        elif error is not None:
            span.set_attribute(semconv.ERROR_TYPE, error)
            span.set_status(StatusCode.ERROR, error)
    finally:
        span.end(times[1])
    identity = span.identity if type(span) is RecordingSpan else identity_in(context)
    active.writer.write_phases(span.get_span_context(), attributes, start_ns, identity)


# --- times that vLLM says ----------------------------------------------------------------------------------


_DURATIONS: Final = {
    "queue_time_ms": semconv.LATENCY_QUEUE,
    "time_to_first_token_ms": semconv.LATENCY_PREFILL,
    "generation_time_ms": semconv.LATENCY_DECODE,
}
"""Field of a response's ``metrics`` → our attribute."""
_POINTS: Final = {
    semconv.LATENCY_QUEUE: ("queued_ts", "scheduled_ts"),
    semconv.LATENCY_PREFILL: ("scheduled_ts", "first_token_ts"),
    semconv.LATENCY_DECODE: ("first_token_ts", "last_token_ts"),
    semconv.LATENCY_INFERENCE: ("scheduled_ts", "last_token_ts"),
}
"""Our attribute → two fields of ``RequestOutput.metrics``: the start and the end of the attribute's time."""
_MAX_NUMBER: Final = 1e12
_NS: Final = 1_000_000_000
_NO_TIMES: Final = (
    "record_engine_times() got no times of vLLM's: start the server with --enable-per-request-metrics and "
    "pass the response's `metrics`, or set disable_log_stats=False and pass RequestOutput.metrics"
)

Times = dict[str, float]
"""Name of an attribute ``gen_ai.latency.*`` → seconds."""


def record_engine_times(metrics: object, request_id: str | None = None) -> None:
    """Record how long an inference engine let a request wait, and how long it computed.

    Call this in the operation that calls the model, as soon as the response is there. A span ``llm_request``
    becomes the child of the current operation, with the spans ``queue``, ``prefill`` and ``decode`` below it,
    as far as their times are known. Where vLLM traces its requests, or runs in a process with our
    integration, there is such a span already. Outside any trajectory nothing is recorded. Never raises:
    metrics without a usable time cause a warning.

    Args:
        metrics: vLLM's numbers, in one of two forms. ``metrics`` of a response of its OpenAI server, as a
            dict or as the client's object, from a server that was started with
            ``--enable-per-request-metrics``: ``queue_time_ms``, ``time_to_first_token_ms`` and
            ``generation_time_ms``, in milliseconds. Or ``RequestOutput.metrics`` of an engine with
            ``disable_log_stats=False``: points in time, in seconds.
        request_id: the engine's id of the request, which the span shows as ``gen_ai.request.id``.
    """
    with internal_errors("recording the times of a request"):
        context = present_context()
        if runtime.current() is None or not is_in_trajectory(context):
            return
        times = times_of_response(metrics) or times_of_state(metrics)
        if not times:
            warn_once(_NO_TIMES)
            return
        attributes: dict[str, float | int | str] = dict(times)
        if request_id is not None:
            with reading("it", "record_engine_times() ignores request_id="):
                attributes[semconv.GEN_AI_REQUEST_ID] = text_given(request_id)
        end_ns = time.time_ns()
        start_ns = arrival_ns(metrics, end_ns) or end_ns - round(times[semconv.LATENCY_TOTAL] * _NS)
        record(context, (start_ns, end_ns), attributes)


def times_of_response(metrics: object) -> Times:
    """Return the times that a response's ``metrics`` hold; empty for metrics of another form."""
    return _summed({key: _duration(metrics, name) for name, key in _DURATIONS.items()})


def times_of_state(metrics: object) -> Times:
    """Return the times that ``RequestOutput.metrics`` hold; empty for metrics of another form."""
    found = {key: _between(metrics, *names) for key, names in _POINTS.items()}
    first_token = _number(_field(metrics, "first_token_latency"))
    if first_token and first_token <= MAX_SECONDS and found[semconv.LATENCY_PREFILL] is not None:
        found[semconv.LATENCY_FIRST_TOKEN] = first_token
    return _summed(found)


def arrival_ns(metrics: object, end_ns: int) -> int | None:
    """Return when a request arrived, Unix time in ns; None if ``metrics`` hold no plausible time.

    Args:
        metrics: ``RequestOutput.metrics``, or the engine's request.
        end_ns: end of the request.
    """
    arrival = _number(_field(metrics, "arrival_time"))
    if arrival is None or not 0 <= end_ns / _NS - arrival <= MAX_SECONDS:
        return None
    return round(arrival * _NS)


def _summed(found: Mapping[str, float | None]) -> Times:
    """Return the times that are known, and those that follow from them."""
    times = {key: seconds for key, seconds in found.items() if seconds is not None}
    queue, prefill, decode = (times.get(key) for key in _DURATIONS.values())
    if not times:
        return times
    if queue is not None and prefill is not None:
        times.setdefault(semconv.LATENCY_FIRST_TOKEN, queue + prefill)
    if prefill is not None and decode is not None:
        times.setdefault(semconv.LATENCY_INFERENCE, prefill + decode)
    to_first_token = times.get(semconv.LATENCY_FIRST_TOKEN, (queue or 0) + (prefill or 0))
    times.setdefault(semconv.LATENCY_TOTAL, to_first_token + (decode or 0))
    return times


def _duration(metrics: object, name: str) -> float | None:
    given = _field(metrics, name)
    if given is None:
        return None
    found = _number(given)
    if found is None or found > MAX_SECONDS * 1000:
        warn_once(f"record_engine_times() ignores {name}: it is no duration in milliseconds", name)
        return None
    return found / 1000


def _between(metrics: object, start: str, end: str) -> float | None:
    """Return the seconds between two points in time; None unless both are known."""
    points = _number(_field(metrics, start)), _number(_field(metrics, end))
    if not points[0] or not points[1]:  # 0: the request has not reached that point
        return None
    seconds = points[1] - points[0]
    return seconds if 0 <= seconds <= MAX_SECONDS else None


def _field(metrics: object, name: str) -> Any:
    try:
        return metrics.get(name) if isinstance(metrics, Mapping) else getattr(metrics, name, None)
    except Exception as error:  # noqa: BLE001 - of the caller's object
        pass_on(error)
        return None


def _number(value: Any) -> float | None:
    """Return a value as a float; None if it is not a number, or not in the range of a clock."""
    type_ = type(value)  # `isinstance` asks the object, which may raise
    if type_ is bool or not issubclass(type_, (int, float)):
        return None
    return float(value) if 0 <= value <= _MAX_NUMBER else None
