"""Decode numbers and bytes of OTLP/JSON as protobuf's JSON mapping defines them."""

from __future__ import annotations

import base64
import math
import re
from typing import Any, Final

_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_OTHER_ALPHABET: Final = str.maketrans("-_", "+/")


def double_of_json(content: Any) -> float:
    """Decode a double, a number or text.

    Raises:
        ValueError: the text is no number, or its number is too large; only three names are not finite.
        OverflowError: the number is too large.
        TypeError: it is neither a number nor text.
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
        ValueError: the text has other characters, which Python's decoder ignores, or no length of base64.
        TypeError: it is no text.
    """
    if not _BASE64.fullmatch(text):
        raise ValueError("base64 expected")
    digits = text.rstrip("=").translate(_OTHER_ALPHABET)
    return base64.b64decode(digits + "=" * (-len(digits) % 4))
