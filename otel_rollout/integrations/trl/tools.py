"""Record the tool calls of one row, in the turns of TRL's tool loop."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import set_attributes
from otel_rollout.integrations.trl.batch import Sample


class Turn:
    """The calls for which the row's latest answer asks.

    Args:
        entry: the row.
        settle: records the model call that gave the answer.
    """

    def __init__(self, entry: Sample, settle: Callable[[], None]) -> None:
        self.entry = entry
        self._settle = settle
        self._message: Any = None
        self._calls: Sequence[dict[str, Any]] = ()
        self._position = 0
        self._skipped: list[tuple[int, int]] = []
        """Calls that reached no tool: position in the message, and Unix time in ns."""
        self._asynchronous: set[int] = set()
        """Positions of calls that TRL awaits after the others."""

    # --- tools --------------------------------------------------------------------------------------------

    def sync_tool(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls a tool inside a span of the row's trajectory."""

        @functools.wraps(tool)
        def call(*args: Any, **arguments: Any) -> Any:
            if args:
                return tool(*args, **arguments)
            _, id_ = self._reach(name, arguments)
            with self.entry.trajectory.inside():
                return _ToolCall(tool, id_).execute_tool(name, arguments)

        return call

    def async_tool(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a coroutine, which awaits a tool's inside a span."""

        @functools.wraps(tool)
        def call(*args: Any, **arguments: Any) -> Any:
            if args:
                return tool(*args, **arguments)
            position, id_ = self._reach(name, arguments)
            start_ns = time.time_ns()
            try:
                coroutine = tool(**arguments)
            except Exception as error:
                self._record_unreached(name, arguments, id_, start_ns, error)
                raise
            if position is not None:
                self._asynchronous.add(position)
            return self._awaiting(coroutine, name, arguments, id_)

        return call

    async def _awaiting(self, coroutine: Any, name: str, arguments: dict[str, Any], id_: str | None) -> Any:
        with self.entry.trajectory.inside():
            return await _ToolCall(coroutine, id_).await_tool(name, arguments)

    # --- which call of the message ------------------------------------------------------------------------

    def _reach(self, name: str, arguments: dict[str, Any]) -> tuple[int | None, str | None]:
        """Return position and id of the call that has reached a tool; note calls before it that have not."""
        with internal_errors("finding a tool call in its message"):
            self._begin(self.entry.completion[-1])
            for position in range(self._position, len(self._calls)):
                call = self._calls[position]
                function = _function_of(call)
                if function.get("name") == name and function.get("arguments") == arguments:
                    self._skip_to(position)
                    self._position = position + 1
                    return position, _id_of(call)
        return None, None

    def _begin(self, message: Any) -> None:
        """Begin a new turn unless the message is that of the present turn."""
        if message is self._message:
            return
        self._settle()
        self._message, self._calls = message, message.get("tool_calls") or ()
        self._position = 0
        self._skipped.clear()
        self._asynchronous.clear()

    def _skip_to(self, position: int) -> None:
        now = time.time_ns()
        self._skipped += [(skipped, now) for skipped in range(self._position, position)]

    def finish(self, answers: Sequence[dict[str, Any]]) -> None:
        """Record the calls that reached no tool, with the text that TRL answered.

        Args:
            answers: messages of the turn's tools. Those of coroutines come last.
        """
        self._begin(self.entry.completion[-len(answers) - 1])
        self._skip_to(len(self._calls))
        self._position = len(self._calls)
        if len(answers) != len(self._calls):
            return
        at_once = [place for place in range(len(self._calls)) if place not in self._asynchronous]
        for position, at_ns in self._skipped:
            call = self._calls[position]
            function = _function_of(call)
            answer = answers[at_once.index(position)]
            self._record_unreached(
                answer["name"], function.get("arguments"), _id_of(call), at_ns, str(answer["content"])
            )
        self._skipped.clear()

    def _record_unreached(
        self, name: str, arguments: Any, id_: str | None, start_ns: int, error: Exception | str
    ) -> None:
        self.entry.trajectory.record(
            f"execute_tool {name}",
            semconv.KIND_TOOL,
            (start_ns, start_ns),
            input={"name": name, "arguments": arguments},
            attributes=_attributes(name, id_),
            error=error,
        )


class _ToolCall:
    """A call of one tool.

    Args:
        tool: the tool; for a coroutine function, the coroutine of its call.
        id_: id of the call, if the model's format has one.
    """

    def __init__(self, tool: Any, id_: str | None) -> None:
        self._tool = tool
        self._id = id_

    @otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL)
    def execute_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call the tool inside a span."""
        self._describe(name)
        return self._tool(**arguments)

    @otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL)
    async def await_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Await the tool's coroutine inside a span."""
        self._describe(name)
        return await self._tool

    @internal_errors("describing a tool call")
    def _describe(self, name: str) -> None:
        span = trace.get_current_span()
        span.update_name(f"execute_tool {name}")
        set_attributes(span, _attributes(name, self._id))


def _function_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return name and arguments of a call; nothing for a call of an unsupported type."""
    return call.get("function") or {}


def _attributes(name: str, id_: str | None) -> dict[str, Any]:
    return {
        semconv.GEN_AI_OPERATION_NAME: "execute_tool",
        semconv.GEN_AI_TOOL_NAME: name,
        semconv.GEN_AI_TOOL_CALL_ID: id_,
    }


def _id_of(call: dict[str, Any]) -> str | None:
    id_ = call.get("id")
    return None if id_ is None else str(id_)
