"""Record the tool calls of one row, in the turns of TRL's tool loop."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import set_attributes, tool_call
from otel_rollout.integrations.trl.batch import Sample

Tools = Mapping[str, Callable[..., Any]]
"""Name → tool."""


@dataclass(frozen=True)
class _Unseen:
    """A call that reached none of our functions.

    Attributes:
        position: its position in the message.
        at_ns: when that was known, Unix time in ns.
        is_called: whether TRL called a tool that was put into the row's dict since the loop began.
    """

    position: int
    at_ns: int
    is_called: bool


class Turn:
    """The calls for which the row's latest answer asks.

    Args:
        entry: the row.
        settle: records the model call that gave the answer.
        tools: returns the row's functions, and its coroutine functions, in which TRL looks a name up now.
    """

    def __init__(
        self, entry: Sample, settle: Callable[[], None], tools: Callable[[], tuple[Tools, Tools]]
    ) -> None:
        self.entry = entry
        self._settle = settle
        self._tools = tools
        self._own: list[Callable[..., Any]] = []
        """The functions that stand for the row's tools."""
        self._message: Any = None
        self._calls: Sequence[dict[str, Any]] = ()
        self._position = 0
        self._unseen: list[_Unseen] = []
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

        self._own.append(call)
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
                self._record_unseen((name, arguments, id_), start_ns, error=error)
                raise
            if position is not None:
                self._asynchronous.add(position)
            return self._awaiting(coroutine, name, arguments, id_)

        self._own.append(call)
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
        self._unseen.clear()
        self._asynchronous.clear()

    def _skip_to(self, position: int) -> None:
        now = time.time_ns()
        self._unseen += [
            _Unseen(skipped, now, self._is_called(skipped)) for skipped in range(self._position, position)
        ]

    def _is_called(self, position: int) -> bool:
        """Tell whether TRL calls a tool that is not one of our functions."""
        function = _function_of(self._calls[position])
        name, (tools, async_tools) = function.get("name"), self._tools()
        found = tools.get(name, async_tools.get(name)) if isinstance(name, str) else None
        is_new = found is not None and not any(found is own for own in self._own)
        if not is_new or not isinstance(function.get("arguments"), Mapping):
            return False
        if name not in tools:
            self._asynchronous.add(position)
        return True

    def finish(self, answers: Sequence[dict[str, Any]]) -> None:
        """Record the calls that reached none of our functions, with the text that TRL answered.

        Args:
            answers: messages of the turn's tools. Those of coroutines come last.
        """
        self._begin(self.entry.completion[-len(answers) - 1])
        self._skip_to(len(self._calls))
        self._position = len(self._calls)
        if len(answers) != len(self._calls):
            return
        order = sorted(range(len(self._calls)), key=self._asynchronous.__contains__)
        for unseen in self._unseen:
            call, answer = self._calls[unseen.position], answers[order.index(unseen.position)]
            text = str(answer["content"])
            self._record_unseen(
                (answer["name"], _function_of(call).get("arguments"), _id_of(call)),
                unseen.at_ns,
                output=answer["content"] if unseen.is_called else None,
                error=None if unseen.is_called else text,
            )
        self._unseen.clear()

    def _record_unseen(
        self,
        call: tuple[str, Any, str | None],
        start_ns: int,
        output: Any = None,
        error: Exception | str | None = None,
    ) -> None:
        name, arguments, id_ = call
        span_name, attributes = tool_call(name, id_)
        self.entry.trajectory.record(
            span_name,
            semconv.KIND_TOOL,
            (start_ns, start_ns),
            input={"name": name, "arguments": arguments},
            output=output,
            attributes=attributes,
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
        span_name, attributes = tool_call(name, self._id)
        span.update_name(span_name)
        set_attributes(span, attributes)


def _function_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return name and arguments of a call; nothing for a call of an unsupported type."""
    return call.get("function") or {}


def _id_of(call: dict[str, Any]) -> str | None:
    id_ = call.get("id")
    return None if id_ is None else str(id_)
