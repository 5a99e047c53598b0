"""What verl's traced functions are: a model call, a tool, a parser, an agent loop; and what is known of each.

A function's role is told by its name and parameters, so that a user's class, or another version's, is known.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl import text, trajectory
from otel_rollout.integrations.verl.caught import Watched

_logger = logging.getLogger("otel_rollout")


class Role(Enum):
    """What an operation is to a trajectory; where it can, the value is OpenInference's kind of span."""

    GENERATE = semconv.KIND_LLM
    RUN = semconv.KIND_AGENT
    TOOL = semconv.KIND_TOOL
    PARSER = semconv.KIND_CHAIN
    OTHER = "OTHER"

    @property
    def kind(self) -> str:
        """OpenInference's kind of span."""
        return semconv.KIND_CHAIN if self is Role.OTHER else self.value


_SIGNS: Final = {
    ("generate", "prompt_ids"): Role.GENERATE,
    ("run", "sampling_params"): Role.RUN,
    ("execute", "instance_id"): Role.TOOL,
    ("extract_tool_calls", "responses_ids"): Role.PARSER,
}
"""Name of a function, a parameter it has → its role."""


def name_of(func: Callable[..., Any]) -> str:
    """A function's name; empty for a callable that has none."""
    return str(getattr(func, "__name__", ""))


def role_of(func: Callable[..., Any]) -> Role:
    """The role of a function that verl's decorator is put on."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return Role.OTHER
    for (name, parameter), role in _SIGNS.items():
        if name_of(func) == name and parameter in parameters:
            return role
    return Role.OTHER


def traced(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """``func`` recorded as a span that says what is known of its role; None if it cannot be recorded."""
    role = role_of(func)
    inner = _described_coroutine(func, role) if inspect.iscoroutinefunction(func) else func
    try:
        return otel_rollout.rollout_trace_op(kind=role.kind)(inner)
    except TypeError as error:
        _logger.warning("otel-rollout: %s", error)
        return None


def _described_coroutine(func: Callable[..., Any], role: Role) -> Callable[..., Any]:
    @functools.wraps(func)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with Entered(role, args[0] if args else None, name_of(func)), _watching(role):
            begin(role, args, kwargs)
            result = await func(*args, **kwargs)
            end(role, kwargs, result)
        if text.show(args) and role is Role.RUN:
            trajectory.answer_is_of(trace.get_current_span())
        return result

    return call


def _watching(role: Role) -> AbstractContextManager[Any]:
    return Watched() if role is Role.PARSER else nullcontext()


def begin(role: Role, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Describe the operation that is the current span, from its arguments. Never raises."""
    try:
        span = trace.get_current_span()
        if role is Role.GENERATE and span.is_recording():
            _request(span, args[0] if args else None, kwargs)
    except Exception as error:  # noqa: BLE001
        fault("describing an operation of verl's", error)


def end(role: Role, kwargs: dict[str, Any], result: Any) -> None:
    """Describe the operation that is the current span, from its result. Never raises."""
    try:
        span = trace.get_current_span()
        if role is Role.GENERATE and span.is_recording():
            _response(span, result)
        elif role is Role.RUN:
            trajectory.outputs_are(result)
    except Exception as error:  # noqa: BLE001
        fault("describing an operation of verl's", error)


# --- one span per operation --------------------------------------------------------------------------------


@dataclass
class _Around:
    """The operation that is running: another that is the same one to a trajectory gets no span of its own."""

    role: Role
    instance: Any
    name: str


_around: ContextVar[_Around | None] = ContextVar("otel-rollout-verl-operation", default=None)


class Entered:
    """The block in which an operation runs.

    Args:
        role: what the operation is.
        instance: the object whose method it is; None if that is not known yet.
        name: name of the method.
    """

    def __init__(self, role: Role, instance: Any, name: str) -> None:
        self._operation = _Around(role, instance, name)

    def __enter__(self) -> None:
        """Begin it."""
        self._before = _around.get()
        _around.set(self._operation)

    def __exit__(self, *_: object) -> None:
        """End it. Not by a token: a coroutine may be closed from another context than it ran in."""
        _around.set(self._before)


def has_its_span(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether the operation that is running is the one this call belongs to.

    So it is for a client's ``generate`` that calls its base class's, once for each attempt, and for a tool's
    ``execute``, whose span the agent loop's call of the tool has begun.
    """
    around = _around.get()
    if around is None:
        return False
    if around.role is Role.GENERATE:
        return bool(args) and args[0] is around.instance and name_of(func) == around.name
    if around.role is Role.TOOL and around.instance is None and name_of(func) == "execute":
        around.instance = args[0] if args else func  # a tool that calls another is two
        return True
    return False


# --- a model call ------------------------------------------------------------------------------------------


def _request(span: Span, client: Any, given: dict[str, Any]) -> None:
    sampling = given.get("sampling_params") or {}
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "text_completion",
        semconv.GEN_AI_REQUEST_MODEL: _model_of(client),
        semconv.GEN_AI_REQUEST_TEMPERATURE: _number(sampling.get("temperature")),
        semconv.GEN_AI_REQUEST_TOP_P: _number(sampling.get("top_p")),
        semconv.GEN_AI_REQUEST_TOP_K: _number(sampling.get("top_k")),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: sampling.get("max_tokens", sampling.get("max_new_tokens")),
        semconv.GEN_AI_USAGE_INPUT_TOKENS: _length(given.get("prompt_ids")),
    }
    _set(span, attributes)


def _response(span: Span, output: Any) -> None:
    extra = getattr(output, "extra_fields", None) or {}
    reason = getattr(output, "stop_reason", None)
    only = extra.get("global_steps")  # before 0.9 verl tells no range
    oldest, newest = extra.get("min_global_steps", only), extra.get("max_global_steps", only)
    attributes = {
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: _length(getattr(output, "token_ids", output)),
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: None if reason is None else [str(reason)],
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: extra.get("num_cached_tokens"),
        semconv.NUM_PREEMPTED: getattr(output, "num_preempted", None),
        semconv.POLICY_VERSION_MIN: oldest,
        semconv.POLICY_VERSION_MAX: newest,
    }
    _set(span, attributes)
    trajectory.weights_are(oldest, newest)


def _set(span: Span, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if value is not None:
            span.set_attribute(name, value)


def _model_of(client: Any) -> str | None:
    try:
        return str(client.config.actor_rollout_ref.model.path)
    except Exception:  # noqa: BLE001 - a user's client, or another version's
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _length(value: Any) -> int | None:
    return len(value) if hasattr(value, "__len__") else None
