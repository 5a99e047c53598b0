"""Record the tool calls of TRL's tool loop.

TRL looks tools up in a dict per row. While the loop runs, the entries of these dicts are replaced by
functions that call the tool inside a span of the row's trajectory. TRL turns a failure into text for the
model; in the trace it is an error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.seams import before
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl import model_calls
from otel_rollout.integrations.trl.batch import Batch
from otel_rollout.integrations.trl.patched_modules import seams
from otel_rollout.integrations.trl.tools import Tools, Turn


def install(module: ModuleType) -> None:
    """Wrap the tool loop, and the method that gets each row's answers of tools."""
    seams.wrap(module, "GRPOTrainer._tool_call_loop", _tracing, "tool calls are not traced")
    observing = before(_note_answers, "recording tool calls that reached no tool")
    loss = "calls of unknown tools, and calls with arguments that are no object, are not traced"
    seams.wrap(module, "GRPOTrainer._get_tool_suffix_ids", observing, loss)


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _tool_call_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = batches.generating(self)
        if batch is None:
            return original(self, *args, **kwargs)
        given = None
        with internal_errors("tracing the tools of a batch of TRL's"):
            given = _enter(batch, inspect.signature(original).bind(self, *args, **kwargs).arguments)
        try:
            return original(self, *args, **kwargs)
        finally:
            if given is not None:
                self._sync_tool_dicts, self._async_tool_dicts = given
                batch.completions, batch.contexts, batch.turns = None, ((), ()), ()

    return _tool_call_loop


def _enter(batch: Batch, arguments: dict[str, Any]) -> tuple[Any, Any] | None:
    """Settle the first model calls, and replace the trainer's tools; return its own."""
    trainer, completions = batch.trainer, arguments["completions"]
    given = trainer._sync_tool_dicts, trainer._async_tool_dicts
    rows = len(batch.samples)
    if not len(completions) == len(given[0]) == len(given[1]) == rows:
        return None
    batch.completions = completions
    batch.contexts = arguments["prompt_ids"], arguments["completion_ids"]
    turns = []
    for row, (entry, completion) in enumerate(zip(batch.samples, completions, strict=True)):
        entry.completion = completion
        model_calls.settle(batch, entry)
        settle = functools.partial(model_calls.settle, batch, entry)
        turns.append(Turn(entry, settle, functools.partial(_tools_of, trainer, row)))
    batch.turns = turns
    trainer._sync_tool_dicts = [
        {name: turn.sync_tool(name, tool) for name, tool in tools.items()}
        for turn, tools in zip(turns, given[0], strict=True)
    ]
    trainer._async_tool_dicts = [
        {name: turn.async_tool(name, tool) for name, tool in tools.items()}
        for turn, tools in zip(turns, given[1], strict=True)
    ]
    return given


def _tools_of(trainer: Any, row: int) -> tuple[Tools, Tools]:
    return trainer._sync_tool_dicts[row], trainer._async_tool_dicts[row]


def _note_answers(trainer: Any, tool_messages: Sequence[Any], *_: Any, **__: Any) -> None:
    """Record the calls of a row's turn that reached no tool. TRL calls this once per row and turn."""
    batch = batches.current(trainer)
    if batch is None or not tool_messages:
        return
    for turn in batch.turns:
        if turn.entry.completion and turn.entry.completion[-1] is tool_messages[-1]:
            turn.finish(tool_messages)
