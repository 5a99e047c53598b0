"""Make text of unknown origin safe to show.

Printable text cannot control a terminal or reorder the text around it.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and newline, marks that reorder text, and surrogates."""
_CONTROL_PICTURES: Final = 0x2400
"""First code point of Unicode's visible pictures of the control characters."""
_DELETE: Final = 0x7F
_IN_ONE_LINE: Final = {ord("\n"): "\u240a", ord("\t"): "\u2409"}


def printable(text: str) -> str:
    """Make control characters visible: ESC as ``␛``, others as picture or number."""
    return _CONTROL.sub(_picture, text.replace("\r\n", "\n"))


def in_one_line(text: str) -> str:
    """Make text printable, with newlines and tabs made visible as well."""
    return printable(text).translate(_IN_ONE_LINE)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == _DELETE else f"\\u{code:04x}"
