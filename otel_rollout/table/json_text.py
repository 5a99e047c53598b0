"""Encode attribute values as JSON text."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson

MIN_INT: Final = -(1 << 63)
MAX_INT: Final = (1 << 63) - 1
"""Bounds of a column of integers."""
BYTES: Final = "base64"
"""Key of the object that stands for bytes in JSON: ``{"base64": "…"}``."""


def as_json(value: Any) -> str:
    """Return a value of attributes as JSON text.

    JSON has no bytes, infinities and NaN. Bytes become an object with ``BYTES``; infinities and NaN become
    text.

    Raises:
        UnicodeEncodeError: the value has text that UTF-8 cannot hold.
    """
    if not _is_plain(value):
        value = _plain(value)
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # orjson's error for half a surrogate pair, and for integers of more than 64 bits
        return orjson.dumps(_plain(value)).decode()


def _is_plain(value: Any) -> bool:
    """Return whether JSON can hold a value, or each value of a mapping, unchanged."""
    entries = value.values() if type(value) is dict else (value,)
    return all(
        type(entry) in (str, bool, int, type(None)) or (type(entry) is float and math.isfinite(entry))
        for entry in entries
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        value.encode()  # raises the error that names the cause
        return value
    if isinstance(value, bytes):
        return {BYTES: base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and not MIN_INT <= value <= MAX_INT:
        return str(value)
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
