"""Make columns of a batch from the caller's lists, arrays and tensors, without a change to them.

Arrays are taken as the bytes that they hold. So they cost the trainer's process no work for each trajectory.
Of a list, no more entries are read than its column has rows.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import accumulate
from typing import Any, Final

from opentelemetry.trace import TraceFlags

from otel_rollout.base.errors import Unusable, pass_on
from otel_rollout.base.given import listed
from otel_rollout.base.trajectory_key import TRACEPARENT
from otel_rollout.otlp import score_columns
from otel_rollout.otlp.score_columns import PackedColumn
from otel_rollout.otlp.writer import text_of

MAX_ROWS: Final = 1 << 20
"""Maximum trajectories of a batch."""
PLAIN: Final = frozenset({bool, int, float, str, type(None)})
"""Types of values that a column holds unchanged."""
_MAX_TOKENS: Final = 1 << 22
"""Maximum values per token of a trajectory."""
_CODES: Final = {**{code: code for code in "?bBhHiIqQefd"}, "l": "q", "L": "Q"}
"""Format of a buffer → code of its column, on a machine whose ``long`` has 8 bytes."""
_LONG_BYTES: Final = 8
_MISSING: Final = frozenset({"NAType", "NaTType", "MaskedConstant"})
"""Names of the types of pandas' and numpy's marks for a missing value."""
_TRACEPARENT: Final = re.compile(TRACEPARENT)


def is_column(values: Any) -> bool:
    """Return whether an argument has a value for each trajectory, and is not one value for all."""
    return (
        hasattr(values, "__len__")
        and not isinstance(values, (str, bytes, Mapping))
        and _dimensions(values) != 0
    )


def is_unordered(values: Any) -> bool:
    """Return whether an argument has several values without a place for each row: a set, an iterator."""
    if isinstance(values, (Mapping, Set)):
        return True
    return (
        isinstance(values, Iterable)
        and not isinstance(values, (str, bytes))
        and not hasattr(values, "__len__")
    )


def _dimensions(values: Any) -> int | None:
    found = getattr(values, "ndim", None)
    return found if type(found) is int else None


def length_of(values: Any, most: int = MAX_ROWS) -> int:
    """Return the number of entries of a list or an array.

    Raises:
        Unusable: there are too many entries, or several dimensions.
        Exception: raised by a method of the argument.
    """
    length, dimensions = len(values), _dimensions(values)
    if length > most:
        raise Unusable(f"has {length} entries, more than {most}")
    if dimensions is not None and dimensions > 1:
        raise Unusable(f"has {dimensions} dimensions")
    return length


def spread(values: Any, rows: int) -> Any:
    """Return an argument with an entry for each row; repeat one value that is meant for all rows.

    Raises:
        Unusable: the argument has another number of entries.
        Exception: raised by a method of the argument.
    """
    if not is_column(values):
        return [values] * rows
    length = length_of(values)
    if length != rows:
        raise Unusable(f"has {length} entries for {rows} trajectories")
    return values


def _buffer_of(values: Any, length: int) -> tuple[str, bytes] | None:
    """Return column code and bytes of a one-dimensional array or tensor of numbers; None for other values."""
    try:
        if _has_missing(values):
            return None
        if hasattr(values, "detach"):  # a tensor; none of these calls changes it
            values = values.detach().cpu()
            if str(values.dtype) in ("torch.bfloat16", "torch.float16"):
                values = values.float()
            values = values.numpy()
        elif not isinstance(values, (bytes, bytearray, memoryview)) and hasattr(values, "__array__"):
            values = values.__array__()
        view = memoryview(values)
    except Exception as error:  # noqa: BLE001 - of a class of the caller; its values are read one by one
        pass_on(error)
        return None
    code = _CODES.get(view.format.removeprefix("<") if view.format else "")
    is_long = view.format in ("l", "L") and view.itemsize != _LONG_BYTES
    if code is None or is_long or view.shape != (length,) or sys.byteorder != "little":
        return None
    return code, view.tobytes()


def _has_missing(values: Any) -> bool:
    """Return whether an array may lack values: one of numpy with a mask, or one of pandas' own types."""
    if hasattr(values, "mask") and hasattr(values, "filled"):
        return True
    return hasattr(values, "isna") and hasattr(values.dtype, "na_value")


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in _MISSING


def numbers(field: str, name: str, values: Any, rows: int) -> PackedColumn | None:
    """Return the column of an array of numbers; None for anything else."""
    found = _buffer_of(values, rows)
    return None if found is None else PackedColumn(field, name, *found)


def entries(values: Any, length: int) -> list[Any]:
    """Return the entries of a list or an array, with None where an array lacks the value.

    Raises:
        Unusable: the number of entries is not ``length``.
        Exception: raised by a method of the argument.
    """
    if hasattr(values, "isna") and _has_missing(values):
        pairs = listed(zip(values.tolist(), values.isna(), strict=True), length)
        found = [None if is_missing else value for value, is_missing in pairs]
    else:
        found = listed(values.tolist() if hasattr(values, "tolist") else values, length)
    if len(found) != length:
        raise Unusable(f"has {len(found)} entries, and its length says {length}")
    return found


def by_type(field: str, name: str, values: Sequence[Any]) -> list[PackedColumn]:
    """Return columns of values that are None, bools, integers, floats or texts; one for each type."""
    types = set(map(type, values))
    none = type(None)
    if len(types) == 1 and none not in types:
        return [_column(field, name, types.pop(), values)]
    columns = []
    for type_ in sorted(types - {none}, key=lambda each: each.__name__):
        present, blank = bytes(type(value) is type_ for value in values), type_()
        own = [value if is_present else blank for value, is_present in zip(values, present, strict=True)]
        columns.append(_column(field, name, type_, own)._replace(present=present))
    return columns


def _column(field: str, name: str, type_: type, values: Sequence[Any]) -> PackedColumn:
    if type_ is bool:
        return PackedColumn(field, name, "?", bytes(values))
    if type_ is str:
        return PackedColumn(field, name, score_columns.TEXT, values)
    if type_ is int:
        try:
            return PackedColumn(field, name, "q", struct.pack(f"<{len(values)}q", *values))
        except struct.error:  # larger than 64 bits
            if field != score_columns.SCORE:
                return PackedColumn(field, name, score_columns.TEXT, [str(value) for value in values])
    return PackedColumn(field, name, "d", struct.pack(f"<{len(values)}d", *map(float, values)))


def trace_ids(ids: Iterable[Any]) -> tuple[PackedColumn, bytes, bytes]:
    """Return ids of trajectories as a column, and flags: which are no ids, and which are not recorded."""
    found = [_ids_in(id_) for id_ in ids]
    data = b"".join(packed or bytes(24) for packed, _ in found)
    column = PackedColumn(score_columns.TRACE, "", score_columns.IDS, data)
    unknown = bytes(not packed for packed, _ in found)
    return column, unknown, bytes(bool(packed) and not is_sampled for packed, is_sampled in found)


def _ids_in(id_: Any) -> tuple[bytes, bool]:
    """Return a ``traceparent``'s ids, and whether its trace is recorded; b"" for another value."""
    text = id_ if type(id_) is str else text_of(id_)
    if not _TRACEPARENT.fullmatch(text):
        return b"", False
    _, trace_id, span_id, flags = text.split("-")
    return bytes.fromhex(trace_id + span_id), bool(int(flags, 16) & TraceFlags.SAMPLED)


def tokens(name: str, arrays: Sequence[Any]) -> tuple[PackedColumn, Any]:
    """Return the column of values per token, and the first array that cannot be read, which is left out.

    Args:
        name: what the values are.
        arrays: an array or None for each row.
    """
    buffers, bad = converted(arrays, _token_buffer)
    codes = {found[0] for found in buffers if found is not None}
    code = codes.pop() if len(codes) == 1 else "d"
    width = struct.calcsize("<" + code)
    parts = [b"" if found is None else _as_code(code, *found) for found in buffers]
    column = PackedColumn(
        score_columns.TOKENS,
        name,
        code,
        b"".join(parts),
        present=bytes(found is not None for found in buffers),
        ends=list(accumulate(len(part) // width for part in parts)),
    )
    return column, bad


def _token_buffer(array: Any) -> tuple[str, bytes]:
    length = length_of(array, _MAX_TOKENS)
    found = _buffer_of(array, length)
    if found is None:
        values = [math.nan if _is_missing(value) else value for value in entries(array, length)]
        found = "d", struct.pack(f"<{length}d", *values)
    return found


def _as_code(code: str, held: str, data: bytes) -> bytes:
    """Return packed numbers in another type."""
    if held == code:
        return data
    count = len(data) // struct.calcsize("<" + held)
    return struct.pack(f"<{count}{code}", *struct.unpack(f"<{count}{held}", data))


def converted(values: Sequence[Any], convert: Callable[[Any], Any]) -> tuple[list[Any], Any]:
    """Return converted values, with None for missing and bad ones, and the first bad one."""
    found: list[Any] = []
    bad = None
    for value in values:
        try:
            found.append(None if _is_missing(value) else convert(value))
        except Exception as error:  # noqa: BLE001 - raised by a method of the value
            pass_on(error)
            bad = value if bad is None else bad
            found.append(None)
    return found, bad
