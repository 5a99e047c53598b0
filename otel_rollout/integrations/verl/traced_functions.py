"""Record the functions that verl decorates, with one span for each operation."""

from __future__ import annotations

import functools
import inspect
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from opentelemetry import trace

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, logger
from otel_rollout.base.finalizers import variable_set
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.logged_errors import LoggedErrors
from otel_rollout.integrations.kit.spans import number, set_attributes
from otel_rollout.integrations.verl import seams, trajectory
from otel_rollout.integrations.verl.trace_config import config
from otel_rollout.record import runtime
from otel_rollout.record.capture import span_io


class Role(Enum):
    """Role of a function in a trajectory.

    The role follows from the function's name and parameters. So functions of users' classes and of other
    versions of verl are recognized as well.
    """

    GENERATE = "generate"
    RUN = "run"
    TOOL = "tool"
    PARSER = "parser"
    OTHER = "other"

    @property
    def span_kind(self) -> str:
        """OpenInference span kind."""
        return _SPAN_KINDS.get(self, semconv.KIND_CHAIN)


_SPAN_KINDS: Final = {
    Role.GENERATE: semconv.KIND_LLM,
    Role.RUN: semconv.KIND_AGENT,
    Role.TOOL: semconv.KIND_TOOL,
}
_ROLES: Final = {
    ("generate", "prompt_ids"): Role.GENERATE,
    ("run", "sampling_params"): Role.RUN,
    ("execute", "instance_id"): Role.TOOL,
    ("extract_tool_calls", "responses_ids"): Role.PARSER,
}
"""Name of a function and of one of its parameters → its role."""


def name_of(func: Function) -> str:
    """Return a function's name; empty for a callable that has none."""
    return str(getattr(func, "__name__", ""))


def role_of(func: Function) -> Role:
    """Return the role of a function."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return Role.OTHER
    for (name, parameter), role in _ROLES.items():
        if name_of(func) == name and parameter in parameters:
            return role
    return Role.OTHER


def traced(func: Function) -> Function | None:
    """Return ``func`` as a recorded function; None if it cannot be recorded."""
    role = role_of(func)
    inner = _described(func, role) if inspect.iscoroutinefunction(func) else func
    try:
        return otel_rollout.rollout_trace_op(kind=role.span_kind)(inner)
    except TypeError as error:
        logger.warning("otel-rollout: %s", error)
        return None


def _described(func: Function, role: Role) -> Function:
    @functools.wraps(func)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with running(role, args[0] if args else None, name_of(func)), _logged_errors_of(role):
            describe_arguments(role, args, kwargs)
            result = await func(*args, **kwargs)
            describe_result(role, result)
        if show_text(args) and role is Role.RUN:
            trajectory.show_text_of(trace.get_current_span())
        return result

    return call


def show_text(args: tuple[Any, ...]) -> bool:
    """Have the current span show the text of its token ids, if verl's flag is set. Never raises.

    The forwarder detokenizes with the tokenizer of the object whose method is recorded, as verl's own code
    does. The ids of an object without a tokenizer get no text.

    Args:
        args: arguments of the recorded method, ``self`` first.

    Returns:
        Whether the span will show text.
    """
    with internal_errors("arranging for token2text"):
        if args and getattr(config(), "token2text", False):
            active, span = runtime.current(), trace.get_current_span()
            return active is not None and span.is_recording() and span_io.mark_for_text(active, span, args[0])
    return False


def _logged_errors_of(role: Role) -> AbstractContextManager[Any]:
    return LoggedErrors() if role is Role.PARSER else nullcontext()


@internal_errors("describing an operation of verl's")
def describe_arguments(role: Role, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Describe a model call, the operation of the current span, by its arguments. Never raises."""
    span = trace.get_current_span()
    if role is not Role.GENERATE or not span.is_recording():
        return
    sampling = kwargs.get("sampling_params") or {}
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "text_completion",
        semconv.GEN_AI_CONVERSATION_ID: kwargs.get("request_id"),  # verl's, one for all turns
        semconv.GEN_AI_REQUEST_MODEL: _model_of(args[0] if args else None),
        semconv.GEN_AI_REQUEST_TEMPERATURE: number(sampling.get("temperature")),
        semconv.GEN_AI_REQUEST_TOP_P: number(sampling.get("top_p")),
        semconv.GEN_AI_REQUEST_TOP_K: number(sampling.get("top_k")),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: sampling.get("max_tokens", sampling.get("max_new_tokens")),
        semconv.GEN_AI_USAGE_INPUT_TOKENS: _length(kwargs.get("prompt_ids")),
    }
    set_attributes(span, attributes)


@internal_errors("describing an operation of verl's")
def describe_result(role: Role, result: Any) -> None:
    """Describe the operation of the current span by its result: tokens, policy versions. Never raises.

    Args:
        role: role of the operation.
        result: the operation's result; of a model call, verl's ``TokenOutput`` or a list of token ids.
    """
    if role is Role.RUN:
        trajectory.note_outputs(result)
    span = trace.get_current_span()
    if role is not Role.GENERATE or not span.is_recording():
        return
    extra = getattr(result, "extra_fields", None) or {}
    reason = getattr(result, "stop_reason", None)
    oldest, newest = _policy_versions(extra)
    attributes = {
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: _length(getattr(result, "token_ids", result)),
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: None if reason is None else [str(reason)],
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: extra.get("num_cached_tokens"),
        semconv.NUM_PREEMPTED: getattr(result, "num_preempted", None),
        semconv.POLICY_VERSION_MIN: oldest,
        semconv.POLICY_VERSION_MAX: newest,
    }
    set_attributes(span, attributes)
    trajectory.note_policy_versions(oldest, newest)


# --- one span per operation --------------------------------------------------------------------------------


@dataclass
class RunningOperation:
    """An operation that runs.

    Attributes:
        role: role of the operation.
        instance: object whose method is called; None if the object is not known yet.
        name: name of the method.
        tokens: number of tokens that the attempts of a model call have generated.
    """

    role: Role
    instance: Any
    name: str
    tokens: int = 0


_innermost: ContextVar[RunningOperation | None] = ContextVar("otel-rollout-verl-operation", default=None)


def running(role: Role, instance: Any, name: str) -> AbstractContextManager[None]:
    """Return a context manager for a running operation: a nested call that is part of it gets no span.

    Args:
        role: role of the operation.
        instance: object whose method is called; None if the object is not known yet.
        name: name of the method.
    """
    return variable_set(_innermost, RunningOperation(role, instance, name))


def part_of_span(func: Function, args: tuple[Any, ...]) -> Function | None:
    """Return the function to call if the call is part of the innermost operation; otherwise None."""
    if not is_in_own_span(func, args):
        return None
    operation = _innermost.get()
    if operation is None or operation.role is not Role.GENERATE or not inspect.iscoroutinefunction(func):
        return func

    async def attempt(*args: Any, **kwargs: Any) -> Any:
        result = await func(*args, **kwargs)
        _describe_attempt(operation, result)
        return result

    return attempt


@internal_errors("describing an attempt of a model call")
def _describe_attempt(operation: RunningOperation, result: Any) -> None:
    """Note an attempt's tokens and policy versions, and record an event if it was interrupted."""
    operation.tokens += len(getattr(result, "token_ids", None) or ())
    span = trace.get_current_span()
    if not span.is_recording():
        return
    oldest, newest = _policy_versions(getattr(result, "extra_fields", None) or {})
    trajectory.note_policy_versions(oldest, newest)
    if getattr(result, "stop_reason", None) in _INTERRUPTED:
        facts = {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: operation.tokens, semconv.POLICY_VERSION_MAX: newest}
        span.add_event(semconv.INTERRUPTION, {name: fact for name, fact in facts.items() if fact is not None})


def is_in_own_span(func: Function, args: tuple[Any, ...]) -> bool:
    """Return whether this call is part of the innermost operation, which has a span.

    Such a call is the base class's ``generate`` inside a client's, once per attempt, or a tool's ``execute``
    inside the span of the agent loop's tool call.
    """
    operation = _innermost.get()
    if operation is None:
        return False
    if operation.role is Role.GENERATE:
        return bool(args) and args[0] is operation.instance and name_of(func) == operation.name
    if operation.role is Role.TOOL and operation.instance is None and name_of(func) == "execute":
        operation.instance = args[0] if args else func  # a second tool, called by this one, gets its own span
        return True
    return False


# --- model calls -------------------------------------------------------------------------------------------


_INTERRUPTED: Final = ("abort", "aborted")
"""Stop reasons of an answer that the engine interrupted, to update its weights."""


@seams.after(
    "verl.workers.rollout.llm_server",
    "LLMServerClient._vllm_request_id",
    "model calls do not say under which id the engine knows them",
)
def _record_id(request_id: Any, *_: Any, **__: Any) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute(semconv.GEN_AI_REQUEST_ID, str(request_id))


def _policy_versions(extra: dict[str, Any]) -> tuple[Any, Any]:
    """Return the oldest and the newest version; verl before 0.9 gives one version instead of a range."""
    version = extra.get("global_steps")
    oldest, newest = extra.get("min_global_steps"), extra.get("max_global_steps")
    return version if oldest is None else oldest, version if newest is None else newest


def _model_of(client: Any) -> str | None:
    try:
        return str(client.config.actor_rollout_ref.model.path)
    except Exception:  # noqa: BLE001 - a user's client, or another version's
        return None


def _length(value: Any) -> int | None:
    return len(value) if hasattr(value, "__len__") else None
