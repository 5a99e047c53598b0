"""Whether, and how, content is recorded: ``OTEL_ROLLOUT_CAPTURE_CONTENT``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from otel_rollout.capture import encoding

Encoder = Callable[[Any, int], bytes]
"""A value, and a limit in bytes → what is recorded of it, as JSON."""
_DESCRIBED: Final = 64
"""Entries of a mapping that are described."""
_SIZED: Final = (str, bytes, bytearray, list, tuple, dict, set, frozenset)


def outline(value: Any, limit: int) -> bytes:
    """Type and size of a value, and of what a mapping with names holds; nothing of its content."""
    if type(value) is dict and value and all(type(key) is str for key in value):
        names = list(value)[:_DESCRIBED]
        return orjson.dumps({name: _described(value[name]) for name in names})
    return orjson.dumps(_described(value))


def _described(value: Any) -> str:
    kind = type(value)
    return f"<{kind.__name__} of {len(value)}>" if issubclass(kind, _SIZED) else f"<{kind.__name__}>"


ENCODERS: Final[Mapping[str, Encoder | None]] = {
    "full": encoding.to_json,
    "metadata": outline,
    "none": None,
}
"""How values are recorded, by the setting; None: they are not."""
