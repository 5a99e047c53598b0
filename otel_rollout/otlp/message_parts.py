"""Read the parts of a message's content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

CALL_PARTS: Final = ("tool_use", "tool_call")
RESULT_PARTS: Final = ("tool_result", "tool_call_response")
REASONING_PARTS: Final = ("reasoning", "thinking")
"""Types of parts: a tool call, its result, what the model thinks."""
_OF_CALLS: Final = CALL_PARTS + RESULT_PARTS
_CUT: Final = re.compile(r"… \(\d+ more (?:characters|items)\)$")
"""Pattern of the end of a value that was too large to record."""
_MAX_CUT_CHARS: Final = 64
"""Maximum characters of the end that ``_CUT`` matches."""


def as_text(value: Any) -> str:
    """Return a value as text: a string unchanged, None as an empty string, other values as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except RecursionError:
        return "(nested too deeply)"


def is_whole(texts: Sequence[str], content: Any) -> bool:
    """Return whether no text of a content is cut, and each of its parts has a text."""
    parts = content if isinstance(content, list) else ()
    return not any(map(is_cut, texts)) and not any(map(_lacks_text, parts))


def text_of(part: Any) -> str:
    """Return a message part's text; ``[type]`` for parts without text, such as images."""
    if isinstance(part, Mapping):
        for name in ("text", "content", *REASONING_PARTS):
            if isinstance(part.get(name), str):
                return str(part[name])
        return f"[{part['type']}]" if isinstance(part.get("type"), str) else as_text(dict(part))
    return as_text(part)


def _lacks_text(part: Any) -> bool:
    """Return whether a part, such as an image, has no text. Tool calls and results are never such parts."""
    type_ = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(type_, str) and type_ not in _OF_CALLS and text_of(part) == f"[{type_}]"


def is_cut(text: str) -> bool:
    """Return whether a text ends with the note that it was too large to record."""
    return _CUT.search(text, max(0, len(text) - _MAX_CUT_CHARS)) is not None
