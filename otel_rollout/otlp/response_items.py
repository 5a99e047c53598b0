"""Convert the items of OpenAI's Responses API to chat messages in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_MODEL: Final = "assistant"
_CALLS: Final = ("function_call", "custom_tool_call")
_RESULTS: Final = ("function_call_output", "custom_tool_call_output")
_ITEMS: Final = ("message", "reasoning", *_CALLS, *_RESULTS)
"""Types of the items that are read. Of others, such as searches, only the type is told."""


def is_item(entry: Any) -> bool:
    """Return whether a value is an item that is read."""
    return isinstance(entry, dict) and entry.get("type") in _ITEMS


def joined(entries: Sequence[Any], role: str) -> Sequence[Any]:
    """Convert a list with items to chat messages; return a list without items unchanged.

    Neighbouring items of the model are one message, as they are one reply. Items without a role get ``role``.
    """
    if not any(map(is_item, entries)):
        return entries
    found: list[Mapping[str, Any]] = []
    for entry in entries:
        made = _message(entry, role) if isinstance(entry, dict) else {}
        if found and made.get("role") == found[-1].get("role") == _MODEL:
            made = _both(found.pop(), made)
        found.append(made)
    return found


def _message(item: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """Return an item as a chat message; a message that has a role, and other values, stay as they are."""
    type_ = item.get("type")
    if type_ in _RESULTS:
        return {"role": "tool", "content": item.get("output", ""), "tool_call_id": item.get("call_id")}
    if type_ in _CALLS:
        function = {"name": item.get("name"), "arguments": item.get("arguments", item.get("input"))}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": _MODEL, "content": None, "tool_calls": [call]}
    if type_ == "reasoning":
        parts = _listed(item.get("content") or item.get("summary"))
        texts = [part["text"] for part in parts if isinstance(part, Mapping) and part.get("text")]
        thought = {"reasoning_content": "\n".join(map(str, texts))} if texts else {}
        return {"role": _MODEL, "content": None, **thought}
    if type_ == "message":
        return {"role": role, **item}
    return {"role": _MODEL, "content": [item]} if "role" not in item and isinstance(type_, str) else item


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two messages of the model as one."""
    parts = [*_listed(one.get("content")), *_listed(other.get("content"))]
    calls = [*_listed(one.get("tool_calls")), *_listed(other.get("tool_calls"))]
    thoughts = [str(thought) for each in (one, other) if (thought := each.get("reasoning_content"))]
    made = {"tool_calls": calls, "reasoning_content": "\n".join(thoughts)}
    made = {name: value for name, value in made.items() if value}
    return {**one, **other, "content": parts or None, **made}


def _listed(value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return value if isinstance(value, list) else []
