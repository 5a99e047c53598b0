"""Read values of a record: nested values, values of a type, JSON inside a text, and timestamps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from otel_rollout.otlp.chat_messages import within
from otel_rollout.otlp.span import with_utf8

at = within
"""Function that returns the value below names in nested objects; None if it is missing."""


def entries_of(value: Any, *types: type) -> dict[str, Any]:
    """Return the entries of a mapping whose values have one of the types; {} if ``value`` is no mapping."""
    entries = value.items() if isinstance(value, Mapping) else ()
    return {str(name): entry for name, entry in entries if isinstance(entry, types)}


def decoded(line: bytes | str) -> Any:
    """Decode JSON as Python's encoder writes it, with NaN, large integers and half surrogate pairs.

    Raises:
        ValueError: the text is no JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
        return with_utf8(json.loads(text))


def in_text(value: Any) -> Any:
    """Return a value; a text that is JSON is decoded."""
    try:
        return decoded(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def times_between(start: Any, end: Any) -> tuple[int, int] | None:
    """Return two ISO 8601 timestamps as Unix time in ns; None if one is missing or invalid."""
    try:
        began, ended = (round(datetime.fromisoformat(str(each)).timestamp() * 1e9) for each in (start, end))
    except ValueError:
        return None
    return began, ended
