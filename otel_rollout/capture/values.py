"""Any Python value → JSON, bounded and without ever raising.

Two ways. Most values go straight through orjson, in well under a microsecond per kilobyte. Whatever orjson
refuses (huge integers, cycles, odd keys, lone surrogates …) and whatever comes out larger than the limit
is walked in Python, which knows how to shorten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any

import orjson

MAX_DEPTH = 16
"""Levels of nesting kept when a value has to be walked."""
_SMALL_ARRAY = 64
"""Elements up to which a tensor is shown; beyond, its shape and type are."""
_LARGE_ARRAY = 1 << 16
"""Numbers up to which an array is shown; beyond, its shape and type: an image is not worth a second."""

_dumps = orjson.dumps


def to_json(value: Any, limit: int) -> bytes:
    """Encode ``value`` as JSON of about ``limit`` bytes at most.

    Objects become what they hold (dataclasses, pydantic, attrs, numpy, torch) or else their ``repr``. NaN
    and infinities become null, as JSON has none. What is left out is said in place.
    """
    try:
        encoded = _dumps(value, _known_object)
    except Exception:  # noqa: BLE001 - user values: any of their methods may have been called
        return _walked(value, limit)
    return encoded if len(encoded) <= limit else _walked(value, limit)


def _walked(value: Any, limit: int) -> bytes:
    try:
        return _dumps(_Walk(limit).plain(value, MAX_DEPTH))
    except Exception:  # noqa: BLE001 - the last line of defence: say what it was
        return _dumps(f"<a {type(value).__name__} that cannot be shown>")


def _known_object(value: Any) -> Any:
    """What an object holds, for orjson; its ``repr`` when it is none of the kinds known here."""
    for shape, unpack in _SHAPES:
        if shape(value):
            return unpack(value)
    return safe_repr(value)


def safe_repr(value: Any, limit: int = 4096) -> str:
    """``repr`` cut to ``limit`` characters, whatever it does."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__
        return f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return _shortened(text, limit)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"


def _tensor(value: Any) -> Any:
    if value.numel() <= _SMALL_ARRAY and value.device.type == "cpu":  # others would have to be waited for
        return value.detach().tolist()
    return f"<tensor {tuple(value.shape)} {value.dtype}>"


def _array(value: Any) -> Any:
    if value.size <= _SMALL_ARRAY or (value.size <= _LARGE_ARRAY and value.dtype.kind in "iufb"):
        return value.tolist()
    return f"<array {tuple(value.shape)} {value.dtype}>"


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.startswith("torch") and hasattr(value, "numel")


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def _set_members(value: Set[Any]) -> list[Any]:
    try:
        return sorted(value)
    except TypeError:
        return list(value)


def _attrs_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name, None) for field in type(value).__attrs_attrs__}


def _dataclass_fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name, None) for name in value.__dataclass_fields__}


_SHAPES: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (lambda v: isinstance(v, float), float),
    (lambda v: isinstance(v, tuple), list),
    (lambda v: isinstance(v, (bytes, bytearray, memoryview)), lambda v: f"<{len(v)} bytes>"),
    (lambda v: isinstance(v, (set, frozenset)), _set_members),
    (lambda v: isinstance(v, Mapping), lambda v: dict(v)),
    (_is_tensor, _tensor),
    (_is_array, _array),
    (lambda v: isinstance(v, type), lambda v: v.__qualname__),
    # Asked of the type: a remote proxy has every attribute, and calling one would go over the network.
    (lambda v: hasattr(type(v), "model_dump"), lambda v: v.model_dump()),
    (lambda v: hasattr(type(v), "__attrs_attrs__"), _attrs_fields),
    (lambda v: hasattr(type(v), "__dataclass_fields__"), _dataclass_fields),
)


class _Walk:
    """Turns a value into plain JSON types within a budget of bytes, spent depth first."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._above: set[int] = set()

    def plain(self, value: Any, depth: int) -> Any:
        """``value`` as None, bool, int, float, str, list and dict."""
        self._left -= 8
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return int(value) if -(1 << 63) <= value < 1 << 64 else str(int(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if depth == 0:
            return "… (nested too deeply)"
        if id(value) in self._above:
            return "… (a cycle)"
        self._above.add(id(value))
        try:
            return self._container(value, depth)
        finally:
            self._above.discard(id(value))

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple)):
            return self._sequence(value, depth)
        try:
            held = _known_object(value)
        except Exception:  # noqa: BLE001 - a user's method; what surrounds it is still worth showing
            held = safe_repr(value)
        return self.plain(held, depth - 1)

    def _text(self, text: str) -> str:
        kept = _shortened(text, max(self._left, 64))
        self._left -= len(kept)
        return kept.encode("utf-8", "backslashreplace").decode()

    def _sequence(self, values: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        out = []
        for index, item in enumerate(values):
            if self._left <= 0:
                out.append(f"… ({len(values) - index} more items)")
                break
            out.append(self.plain(item, depth - 1))
        return out

    def _mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for index, (key, item) in enumerate(values.items()):
            if self._left <= 0:
                out["…"] = f"({len(values) - index} more entries)"
                break
            out[self._text(key if isinstance(key, str) else safe_repr(key))] = self.plain(item, depth - 1)
        return out
