"""Pack the columns of a batch of scores into bytes, and unpack them.

Numbers stay exact: a column keeps the type in which the caller has them. A text is stored once, and columns
hold its index.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, compress, pairwise
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv

SCORE: Final = "score"
COMMENT: Final = "comment"
TOKENS: Final = "tokens"
TRACE: Final = "trace"
IDENTITY: Final = ("step", "sample_index", "rollout_n", "validate")
"""The parts of an identity: its attributes without ``semconv.EXTRA_PREFIX``."""
FIELDS: Final = (SCORE, COMMENT, TOKENS, TRACE, *IDENTITY)
"""What a column may hold."""

TEXT: Final = "t"
"""Code of a column of text."""
NAMED: Final = "n"
"""Code, in the attributes, of a column of the identity's texts, which are among the names."""
IDS: Final = "24s"
"""Code of a column of ids: 16 bytes of a trace id, 8 of a span id."""
NUMBERS: Final = frozenset("?bBhHiIqQefd")
"""Codes of columns of numbers, as of :mod:`struct`."""
_INDEX: Final = "I"


class PackedColumn(NamedTuple):
    """A column of a batch: a value for each row.

    Attributes:
        field: what the column holds, one of ``FIELDS``.
        name: name of the score, or of the values per token; empty for a part of the identity.
        code: type of the values: of ``NUMBERS``, ``TEXT`` or ``IDS``.
        values: the values, packed little-endian; for ``TEXT``, a sequence of texts.
        present: a byte for each row, 0 where the row has no value; empty if each row has one.
        ends: for values per token, the end of each row's values; else empty.
    """

    field: str
    name: str
    code: str
    values: bytes | Sequence[str]
    present: bytes = b""
    ends: Sequence[int] = ()

    @property
    def width(self) -> int:
        """Bytes of one value."""
        return struct.calcsize("<" + (_INDEX if self.code == TEXT else self.code))

    def place_of(self, row: int) -> int:
        """Return where in ``values`` a row's values begin."""
        if self.code == TEXT:
            return row
        return self.width * ((self.ends[row - 1] if row else 0) if self.field == TOKENS else row)

    def part(self, start: int, end: int) -> PackedColumn:
        """Return the rows from ``start`` to ``end``."""
        first = self.ends[start - 1] if start and self.ends else 0
        return self._replace(
            values=self.values[self.place_of(start) : self.place_of(end)],
            present=self.present[start:end],
            ends=[each - first for each in self.ends[start:end]],
        )

    def chosen(self, rows: bytes) -> PackedColumn:
        """Return the rows whose byte in ``rows`` is not 0."""
        kept = list(compress(range(len(rows)), rows))
        values: list[Any] = [self.values[self.place_of(row) : self.place_of(row + 1)] for row in kept]
        lengths = [len(each) // self.width for each in values] if self.field == TOKENS else ()
        return self._replace(
            values=b"".join(values) if isinstance(self.values, bytes) else list(chain.from_iterable(values)),
            present=bytes(compress(self.present, rows)),
            ends=list(accumulate(lengths)),
        )


class Unpacked(NamedTuple):
    """A column that was read.

    Attributes:
        field: what the column holds, one of ``FIELDS``.
        name: name of the score, or of the values per token.
        values: a value for each row: a number, a bool, a text, ids, or a list of values per token.
        present: a byte for each row, 0 where the row has no value.
    """

    field: str
    name: str
    values: Sequence[Any]
    present: bytes


def pack(columns: Sequence[PackedColumn], rows: int) -> tuple[dict[str, Any], bytes]:
    """Pack columns of ``rows`` rows as the attributes of a span, and as bytes."""
    names: dict[str, int] = {}
    texts: dict[str, int] = {}
    described: list[list[Any]] = []
    parts: list[bytes] = []
    for column in columns:
        number = names.setdefault(column.name, len(names)) if column.name else -1
        code = column.code
        parts.append(column.present)
        if column.field == TOKENS:
            parts.append(struct.pack(f"<{rows}{_INDEX}", *column.ends))
        if isinstance(column.values, bytes):
            parts.append(column.values)
        else:
            code, known = (NAMED, names) if column.field in IDENTITY else (TEXT, texts)
            indices = [known.setdefault(text, len(known)) for text in column.values]
            parts.append(struct.pack(f"<{rows}{_INDEX}", *indices))
        described.append([column.field, number, code, bool(column.present)])
    attributes = {
        semconv.SCORE_BATCH: orjson.dumps({"rows": rows, "columns": described}).decode(),
        semconv.SCORE_BATCH_NAMES: list(names),
        semconv.SCORE_BATCH_TEXTS: list(texts),
    }
    return attributes, b"".join(parts)


def unpack(attributes: Mapping[str, Any], data: bytes) -> tuple[int, list[Unpacked]]:
    """Return the number of rows, and the columns.

    Raises:
        ValueError, LookupError, TypeError, struct.error: attributes and data are no batch.
    """
    described = orjson.loads(attributes[semconv.SCORE_BATCH])
    rows, names, texts = (
        described["rows"],
        attributes[semconv.SCORE_BATCH_NAMES],
        attributes[semconv.SCORE_BATCH_TEXTS],
    )
    if not isinstance(rows, int) or not 0 <= rows <= len(data):
        raise ValueError("the number of rows is no integer, or does not fit the data")
    found: list[Unpacked] = []
    at = 0

    def taken(code: str, count: int) -> tuple[Any, ...]:
        nonlocal at
        values = struct.unpack_from(f"<{count}{code}", data, at)
        at += struct.calcsize(f"<{count}{code}")
        return values

    for field, number, code, has_gaps in described["columns"]:
        present = data[at : at + rows] if has_gaps else b"\1" * rows
        at += rows if has_gaps else 0
        if len(present) != rows or field not in FIELDS:
            raise ValueError("a column is cut off, or of an unknown field")
        values: Sequence[Any]
        if field == TOKENS and code in NUMBERS:
            ends = taken(_INDEX, rows)
            flat = taken(code, ends[-1] if ends else 0)
            values = [flat[start:end] for start, end in pairwise((0, *ends))]
        elif code in (TEXT, NAMED):
            known = names if code == NAMED else texts
            values = [known[index] for index in taken(_INDEX, rows)]
        elif code == IDS:
            values = [ids for (ids,) in struct.iter_unpack(IDS, data[at : at + 24 * rows])]
            at += 24 * rows
        elif code in NUMBERS:
            values = taken(code, rows)
        else:
            raise ValueError("a column has an unknown type")
        if len(values) != rows:
            raise ValueError("a column is cut off")
        found.append(Unpacked(field, names[number] if number >= 0 else "", values, present))
    if at != len(data):
        raise ValueError("the data is longer than its columns")
    return rows, found
