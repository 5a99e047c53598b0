"""Any Python value → JSON, bounded before it is encoded, without ever raising; docs/values.md has the list.

Two ways. Most values go straight through orjson, in well under a microsecond per kilobyte. Whatever orjson
refuses (huge integers, cycles, odd keys, lone surrogates …) and whatever is larger than the limit is written
piece by piece, until the limit is reached. Only what a signal handler raises meanwhile goes through.

A look at few of a value's parts tells whether it may be too large. If so it is measured, from below: what is
found too large *is* too large, so that looking decides how much time is spent, never what is recorded.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import sys
import types
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any, cast

import orjson

from otel_rollout.record.interrupts import pass_on

MAX_DEPTH = 16
"""Levels of nesting kept when a value has to be written piece by piece."""
_SMALL_ARRAY = 64
"""Elements up to which a tensor is shown; beyond, its shape and type are."""
_LARGE_ARRAY = 1 << 16
"""Numbers up to which an array is shown; beyond, its shape and type: an image is not worth a second."""
_LARGE_ARRAY_BYTES = 1 << 20
"""Bytes up to which an array of anything is shown."""
_FEW = 1024
"""Members up to which a set, a queue or a mapping of another kind than dict is copied for orjson."""
_HELD = 1 << 20
"""Apparent size from which what an object holds is not left to orjson."""
_NARROW = 6
"""Entries up to which each of a dict is looked at before encoding."""
_LEVELS = 12
"""Levels that are looked at before encoding: what is deeper is measured."""
_NUMBERS = frozenset({int, float})
_WATCHED = 256
"""Values measured in full after one was encoded that turned out larger than the limit."""
_CHUNK = 256
"""Members of a large container that are encoded at once."""
_REPR = 4096
"""Characters kept of a ``repr``."""
_PREVIEW = 64
"""Bytes of text shown of a bytes object."""
_KEY = 256
"""Bytes kept of a key that is not a string."""
_INTEGER_BITS = 14_000
"""Bits up to which an integer is written in digits: beyond, Python refuses to."""

_dumps = orjson.dumps
_watched = 0


def to_json(value: Any, limit: int) -> bytes:
    """Encode ``value`` as JSON of about ``limit`` bytes at most.

    Objects become what they hold (dataclasses, pydantic, attrs, numpy, torch) or else their ``repr``. NaN
    and infinities become null, as JSON has none. What is left out is said in place. Never raises, apart from
    the KeyboardInterrupt of a user.
    """
    global _watched
    try:
        if _watched or _seems_larger(value, limit):
            _watched -= _watched > 0
            if _is_larger(value, limit):
                return _piecewise(value, limit)
        encoded = _dumps(value, _held)
        if len(encoded) <= limit:
            return encoded
        _watched = _WATCHED
    except Exception as error:  # noqa: BLE001 - user values: any of their methods may have been called
        pass_on(error)
    return _piecewise(value, limit)


def _seems_larger(value: Any, size: int, levels: int = _LEVELS) -> bool:
    """Whether ``value`` looks as if it took more than ``size`` bytes: a few hundred nanoseconds' look.

    Narrow dicts are looked through; in a list all are taken to be like the last, the newest message.
    """
    kind = type(value)
    if kind is dict:
        if len(value) > _NARROW or not levels:
            return 5 * len(value) > size or not levels
        for part in value.values():
            kind = type(part)
            if kind is str:
                if len(part) > size:
                    return True
            elif kind in _CONTAINERS and _seems_larger(part, size, levels - 1):
                return True
        return False
    if kind is list or kind is tuple:
        count = len(value)
        return count > 0 and (2 * count > size or _seems_larger(value[-1], size // count, levels))
    return kind is str and len(value) > size


def _is_larger(value: Any, size: int) -> bool:
    """Whether ``value`` takes more than ``size`` bytes of JSON at the least; looks at ``size`` parts."""
    parts = [value]
    while parts and size >= 0:
        part = parts.pop()
        kind = type(part)
        size -= 1
        if kind is str or issubclass(kind, str):
            size -= str.__len__(part)
        elif kind is int or kind is float:
            continue
        elif kind is dict or issubclass(kind, dict):
            size -= 4 * dict.__len__(part)
            if size >= 0:
                parts += dict.keys(part)
                parts += dict.values(part)
        elif kind is list or kind is tuple or issubclass(kind, list):
            members = tuple.__iter__ if kind is tuple else list.__iter__
            count = len(part) if kind is tuple else list.__len__(part)
            size -= count
            if size >= 0 and _NUMBERS.issuperset(map(type, members(part))):
                size -= count  # token ids by the hundred thousand are not to be gone through one by one
            elif size >= 0:
                parts += members(part)
        elif hasattr(kind, "__dataclass_fields__"):
            parts += _dataclass_fields(part).values()
    return size < 0


class _TooLarge(Exception):
    """Refuses an object to orjson that has to be written piece by piece."""


def _held(value: Any) -> Any:
    """For orjson: what an object holds, unless that is large."""
    try:
        kind = type(value)
        if issubclass(kind, (set, frozenset, deque, Set, Mapping)):
            return _few(value, kind)
        held = _content(value, kind)
        if _seems_larger(held, _HELD):
            raise _TooLarge
        return held
    except BaseException:  # caught, it has a traceback for `pass_on` to look at; orjson keeps none
        raise


def _few(value: Any, kind: type) -> Any:
    as_mapping = issubclass(kind, Mapping)
    members = list(islice(value.items() if as_mapping else value, _FEW + 1))
    if len(members) > _FEW:
        raise _TooLarge
    return dict(members) if as_mapping else _ordered(members, kind)


def _ordered(members: list[Any], kind: type) -> list[Any]:
    """Members of a set in an order that is the same in every process, where their types have one."""
    types_held = set(map(type, members))
    if kind is not deque and (types_held <= {str} or types_held <= {int, float}):
        return sorted(members)
    return members


def _content(value: Any, kind: type) -> Any:
    """What an object holds, as something nearer to JSON; a description when it is of no kind known here."""
    for is_kind, content in _KINDS:
        if is_kind(kind):
            return content(value)
    return safe_repr(value)


def safe_repr(value: Any, limit: int = _REPR) -> str:
    """``repr`` cut to ``limit`` characters, whatever it does; without the address, which says nothing.

    A class that defines no ``__repr__`` is named, and none of its objects' methods is called.
    """
    kind = type(value)
    try:
        if cast("object", kind.__repr__) is object.__repr__:
            return f"<{_name(kind)} object>"
        text = repr(value)
        return _ADDRESS.sub("", _cut(text, limit))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's __repr__
        pass_on(error)
        return f"<a {_type_name(kind)} whose repr raises {_type_name(type(error))}>"


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")


def _cut(text: str, limit: int) -> str:
    length = str.__len__(text)
    kept = str.__getitem__(text, slice(0, limit))
    return kept if length <= limit else f"{kept}… ({length - limit} more characters)"


_NAME_OF_TYPE = type.__dict__["__name__"].__get__
_QUALNAME_OF_TYPE = type.__dict__["__qualname__"].__get__


def _type_name(kind: type) -> str:
    return cast("str", _NAME_OF_TYPE(kind))


def _name(kind: type) -> str:
    """A class with its module, whatever its metaclass says."""
    module = type.__getattribute__(kind, "__module__")
    name = cast("str", _QUALNAME_OF_TYPE(kind))
    return name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}"


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Attributes as they are stored, without the class's own ``__getattr__``."""
    held = {}
    for name in names:
        try:
            held[name] = object.__getattribute__(value, name)
        except AttributeError:  # not set yet
            held[name] = None
    return held


def _dataclass_fields(value: Any) -> dict[str, Any]:
    """As orjson shows them: what is stored in the object, apart from private names."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = _fields(value, type(value).__dataclass_fields__)
    return {name: item for name, item in held.items() if not name.startswith("_")}


def _attrs_fields(value: Any) -> dict[str, Any]:
    return _fields(value, [field.name for field in type(value).__attrs_attrs__])


def _pydantic(value: Any) -> Any:
    """What a model says of itself: its serialisers may hide a secret."""
    kind = type(value)
    return kind.model_dump(value) if hasattr(kind, "model_dump") else kind.dict(value)


def _bytes(value: Any) -> str:
    view = memoryview(value)
    size = view.nbytes
    try:
        start = bytes(view.cast("B")[:_PREVIEW]) if view.contiguous else b""
        text = start.decode() if size <= _PREVIEW else start.decode("utf-8", "ignore")
        readable = text.isprintable() and len(text.encode()) > len(start) - 4
    except (UnicodeDecodeError, TypeError):
        readable = False
    if not readable or not text:
        return f"<{size} bytes>"
    return f"<{size} bytes: {text}{'…' if size > _PREVIEW else ''}>"


def _integer(value: int) -> Any:
    """An integer; its digits where JSON's readers would lose some."""
    bits = int.bit_length(value)
    if bits > _INTEGER_BITS:
        return f"<an integer of {bits} bits>"
    exact = int.__index__(value)
    return exact if -(1 << 63) <= exact < 1 << 64 else repr(exact)


def _exception(value: BaseException) -> dict[str, Any]:
    return {"exception": _name(type(value)), "args": BaseException.__dict__["args"].__get__(value)}


def _callable_name(value: Any) -> str:
    called = getattr(value, "__func__", value)
    module = getattr(called, "__module__", None)
    name = f"{module}.{called.__qualname__}" if module not in (None, "builtins") else called.__qualname__
    return f"<function {name}>"


def _running(value: Any) -> str:
    """A generator or a coroutine, which must not be advanced."""
    return f"<{type(value).__name__} {value.__qualname__}>"


def _partial(value: Any) -> dict[str, Any]:
    return {"function": value.func, "args": value.args, "keywords": value.keywords}


def _shape_and_type(what: str, value: Any) -> str:
    try:
        shape = f"{tuple(value.shape)} "
    except Exception as error:  # noqa: BLE001 - nested tensors have none
        pass_on(error)
        shape = ""
    return f"<{what} {shape}{value.dtype}"


def _tensor(value: Any) -> Any:
    """The numbers of a small tensor that is in memory; of others it would have to be waited for them."""
    device = value.device
    try:
        if device.type == "cpu" and value.numel() <= _SMALL_ARRAY and (value.dim() < 2 or value.numel()):
            return value.detach().tolist()
    except Exception as error:  # noqa: BLE001 - sparse, quantised, fake …: they have no plain numbers
        pass_on(error)
    where = "" if device.type == "cpu" else f" on {device}"
    grad = " with gradient" if value.requires_grad else ""
    return f"{_shape_and_type('tensor', value)}{where}{grad}>"


def _array(value: Any) -> Any:
    small = value.size <= _SMALL_ARRAY or (value.size <= _LARGE_ARRAY and value.dtype.kind in "iufb")
    if not small or value.nbytes > _LARGE_ARRAY_BYTES or (value.ndim > 1 and not value.size):
        return f"{_shape_and_type('array', value)}>"
    return value.astype(str).tolist() if value.dtype.kind in "mM" else value.tolist()


def _numpy_scalar(value: Any) -> Any:
    if value.dtype.kind in "mM":
        return str(value)
    held = value.item()
    if type(held) is not type(value):
        return held
    return float(value) if value.dtype.kind == "f" else str(value)


def _image(value: Any) -> str:
    width, height = value.size
    return f"<image {width}×{height} {value.mode}>"


def _is_a(*kinds: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, kinds)


def _is_of(module: str, name: str) -> Callable[[type], bool]:
    """Whether a type is the one called ``name`` of a module that the application may have imported."""

    def is_kind(kind: type) -> bool:
        theirs = getattr(sys.modules.get(module), name, None)
        return isinstance(theirs, type) and issubclass(kind, theirs)

    return is_kind


def _has(name: str) -> Callable[[type], bool]:
    """Asked of the class: an object that is a remote proxy has every attribute, over the network."""
    return lambda kind: hasattr(kind, name)


_KINDS: tuple[tuple[Callable[[type], bool], Callable[[Any], Any]], ...] = (
    (_is_a(enum.Enum), lambda v: object.__getattribute__(v, "_value_")),
    (_is_of("numpy", "generic"), _numpy_scalar),
    (_is_a(float), float.__float__),
    (_is_a(int), _integer),
    (_is_a(tuple), lambda v: list(tuple.__iter__(v))),
    (_is_a(bytes, bytearray, memoryview), _bytes),
    (_is_of("torch", "Tensor"), _tensor),
    (_is_of("numpy", "ndarray"), _array),
    (_is_of("PIL.Image", "Image"), _image),
    (_is_a(type), _name),
    (_is_a(BaseException), _exception),
    (_is_a(decimal.Decimal, fractions.Fraction, datetime.timedelta, pathlib.PurePath), str),
    (_is_a(types.ModuleType), lambda v: f"<module {v.__name__}>"),
    (_is_a(types.FunctionType, types.BuiltinFunctionType, types.MethodType), _callable_name),
    (_is_a(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _running),
    (_is_a(functools.partial), _partial),
    (_is_a(array), lambda v: v.tolist() if len(v) <= _LARGE_ARRAY else f"<array ({len(v)},) {v.typecode}>"),
    (_has("__pydantic_fields__"), _pydantic),
    (_has("__fields_set__"), _pydantic),
    (_has("__attrs_attrs__"), _attrs_fields),
    (_has("__dataclass_fields__"), _dataclass_fields),
)


def _piecewise(value: Any, limit: int) -> bytes:
    try:
        return _Pieces(limit).json(value, MAX_DEPTH)
    except Exception as error:  # noqa: BLE001 - the last line of defence, without memory or stack, say
        pass_on(error)
        return b'"<a value that cannot be shown>"'


_LEAVES = frozenset({type(None), bool, int, float})
_IN_KEYS = _LEAVES | {str}
_CONTAINERS = frozenset({dict, list, tuple})


class _Pieces:
    """Writes a value as JSON within a budget of bytes, spent depth first."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._above: set[int] = set()

    def json(self, value: Any, depth: int) -> bytes:
        """``value`` in what is left of the budget, and its marks of what is left out."""
        kind = type(value)
        if issubclass(kind, str) and not issubclass(kind, enum.Enum):
            return self._text(value)
        if kind in _LEAVES:
            shown = _integer(value) if kind is int else value
            return self._text(shown) if type(shown) is str else self._spend(_dumps(shown))
        if depth == 0:
            return self._spend(_NESTED)
        if id(value) in self._above:
            return self._spend(_CYCLE)
        self._above.add(id(value))
        try:
            return self._container(value, kind, depth)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's method; what surrounds it is worth showing
            pass_on(error)
            return self._text(safe_repr(value))
        finally:
            self._above.discard(id(value))

    def _container(self, value: Any, kind: type, depth: int) -> bytes:
        if issubclass(kind, dict):
            return self._mapping(dict.items(value), dict.__len__(value), depth)
        if issubclass(kind, list):
            return self._sequence(list.__iter__(value), list.__len__(value), depth)
        if issubclass(kind, tuple):
            return self._sequence(tuple.__iter__(value), tuple.__len__(value), depth)
        if issubclass(kind, Mapping):
            return self._mapping(value.items(), len(value), depth)
        if issubclass(kind, (set, frozenset, deque, Set)):
            if len(value) > _FEW:
                return self._sequence(iter(value), len(value), depth)
            members = _ordered(list(islice(value, _FEW)), kind)
            return self._sequence(iter(members), len(members), depth)
        if kind in _WRITTEN_BY_ORJSON:
            return self._spend(_dumps(value))
        return self.json(_content(value, kind), depth - 1)

    def _spend(self, written: bytes) -> bytes:
        self._left -= len(written) + 1
        return written

    def _whole(self, members: Any) -> bytes | None:
        """A few members at once, without their brackets, if orjson can and they fit."""
        try:
            if not set(map(type, members)) <= _LEAVES and _is_larger(members, self._left):
                return None
            written = _dumps(members, _held)
        except Exception as error:  # noqa: BLE001 - one by one then
            pass_on(error)
            return None
        return self._spend(written[1:-1]) if len(written) <= self._left else None

    def _text(self, text: str) -> bytes:
        """As much of a string as fits."""
        length = str.__len__(text)
        written = [b'"']
        at = 0
        size = _TEXT
        while at < length:
            piece = _escaped(str.__getitem__(text, slice(at, at + size)))
            if len(piece) <= self._left:
                self._left -= len(piece)
                written.append(piece)
                at += size
            elif size == 1:
                break
            else:
                size //= 8
        if at < length:
            written.append(f"… ({length - at} more characters)".encode())
        written.append(b'"')
        self._left -= 3
        return b"".join(written)

    def _sequence(self, members: Iterator[Any], count: int, depth: int) -> bytes:
        return b"[" + b",".join(self._items(members, count, depth)) + b"]"

    def _items(self, members: Iterator[Any], count: int, depth: int) -> Iterator[bytes]:
        self._left -= 2
        done = 0
        guarded = _until_it_raises(members, lambda what: f"… {what}")
        while chunk := list(islice(guarded, _CHUNK)):
            whole = self._whole(chunk) if self._left > 0 else None
            if whole is not None:
                done += len(chunk)
                yield whole
                continue
            for item in chunk:
                if self._left <= 0:
                    yield f'"… ({max(count - done, 1)} more items)"'.encode()
                    return
                done += 1
                yield self._sharing(item, count - done, depth)

    def _mapping(self, entries: Iterable[tuple[Any, Any]], count: int, depth: int) -> bytes:
        return b"{" + b",".join(self._entries(iter(entries), count, depth)) + b"}"

    def _entries(self, entries: Iterator[tuple[Any, Any]], count: int, depth: int) -> Iterator[bytes]:
        self._left -= 2
        seen: set[Any] = set()
        done = 0
        guarded = _until_it_raises(entries, lambda what: ("…", what))
        while chunk := list(islice(guarded, _CHUNK)):
            members = dict(chunk)
            distinct = len(members) == len(chunk) and seen.isdisjoint(members)
            whole = self._whole(members) if self._left > 0 and distinct else None
            if whole is not None:
                seen.update(members)
                done += len(chunk)
                yield whole
                continue
            for key, item in chunk:
                if self._left <= 0:
                    yield (_dumps(_unique("…", seen)) + f':"({max(count - done, 1)} more entries)"'.encode())
                    return
                done += 1
                name = self._text(_unique(_key(key), seen))
                yield name + b":" + self._sharing(item, count - done, depth)

    def _sharing(self, item: Any, others: int, depth: int) -> bytes:
        """One of several members, which leaves something to those after it."""
        kept = min(self._left // 2, 64 * max(others, 0))
        self._left -= kept
        try:
            return self.json(item, depth - 1)
        finally:
            self._left += kept


_TEXT = 4096
"""Characters of a long string that are encoded at once."""
_NESTED = _dumps("… (nested too deeply)")
_CYCLE = _dumps("… (a cycle)")
_WRITTEN_BY_ORJSON = frozenset({datetime.datetime, datetime.date, datetime.time, uuid.UUID})


def _escaped(text: str) -> bytes:
    """The inside of a JSON string."""
    try:
        return _dumps(text)[1:-1]
    except TypeError:  # lone surrogates
        return _dumps(text.encode("utf-8", "backslashreplace").decode())[1:-1]


def _key(key: Any) -> str:
    """The name of an entry in a JSON object."""
    kind = type(key)
    if issubclass(kind, str):
        return str.__getitem__(key, slice(None))
    if kind in _LEAVES:
        return str(_integer(key) if kind is int else key)
    if (
        kind is tuple
        and len(key) <= _NARROW
        and set(map(type, key)) <= _IN_KEYS
        and not _is_larger(key, _KEY)
    ):
        return repr(key)
    written = _Pieces(_KEY).json(key, MAX_DEPTH)
    return str(orjson.loads(written)) if written[:1] == b'"' else written.decode()


def _unique(key: str, seen: set[Any]) -> str:
    """A name that is not there yet: 1 and "1" are two keys to Python."""
    unique, number = key, 2
    while unique in seen:
        unique, number = f"{key} ({number})", number + 1
    seen.add(unique)
    return unique


def _until_it_raises(members: Iterator[Any], said: Callable[[str], Any]) -> Iterator[Any]:
    """What a container gives; if that raises, a note as its last member."""
    try:
        yield from members
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's, or it changed meanwhile
        pass_on(error)
        yield said(f"(the rest raises {_type_name(type(error))})")
