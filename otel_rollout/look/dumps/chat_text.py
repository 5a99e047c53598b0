"""Find turns and tool calls in the text of a whole conversation, only by a chat template's own marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from otel_rollout.look.dumps.dump_file import in_text
from otel_rollout.look.dumps.trajectory import MODEL
from otel_rollout.otlp import messages

_CALL: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_RESULTS: Final = re.compile(
    r"</tool_call>(\s*(?:<\|im_end\|>\s*)?(?:<\|im_start\|>)?\n?(?:user|tool|ipython)\s*\n"
    r"(?:<tool_response>.*?</tool_response>\s*)+(?:<\|im_end\|>\s*)?(?:<\|im_start\|>)?assistant\n)",
    re.DOTALL,
)
"""Tool results between two replies: ``</tool_call>``, a role's word, ``<tool_response>``, a role's word."""
_RESULT: Final = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_HEADER: Final = ("<|im_start|>", "<|start_header_id|>")


def replies_in(text: str) -> list[Mapping[str, Any]]:
    """Return the messages of a decoded response: replies, and the tool results between them.

    A response without the marks is one reply, also if a line of it is a role's word: people write that, too.
    """
    if "</tool_call>" not in text:
        return [{"role": MODEL, "content": text}]
    found: list[Mapping[str, Any]] = []
    end = 0
    for between in _RESULTS.finditer(text):
        found.append(reply(text[end : between.start(1)]))
        results = _RESULT.findall(between[1])
        found += [{"role": "tool", "content": result} for result in results]
        end = between.end()
    return [*found, reply(text[end:])]


def reply(text: str) -> Mapping[str, Any]:
    """Return a reply with the tool calls in its text."""
    calls = [call for each in _CALL.findall(text) if (call := _call(each))]
    message = {"role": MODEL, "content": text}
    return message | {"tool_calls": calls} if calls else message


def _call(text: str) -> Mapping[str, Any] | None:
    """Return a tool call that is JSON, as most templates have it; None for other text."""
    found = in_text(text)
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    return {"type": "function", "function": {"name": found["name"], "arguments": found.get("arguments")}}


def prompt_of(text: Any) -> list[Mapping[str, Any]]:
    """Return the messages of a prompt: those of a list, of a text with a template's headers, or one text."""
    if isinstance(text, (list, tuple)):
        return [message for message in text if isinstance(message, Mapping)]
    text = "" if text is None else str(text)
    if any(header in text for header in _HEADER):
        split = messages.spoken(text, "user")
        return [{"role": message.role or "user", "content": message.text} for message in split]
    return [{"role": "user", "content": text}]
