"""Join the chunks of a streamed reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def joined(value: Any, is_stream: bool) -> Any:
    """Join a list of OpenAI's chunks to a reply if they hold one text; return other values unchanged.

    Args:
        value: the result of a model call.
        is_stream: whether it lists what a generator yielded; without one, texts are several replies.
    """
    chunks = value if isinstance(value, list) else []
    if is_stream and chunks and all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    listed = [chunk.get("choices") if isinstance(chunk, Mapping) else None for chunk in chunks]
    choices = [choice for each in listed if isinstance(each, list) for choice in each]
    texts = [_text_of(choice) for choice in choices]
    if not choices or None in listed or None in texts:
        return value
    message = {"role": "assistant", "content": "".join(filter(None, texts))}
    reason = next((reason for choice in reversed(choices) if (reason := choice.get("finish_reason"))), None)
    return {"choices": [{"message": message, "finish_reason": reason}]}


def _text_of(choice: Any) -> str | None:
    """Return the text of a chunk's choice; None if the choice holds more, such as a tool call."""
    delta = choice.get("delta") if isinstance(choice, Mapping) and not choice.get("index") else None
    if not isinstance(delta, Mapping) or any(map(delta.get, delta.keys() - {"role", "content"})):
        return None
    text = delta.get("content") or ""
    return text if isinstance(text, str) else None
