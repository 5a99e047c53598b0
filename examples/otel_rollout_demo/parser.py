"""Finds Hermes tool calls in a turn: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from otel_rollout import rollout_trace_op


class ToolCallFormatError(ValueError):
    """A tool call that is not the JSON it should be; the message is meant for the model."""


@dataclass(frozen=True)
class FunctionCall:
    """A call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """An assistant's turn taken apart."""

    content: str  # what it says beside its calls
    tool_calls: list[FunctionCall]


class HermesToolParser:
    """The parser for models that write Hermes tool calls, such as Qwen."""

    @rollout_trace_op
    async def extract_tool_calls(self, text: str) -> ParsedTurn:
        """Take a turn apart.

        Raises:
            ToolCallFormatError: one of its calls cannot be read; none is to be made then.
        """
        bodies = re.findall(r"<tool_call>(.*?)(?:</tool_call>|\Z)", text, re.DOTALL)
        content = re.sub(r"<tool_call>.*?(?:</tool_call>|\Z)", "", text, flags=re.DOTALL).strip()
        return ParsedTurn(content, [_read_call(body.strip()) for body in bodies])


def _read_call(body: str) -> FunctionCall:
    try:
        call = json.loads(body)
    except ValueError as error:
        raise ToolCallFormatError(f"the tool call is not valid JSON ({error})") from error
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return FunctionCall(name, arguments)
        case _:
            raise ToolCallFormatError("a tool call needs a 'name' and an object 'arguments'")
