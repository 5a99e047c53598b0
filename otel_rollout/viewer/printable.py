"""Text of unknown origin as it can be shown: nothing in it steers a terminal or reorders what is around."""

from __future__ import annotations

import re
from typing import Final

_STEERING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tab and newline, marks that reorder text, and halves of characters."""
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_IN_ONE_LINE: Final = {ord("\n"): "\u240a", ord("\t"): "\u2409"}


def printable(text: str) -> str:
    """The text with what steers made visible: ESC is ``␛``, others are written as their number."""
    return _STEERING.sub(_shown, text.replace("\r\n", "\n"))


def in_one_line(text: str) -> str:
    """The text as :func:`printable` gives it, with line ends and tabs made visible as well."""
    return printable(text).translate(_IN_ONE_LINE)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "\u2421" if code == _DELETE else f"\\u{code:04x}"
