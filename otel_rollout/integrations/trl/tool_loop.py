"""Record the tool calls of TRL's tool loop.

TRL looks tools up in a dict per row. While the loop runs, the entries of these dicts are replaced by
functions that call the tool inside a span of the row's trajectory. TRL turns a failure into text for the
model; in the trace it is an error.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.spans import describe_tool_call, tool_call
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl import generation
from otel_rollout.integrations.trl.batch import GenerationBatch
from otel_rollout.integrations.trl.patched_modules import seams


@seams.around("trl.trainer.grpo_trainer", "GRPOTrainer._tool_call_loop", "tool calls are not traced")
def _tool_call_loop(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    batch = batches.generating(self)
    if batch is None:
        return original(self, *args, **kwargs)
    given = None
    with internal_errors("tracing the tools of a TRL batch"):
        given = _enter(batch, inspect.signature(original).bind(self, *args, **kwargs).arguments)
    try:
        return original(self, *args, **kwargs)
    finally:
        if given is not None:
            self._sync_tool_dicts, self._async_tool_dicts = given
            batch.completions, batch.contexts, batch.turns = None, ((), ()), ()


def _enter(batch: GenerationBatch, arguments: dict[str, Any]) -> tuple[Any, Any] | None:
    """Record the first model calls, and replace the trainer's tools; return the original tools."""
    trainer, completions = batch.trainer, arguments["completions"]
    given = trainer._sync_tool_dicts, trainer._async_tool_dicts
    rows = len(batch.samples)
    if not len(completions) == len(given[0]) == len(given[1]) == rows:
        return None
    batch.completions = completions
    batch.contexts = arguments["prompt_ids"], arguments["completion_ids"]
    for entry, completion in zip(batch.samples, completions, strict=True):
        entry.completion = completion
        generation.settle(batch, entry)
    batch.turns = turns = [ToolTurn(batch, row) for row in range(rows)]
    trainer._sync_tool_dicts = [
        {name: turn.sync_tool(name, tool) for name, tool in tools.items()}
        for turn, tools in zip(turns, given[0], strict=True)
    ]
    trainer._async_tool_dicts = [
        {name: turn.async_tool(name, tool) for name, tool in tools.items()}
        for turn, tools in zip(turns, given[1], strict=True)
    ]
    return given


@seams.before(
    "trl.trainer.grpo_trainer",
    "GRPOTrainer._get_tool_suffix_ids",
    "calls of unknown tools, and calls with arguments that are no object, are not traced",
)
def _note_answers(trainer: Any, tool_messages: Sequence[Any], *_: Any, **__: Any) -> None:
    """Record the calls of a row's turn that reached no tool. TRL calls this once per row and turn."""
    batch = batches.current(trainer)
    if batch is None or not tool_messages:
        return
    turns: Sequence[ToolTurn] = batch.turns
    for turn in turns:
        if turn.entry.completion and turn.entry.completion[-1] is tool_messages[-1]:
            turn.finish(tool_messages)


# --- the tool calls of one row, in the turns of the loop ---------------------------------------------------


@dataclass(frozen=True)
class _Unseen:
    """A call that reached none of our functions.

    Attributes:
        position: its position in the message.
        at_ns: when it was noticed, Unix time in ns.
        is_called: whether TRL called a tool that was put into the row's dict since the loop began.
    """

    position: int
    at_ns: int
    is_called: bool


class ToolTurn:
    """The tool calls that a row's latest answer asks for.

    Args:
        batch: the batch.
        row: position of the row in it.
    """

    def __init__(self, batch: GenerationBatch, row: int) -> None:
        self.entry = batch.samples[row]
        self._batch, self._row = batch, row
        self._own: list[Function] = []
        """The functions that stand for the row's tools."""
        self._message: Any = None
        self._calls: Sequence[dict[str, Any]] = ()
        self._position = 0
        self._unseen: list[_Unseen] = []
        self._asynchronous: set[int] = set()
        """Positions of calls that TRL awaits after all other calls."""

    # --- tools --------------------------------------------------------------------------------------------

    def sync_tool(self, name: str, tool: Function) -> Function:
        """Return a function that calls a tool inside a span of the row's trajectory."""

        @functools.wraps(tool)
        def call(*args: Any, **arguments: Any) -> Any:
            if args:
                return tool(*args, **arguments)
            _, id_ = self._reach(name, arguments)
            with self.entry.trajectory.inside():
                return _call(tool, id_, name, arguments)

        self._own.append(call)
        return call

    def async_tool(self, name: str, tool: Function) -> Function:
        """Return a function whose coroutine awaits the tool's coroutine inside a span."""

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
            return await _await(coroutine, id_, name, arguments)

    # --- which call of the message ------------------------------------------------------------------------

    def _reach(self, name: str, arguments: dict[str, Any]) -> tuple[int | None, str | None]:
        """Return position and id of the call that reached a tool; note the calls before it that did not."""
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
        generation.settle(self._batch, self.entry)
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
        """Return whether TRL calls a tool that is not one of our functions."""
        function = _function_of(self._calls[position])
        name, trainer = function.get("name"), self._batch.trainer
        tools, async_tools = trainer._sync_tool_dicts[self._row], trainer._async_tool_dicts[self._row]
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


@otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL, exclude=("tool", "id_"))
def _call(tool: Function, id_: str | None, name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool inside a span."""
    describe_tool_call(name, id_)
    return tool(**arguments)


@otel_rollout.rollout_trace_op(name="execute_tool", kind=semconv.KIND_TOOL, exclude=("coroutine", "id_"))
async def _await(coroutine: Any, id_: str | None, name: str, arguments: dict[str, Any]) -> Any:
    """Await the coroutine of a tool's call inside a span."""
    describe_tool_call(name, id_)
    return await coroutine


def _function_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return name and arguments of a call; nothing for a call of an unsupported type."""
    return call.get("function") or {}


def _id_of(call: dict[str, Any]) -> str | None:
    id_ = call.get("id")
    return None if id_ is None else str(id_)
