"""Count recorded spans of other libraries in a journal's header, by instrumentation scope.

A row, little-endian::

    0    1    length of the scope's name in bytes, plus one; 0 in free rows
    1    103  the scope's name
    104  8    number of recorded spans

The last row counts the spans of all scopes without a row of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from mmap import mmap
from typing import Final

SCOPE_ROWS: Final = 32
"""Number of rows, one per scope."""
ROW_BYTES: Final = 112
OTHER_SCOPES: Final = "other scopes"
"""Name of the last row."""
NO_NAME: Final = "(no name)"
"""Name of the row of a scope whose name is empty."""
_NAME, _NUMBER = 1, 104
_MAX_NAME_BYTES: Final = _NUMBER - _NAME
_ELLIPSIS: Final = "…".encode()
_number: Final = struct.Struct("<q")


class ScopeRows:
    """The writing end of the rows; only one thread at a time may change them.

    Args:
        start: byte of the header at which the rows begin.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._rows: dict[bytes, int] = {}

    def add(self, header: mmap, scope: str, number: int = 1) -> None:
        """Add recorded spans to a scope's row."""
        at = self._row_of(header, _encoded(scope)) + _NUMBER
        (before,) = _number.unpack_from(header, at)
        header[at : at + 8] = _number.pack(before + number)

    def replace(self, header: mmap, counts: Mapping[str, int]) -> None:
        """Replace all rows."""
        self._rows.clear()
        header[self._start : self._start + SCOPE_ROWS * ROW_BYTES] = bytes(SCOPE_ROWS * ROW_BYTES)
        for scope, number in counts.items():
            self.add(header, scope, number)

    def _row_of(self, header: mmap, name: bytes) -> int:
        """Return the start of a scope's row."""
        known = self._rows.get(name)
        if known is not None:
            return known
        number = len(self._rows)
        if number >= SCOPE_ROWS - 1:
            number, name = SCOPE_ROWS - 1, OTHER_SCOPES.encode()
        row = self._start + number * ROW_BYTES
        if number < SCOPE_ROWS - 1:
            self._rows[name] = row
        header[row + _NAME : row + _NAME + len(name)] = name
        header[row] = len(name) + 1  # last, because this makes the row valid
        return row


def _encoded(scope: str) -> bytes:
    """Encode a scope's name; the end of a long name is cut."""
    name = (scope or NO_NAME).encode("utf-8", "replace")
    if len(name) <= _MAX_NAME_BYTES:
        return name
    start = name[: _MAX_NAME_BYTES - len(_ELLIPSIS)].decode("utf-8", "ignore")  # cut between two characters
    return start.encode() + _ELLIPSIS


def scopes_in(header: bytes, start: int) -> dict[str, int]:
    """Return scope → recorded spans, from a header whose rows begin at ``start``."""
    counts: dict[str, int] = {}
    for row in range(start, start + SCOPE_ROWS * ROW_BYTES, ROW_BYTES):
        end = row + _NAME + header[row] - 1
        if row + _NAME < end <= row + _NUMBER:
            name = header[row + _NAME : end].decode("utf-8", "replace")
            (number,) = _number.unpack_from(header, row + _NUMBER)
            counts[name] = counts.get(name, 0) + number
    return counts
