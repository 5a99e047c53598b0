"""Find Hermes tool calls in a turn.

A call is ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from otel_rollout import rollout_trace_op


class ToolCallFormatError(ValueError):
    """A tool call is not the expected JSON; the message is for the model."""


@dataclass(frozen=True)
class FunctionCall:
    """A function call that the model wrote."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """Text and tool calls of an assistant's turn."""

    content: str  # without the calls
    tool_calls: list[FunctionCall]


class HermesToolParser:
    """Parse the tool calls of models that write Hermes format, such as Qwen."""

    @rollout_trace_op
    async def extract_tool_calls(self, text: str) -> ParsedTurn:
        """Split a turn into text and tool calls.

        Raises:
            ToolCallFormatError: one of the calls cannot be read; then none of them may be executed.
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
