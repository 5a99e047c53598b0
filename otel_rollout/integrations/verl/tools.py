"""Tool calls of verl's agent loop, whatever the tool's kind, and answers of simulated users."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.integrations.verl import caught, seams, trajectory
from otel_rollout.integrations.verl.caught import Watched
from otel_rollout.integrations.verl.operations import Entered, Role
from otel_rollout.integrations.verl.recorder import is_ours

_FAILURES: Final = (
    "Error executing tool '",
    "Unknown function '",
    "Invalid JSON in arguments for '",
    "Error when executing tool: ",  # before 0.8
)
"""How verl begins the text with which a failed call answers the model."""


def install(module: ModuleType) -> None:
    """Wrap what calls tools (``verl.experimental.agent_loop.tool_agent_loop``)."""
    seams.wrap(module, "ToolAgentLoop._call_tool", _calling, "tool calls are traced only where decorated")
    if hasattr(module.ToolAgentLoop, "_handle_interacting_state"):
        seams.wrap(
            module, "ToolAgentLoop._handle_interacting_state", _interacting, "interactions are not traced"
        )
    caught.install(module)


# --- a tool call -------------------------------------------------------------------------------------------


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _call_tool(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, tool_call, *args, **kwargs)
        if not is_ours():
            return await call()
        name, arguments = getattr(tool_call, "name", None), getattr(tool_call, "arguments", None)
        return await _ToolCall(call, getattr(tool_call, "tool_call_id", None)).execute_tool(name, arguments)

    return _call_tool


class _ToolCall:
    """One call of a tool, whatever its kind."""

    def __init__(self, call: Callable[[], Any], call_id: str | None) -> None:
        self._call = call
        self._id = call_id

    @otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL)
    async def execute_tool(self, name: Any, arguments: Any) -> Any:
        """Have verl call the tool, whose span this is. It turns every error into text for the model."""
        span = trace.get_current_span()
        span.update_name(f"execute_tool {name}")
        span.set_attribute(semconv.GEN_AI_OPERATION_NAME, "execute_tool")
        span.set_attribute(semconv.GEN_AI_TOOL_NAME, str(name))
        if self._id is not None:
            span.set_attribute(semconv.GEN_AI_TOOL_CALL_ID, str(self._id))
        with Watched() as watched, Entered(Role.TOOL, None, "execute"):
            answer = await self._call()
        _describe(watched, answer)
        return answer


def _describe(call: Watched, answer: Any) -> None:
    """Show what a tool answered, on the span of its call."""
    try:
        response, reward, metrics = answer
    except (TypeError, ValueError):  # older versions answer otherwise
        return
    text = getattr(response, "text", None)
    if isinstance(text, str) and text.startswith(_FAILURES) and not call.has_failed:
        call.failed(text)  # verl's logger is silent
    trajectory.show_output({"response": response, "reward": reward, "metrics": metrics})


# --- an interaction (verl < 0.8) ---------------------------------------------------------------------------


def _interacting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _handle_interacting_state(self: Any, agent_data: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, agent_data, *args, **kwargs)
        if not is_ours():
            return await call()
        return await _Interaction(call, agent_data).interaction()

    return _handle_interacting_state


class _Interaction:
    """One answer of a simulated user."""

    def __init__(self, call: Callable[[], Any], agent_data: Any) -> None:
        self._call = call
        self._agent_data = agent_data

    @otel_rollout.rollout_trace_op(name="interaction", kind=semconv.KIND_CHAIN)
    async def interaction(self) -> Any:
        """Have verl ask it; the span shows what it said."""
        result = await self._call()
        messages = getattr(self._agent_data, "messages", None)
        scores = getattr(self._agent_data, "turn_scores", None)
        shown = {"message": messages[-1] if messages else None, "state": str(result)}
        trajectory.show_output({**shown, "reward": scores[-1] if scores else None})
        return result
