"""Describe values by type and size: ``OTEL_ROLLOUT_CAPTURE_CONTENT=metadata``."""

from __future__ import annotations

from typing import Any, Final

import orjson

_MAX_ENTRIES: Final = 64
"""Maximum entries of a dict that are described; further entries are omitted."""
_SIZED: Final = (str, bytes, bytearray, list, tuple, dict, set, frozenset)


def outline(value: Any, limit: int) -> bytes:
    """Describe a value, or each value of a dict, by type and size."""
    if type(value) is dict and value and all(type(key) is str for key in value):
        names = list(value)[:_MAX_ENTRIES]
        return orjson.dumps({name: _description(value[name]) for name in names})
    return orjson.dumps(_description(value))


def _description(value: Any) -> str:
    type_ = type(value)
    return f"<{type_.__name__} of {len(value)}>" if issubclass(type_, _SIZED) else f"<{type_.__name__}>"
