"""Decode and change the values of OTLP/JSON, as protobuf's JSON mapping defines them.

Values have the types and ranges that OTLP has. A value of another type or range raises an exception.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

MAX_DEPTH: Final = 24
"""Maximum levels read of a nested attribute. Protobuf allows 100, and counts three for each level."""
TOO_DEEP: Final = "… (nested too deeply)"
"""Text in place of deeper levels."""
_SURE_DIGITS: Final = 19
"""An integer with fewer characters fits into 64 bits."""
_JSON = dict[str, Any]
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OTHER_ALPHABET: Final = str.maketrans("-_", "+/")


def double_of_json(content: Any) -> float:
    """Decode a double, which OTLP/JSON writes as a number or as text.

    Raises:
        ValueError: the value is no number, or not finite; the texts ``NaN``, ``Infinity`` and ``-Infinity``
            are allowed.
        OverflowError: the number is too large.
        TypeError: the value is neither a number nor text.
    """
    if type(content) is str and content in _NOT_FINITE:
        return _NOT_FINITE[content]
    number = float(content)
    if not math.isfinite(number):
        raise ValueError("a double expected")
    return number


def bytes_of_base64(text: str) -> bytes:
    """Decode base64 in either alphabet, padded or not.

    Raises:
        ValueError: the text has other characters, which Python's decoder ignores, or a length that base64
            cannot have.
        TypeError: the value is no text.
    """
    if not _BASE64.fullmatch(text):
        raise ValueError("base64 expected")
    digits = text.rstrip("=").translate(_OTHER_ALPHABET)
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def attributes_of(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the attributes of a resource, scope, span, event or link."""
    return _entries(holder.get("attributes") or (), 0)


def _entries(entries: Sequence[Mapping[str, Any]], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        key, value = entry.get("key"), entry.get("value") or {}
        if type(key) is not str:
            key = text_of(key)
        # Most attributes are text or small integers, and a call takes longer than the rest of the loop.
        if len(value) == 1 and depth <= MAX_DEPTH:
            if type(text := value.get("stringValue")) is str:
                found[key] = text
                continue
            if type(digits := value.get("intValue")) is str and len(digits) < _SURE_DIGITS:
                found[key] = int(digits)
                continue
        found[key] = _value(value, depth)
    return found


def _value(value: Mapping[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return TOO_DEEP
    for type_, content in value.items():
        if content is None:
            continue
        if type_ == "stringValue":
            return text_of(content)
        if type_ == "boolValue":
            if type(content) is not bool:
                raise TypeError("a boolean expected")
            return content
        if type_ == "intValue":
            return integer_of(content, -(1 << 63), 1 << 63)
        if type_ == "doubleValue":
            return double_of_json(content)
        if type_ == "bytesValue":
            return bytes_of_base64(content)
        if type_ == "arrayValue":
            return [_value(entry, depth + 1) for entry in content.get("values") or ()]
        if type_ == "kvlistValue":
            return _entries(content.get("values") or (), depth + 1)
    return None


def set_text(holder: _JSON, key: str, text: str) -> None:
    """Change the text of an attribute of JSON; raise KeyError if the attribute is missing."""
    found = next((entry for entry in holder.get("attributes", ()) if entry["key"] == key), None)
    if found is None:
        raise KeyError(key)
    found["value"]["stringValue"] = text


def hide_texts(holder: _JSON, mark: str, is_kept: Callable[[str, str], bool]) -> None:
    """Replace the texts of JSON's attributes by ``mark``, and remove their bytes.

    Args:
        holder: JSON of a scope, span, event or link.
        mark: the text to be shown.
        is_kept: takes an attribute's name and a text in it, empty for bytes; returns whether the text stays.
    """
    for entry in holder.get("attributes", ()):
        _hide_text(entry["value"], mark, partial(is_kept, entry["key"]))


def _hide_text(value: _JSON, mark: str, is_kept: Callable[[str], bool]) -> None:
    if not is_kept(value.get("stringValue", "")):
        value.pop("bytesValue", None)
        if "stringValue" in value:
            value["stringValue"] = mark
    for entry in value.get("arrayValue", {}).get("values", ()):
        _hide_text(entry, mark, is_kept)
    for entry in value.get("kvlistValue", {}).get("values", ()):
        _hide_text(entry["value"], mark, is_kept)


def text_of(value: Any) -> str:
    """Return a text unchanged; for None, return "", protobuf's default.

    Raises:
        TypeError: the value is neither text nor None.
    """
    if type(value) is str:
        return value
    if value is not None:
        raise TypeError(f"str expected, not {type(value).__name__}")
    return ""


def integer_of(value: Any, least: int, beyond: int) -> int:
    """Decode an integer, which OTLP/JSON writes as text or as a number; None becomes 0, protobuf's default.

    Raises:
        ValueError, TypeError: the value is no integer, or is not in ``least <= value < beyond``.
    """
    if value is None:
        value = 0
    type_ = type(value)
    number = value if type_ is int else int(value)
    if least <= number < beyond and (type_ is int or type_ is str or (type_ is float and number == value)):
        return number
    raise ValueError(f"an integer from {least} to {beyond - 1} expected")


def timestamp_of(time_ns: int, precision: str = "microseconds") -> str:
    """Format a Unix time in ns as an ISO 8601 timestamp, without the rounding of a float."""
    return (_EPOCH + timedelta(microseconds=time_ns // 1000)).isoformat(timespec=precision)


def time_of_timestamp(text: object) -> int:
    """Return a timestamp as Unix time in ns, to the microsecond; 0 for anything else."""
    try:
        return (datetime.fromisoformat(str(text)) - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, TypeError):  # no timestamp, or one without a time zone
        return 0
