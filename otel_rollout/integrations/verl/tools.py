"""Record tool calls of verl's agent loop, and answers of simulated users."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.integrations.kit.logged_errors import LoggedErrors
from otel_rollout.integrations.kit.spans import set_attributes, set_output, tool_call
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.roles import Role
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.traced_functions import RunningOperation

_FAILURES: Final = (
    "Error executing tool '",
    "Unknown function '",
    "Invalid JSON in arguments for '",
    "Error when executing tool: ",  # before 0.8
)
"""Prefixes of the text with which verl answers the model after a failed call."""


def install(module: ModuleType) -> None:
    """Wrap the methods of the tool agent loop that call tools and users."""
    seams.wrap(
        module, "ToolAgentLoop._call_tool", _tracing_tool, "tool calls are traced only where decorated"
    )
    if hasattr(module.ToolAgentLoop, "_handle_interacting_state"):
        seams.wrap(
            module,
            "ToolAgentLoop._handle_interacting_state",
            _tracing_interaction,
            "interactions are not traced",
        )


# --- a tool call -------------------------------------------------------------------------------------------


def _tracing_tool(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _call_tool(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, tool_call, *args, **kwargs)
        if not is_recorded_here():
            return await call()
        name, arguments = getattr(tool_call, "name", None), getattr(tool_call, "arguments", None)
        return await _ToolCall(call, getattr(tool_call, "tool_call_id", None)).execute_tool(name, arguments)

    return _call_tool


class _ToolCall:
    """A call of one tool of any type."""

    def __init__(self, call: Callable[[], Any], call_id: str | None) -> None:
        self._call = call
        self._id = call_id

    @otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL)
    async def execute_tool(self, name: Any, arguments: Any) -> Any:
        """Have verl call the tool inside a span.

        verl turns every error into text for the model.
        """
        span = trace.get_current_span()
        span_name, attributes = tool_call(name, self._id)
        span.update_name(span_name)
        set_attributes(span, attributes)
        with LoggedErrors() as errors, RunningOperation(Role.TOOL, None, "execute"):
            answer = await self._call()
        _describe_answer(errors, answer)
        return answer


def _describe_answer(errors: LoggedErrors, answer: Any) -> None:
    """Show a tool's answer on the span of its call."""
    try:
        response, reward, metrics = answer
    except (TypeError, ValueError):  # the answer of another version of verl
        return
    text = getattr(response, "text", None)
    if isinstance(text, str) and text.startswith(_FAILURES) and not errors.has_failed:
        errors.fail(text)  # verl logged nothing
    set_output({"response": response, "reward": reward, "metrics": metrics})


# --- an interaction (verl < 0.8) ---------------------------------------------------------------------------


def _tracing_interaction(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _handle_interacting_state(self: Any, agent_data: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, agent_data, *args, **kwargs)
        if not is_recorded_here():
            return await call()
        return await _Interaction(call, agent_data).interaction()

    return _handle_interacting_state


class _Interaction:
    """Answer of a simulated user."""

    def __init__(self, call: Callable[[], Any], agent_data: Any) -> None:
        self._call = call
        self._agent_data = agent_data

    @otel_rollout.rollout_trace_op(name="interaction", kind=semconv.KIND_CHAIN)
    async def interaction(self) -> Any:
        """Have verl ask the simulated user inside a span that shows the answer."""
        result = await self._call()
        messages = getattr(self._agent_data, "messages", None)
        scores = getattr(self._agent_data, "turn_scores", None)
        output = {"message": messages[-1] if messages else None, "state": str(result)}
        set_output({**output, "reward": scores[-1] if scores else None})
        return result
