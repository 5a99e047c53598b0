"""Find turns and tool calls in a conversation's text, by the marks of chat templates only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.look.dumps.trajectory import MODEL, PARSED
from otel_rollout.look.dumps.values import in_text
from otel_rollout.otlp import messages
from otel_rollout.otlp.chat_messages import of_genai

_CALL_BEGIN: Final = re.compile(r"<tool_call>\s*\{")
_CALL_END: Final = re.compile(r"\}\s*</tool_call>")
_RESULTS_BEGIN: Final = re.compile(
    r"</tool_call>\s*(?:<\|im_end\|>\s*)?(?:<\|im_start\|>)?\n?(?:user|tool|ipython)\s*\n<tool_response>"
)
_RESULTS_END: Final = re.compile(r"</tool_response>\s*(?:<\|im_end\|>\s*)?(?:<\|im_start\|>)?assistant\n")
"""Tool results between two replies: ``</tool_call>``, a role's word, ``<tool_response>``, a role's word.

A beginning and its end are two expressions: one for both reads the rest of the text for each beginning.
"""
_HEADER: Final = ("<|im_start|>", "<|start_header_id|>")


def replies_in(text: str) -> list[Mapping[str, Any]]:
    """Return the messages of a decoded response: replies, and the tool results between them.

    A response without the marks is one reply. A line such as ``user`` alone is no mark: people write that,
    too.
    """
    if "</tool_call>" not in text:
        return [reply(text)]
    found: list[Mapping[str, Any]] = []
    end = 0
    for begin, last in _pairs(_RESULTS_BEGIN, _RESULTS_END, text):
        found.append(reply(text[end : begin.start() + len("</tool_call>")]))
        results = _results(text[begin.end() : last.end()])
        found += [{"role": "tool", "content": result, PARSED: True} for result in results]
        end = last.end()
    return [*found, reply(text[end:])]


def _results(text: str) -> Iterator[str]:
    """Yield the results in a text that begins inside the first result."""
    for part in text.split("<tool_response>"):
        result, end, _ = part.partition("</tool_response>")
        if end:
            yield result.removeprefix("\n").removesuffix("\n")


def reply(text: str) -> Mapping[str, Any]:
    """Return a reply: its text without end marks, and the tool calls that the text has."""
    # A plain search is far faster than a regular expression.
    pairs = _pairs(_CALL_BEGIN, _CALL_END, text) if "<tool_call>" in text else ()
    marked = (text[begin.end() - 1 : last.start() + 1] for begin, last in pairs)
    calls = [call for each in marked if (call := _call(each))]
    message = {"role": MODEL, "content": messages.without_end(text) if "<|" in text else text}
    return message | {"tool_calls": calls, PARSED: True} if calls else message


def parsed(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message; a model's message without tool calls gets the calls in its text."""
    text = message.get("content")
    is_text = message.get("role") == MODEL and isinstance(text, str) and not message.get("tool_calls")
    return {**message, **reply(str(text))} if is_text else message


def _pairs(
    begin: re.Pattern[str], end: re.Pattern[str], text: str
) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Yield each beginning with the next end; the search stops at the first without an end: linear time."""
    at = 0
    while (first := begin.search(text, at)) and (last := end.search(text, first.end())):
        yield first, last
        at = last.end()


def _call(text: str) -> Mapping[str, Any] | None:
    """Return the tool call in a JSON text, the form of most templates; None for other text."""
    found = in_text(text)
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    return {"type": "function", "function": {"name": found["name"], "arguments": found.get("arguments")}}


def said_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the messages of a completion, which is a text or a list of messages."""
    return replies_in(value) if isinstance(value, str) else prompt_of(value)


def prompt_of(text: Any, role: str = "user") -> list[Mapping[str, Any]]:
    """Return the messages of a prompt: of a list, of a text with a template's headers, or of plain text."""
    if isinstance(text, (list, tuple)):
        return [*of_genai(text, role)]
    text = "" if text is None else str(text)
    if any(header in text for header in _HEADER):
        split = messages.spoken(text, role)
        return [{"role": message.role or role, "content": message.text} for message in split]
    return [{"role": role, "content": text}]
