"""Record tool calls of verl's agent loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.logged_errors import LoggedErrors
from otel_rollout.integrations.kit.spans import describe_tool_call, set_output
from otel_rollout.integrations.verl import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.traced_functions import Role, running

_MODULE: Final = "verl.experimental.agent_loop.tool_agent_loop"
_FAILURES: Final = (
    "Error executing tool '",
    "Unknown function '",
    "Invalid JSON in arguments for '",
)
"""Prefixes of the text with which verl answers the model after a failed call."""


@seams.around(_MODULE, "ToolAgentLoop._call_tool", "tool calls are traced only where decorated")
async def _call_tool(original: Function, /, self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_recorded_here():
        return await original(self, tool_call, *args, **kwargs)
    name, arguments, call_id = (
        getattr(tool_call, each, None) for each in ("name", "arguments", "tool_call_id")
    )
    return await _execute_tool(lambda: original(self, tool_call, *args, **kwargs), call_id, name, arguments)


@otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL, exclude=("call", "call_id"))
async def _execute_tool(call: Callable[[], Awaitable[Any]], call_id: Any, name: Any, arguments: Any) -> Any:
    """Have verl call a tool of any type. verl turns every error into text for the model."""
    describe_tool_call(name, call_id)
    with LoggedErrors() as errors, running(Role.TOOL, None, "execute"):
        answer = await call()
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
