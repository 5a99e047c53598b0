"""Any Python value → JSON, bounded before it is encoded, without ever raising; docs/values.md has the list.

Two ways. Most values go straight through orjson, in well under a microsecond per kilobyte. Whatever orjson
refuses (huge integers, cycles, odd keys, lone surrogates …) and whatever is larger than the limit is written
piece by piece, until the limit is reached. Only what a signal handler raises meanwhile goes through.

A look at few of a value's parts tells whether it may be too large. If so it is measured, from below: what is
found too large *is* too large, so that looking decides how much time is spent, never what is recorded.

An event loop waits meanwhile. So Python's own work on a value is bounded by counts: of parts that are looked
at, and of steps at what orjson refuses. What orjson takes is quick, and is not counted.
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
from itertools import chain, islice
from typing import Any, cast

import orjson

from otel_rollout._state import process
from otel_rollout.base.interrupts import pass_on

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
_WATCHED = 256
"""Values measured in full after one was encoded that turned out larger than the limit."""
_CHUNK = 1024
"""Members of a large container that are encoded at once."""
_PART = 16
"""Parts of a chunk that orjson refuses; of so few members each is written alone."""
_MUCH = 1 << 16
"""Bytes of few members that are not tried whole."""
_SEVERAL = 64
"""Members that orjson may ask about at once, before they are split."""
_STEPS = 3072
"""Steps of about half a microsecond at what orjson refuses, where a value is written piece by piece."""
_FIRST_STEPS = 1024
"""The same where orjson asks what objects hold: it begins anew when there are too many."""
_LOOKS = 1 << 13
"""Parts of a value that are looked at to measure it."""
_FEW_LOOKS = 1 << 7
"""The same for few members once those are used up, each for a step; not again once they were too few."""
_LIKE_THE_FIRST = 4096
"""Members of a list that are looked at to see whether it holds numbers."""
_REPR = 4096
"""Characters kept of a ``repr``."""
_PREVIEW = 64
"""Bytes of text shown of a bytes object."""
_KEY = 256
"""Bytes kept of a key that is not a string."""
_INTEGER_BITS = 14_000
"""Bits up to which an integer is written in digits: beyond, Python refuses to."""

_OBJECT = "Type is not JSON serializable"
"""What orjson says of an object that it has to be told the content of, and not of keys and the like."""
_dumps = orjson.dumps


def to_json(value: Any, limit: int) -> bytes:
    """Encode ``value`` as JSON of about ``limit`` bytes at most.

    Objects become what they hold (dataclasses, pydantic, attrs, numpy, torch) or else their ``repr``. NaN
    and infinities become null, as JSON has none. What is left out is said in place. Never raises, apart from
    the KeyboardInterrupt of a user.
    """
    try:
        if process.values_to_measure or _seems_larger(value, limit):
            process.values_to_measure -= process.values_to_measure > 0
            larger = _is_larger(value, limit, _Work())
            if larger or (larger is None and _seems_larger(value, limit)):
                return _piecewise(value, limit)
        encoded = _dumps(value)
        if len(encoded) <= limit:
            return encoded
        process.values_to_measure = _WATCHED
    except Exception as error:  # noqa: BLE001 - something in it is not for orjson, or has changed meanwhile
        pass_on(error)
        if _OBJECT in str(error):
            return _with_objects(value, limit)
    return _piecewise(value, limit)


def _with_objects(value: Any, limit: int) -> bytes:
    """The same where orjson has to be told what objects hold."""
    try:
        encoded = _dumps(value, _Work(steps=_FIRST_STEPS).held)
        if len(encoded) <= limit:
            return encoded
        process.values_to_measure = _WATCHED
    except Exception as error:  # noqa: BLE001 - user values: any of their methods may have been called
        pass_on(error)
    return _piecewise(value, limit)


def _seems_larger(value: Any, size: int, levels: int = _LEVELS) -> bool:
    """Whether ``value`` looks as if it took more than ``size`` bytes: a few hundred nanoseconds' look.

    Narrow dicts are looked through; in a list all are taken to be like the last, the newest message.
    """
    kind = type(value)
    if kind is dict:
        if len(value) > _NARROW or levels <= 0:
            return 5 * len(value) > size or levels <= 0
        for part in value.values():
            kind = type(part)
            if kind is str:
                if len(part) > size:
                    return True
            elif kind in _CONTAINERS:
                levels -= 1  # for each of them: else several on every level would multiply
                if _seems_larger(part, size, levels):
                    return True
        return False
    if kind is list or kind is tuple:
        count = len(value)
        return count > 0 and (2 * count > size or _seems_larger(value[-1], size // count, levels))
    return kind is str and len(value) > size


def _is_larger(value: Any, size: int, work: _Work) -> bool | None:
    """Whether ``value`` takes more than ``size`` bytes of JSON at the least; None: too many parts to say.

    Level by level, in loops of C.
    """
    level = [value]
    while level:
        work.looks -= len(level)
        if work.looks < 0:
            return None
        kinds = set(map(type, level))
        if str in kinds:
            size -= sum(map(len, [part for part in level if type(part) is str]))
        lists = [part for part in level if type(part) is list or type(part) is tuple]
        dicts = [part for part in level if type(part) is dict] if dict in kinds else []
        if not kinds <= _MEASURED:
            others = [part for part in level if type(part) not in _MEASURED]
            work.looks -= 3 * len(others)
            for part in others[: max(work.looks, 0)]:
                size -= _measure_other(part, lists, dicts)
        size -= 2 * sum(map(len, lists)) + 5 * sum(map(len, dicts))
        if size < 0:
            return True
        lists = [part for part in lists if len(part) <= _PART or not _begins_with_numbers(part)]
        if sum(map(len, lists)) + 2 * sum(map(len, dicts)) > work.looks:
            work.looks = 0
            return None
        values = chain.from_iterable(map(dict.values, dicts))
        level = [*chain.from_iterable(lists), *chain.from_iterable(dicts), *values]
    return size < 0


def _measure_other(part: Any, lists: list[Any], dicts: list[Any]) -> int:
    """What a part of another kind takes; what it holds is put with its like."""
    kind = type(part)
    if issubclass(kind, str):
        return str.__len__(part)
    if issubclass(kind, (dict, list)):
        base = dict if issubclass(kind, dict) else list
        if base.__len__(part) > _LOOKS:
            return 2 * base.__len__(part)
    if issubclass(kind, dict):
        dicts.append(dict(dict.items(part)))
    elif issubclass(kind, list):
        lists.append(list(list.__iter__(part)))
    elif hasattr(kind, "__dataclass_fields__"):
        lists.append(list(_dataclass_fields(part).values()))
    return 0


def _begins_with_numbers(members: Any) -> bool:
    """Token ids by the hundred thousand are not to be gone through one by one."""
    return _LEAVES.issuperset(map(type, islice(members, _LIKE_THE_FIRST)))


class _TooLarge(Exception):
    """Refuses an object to orjson that has to be written piece by piece."""


class _Work:
    """What Python may still do for a value."""

    def __init__(self, steps: int = _STEPS, looks: int = _LOOKS) -> None:
        self.steps = steps
        self.looks = looks
        self.kept = 0
        """Steps that are not for ``held``."""

    def held(self, value: Any) -> Any:
        """For orjson: what an object holds, unless that is large."""
        try:
            if self.steps <= self.kept:
                raise _TooLarge
            content = _content_of(type(value))
            held = content(value)
            kind = type(held)
            self.steps -= _COSTS.get(content, 1)
            if kind is list or kind is dict:
                self.steps -= len(held) >> (8 if content is _array else 4)
            if _seems_larger(held, _HELD):
                raise _TooLarge
            return held
        except BaseException:  # caught, it has a traceback for `pass_on` to look at; orjson keeps none
            raise


def _few(value: Any) -> Any:
    """Members of a set, a queue or a mapping of another kind than dict."""
    kind = type(value)
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


def _content_of(kind: type) -> Callable[[Any], Any]:
    """What gives what an object holds, as something nearer to JSON; a description of kinds not known here."""
    content = _contents.get(kind)
    if content is None:
        if len(_contents) >= _FEW:
            _contents.clear()  # classes may be made anew with each call
        content = next((content for is_kind, content in _KINDS if is_kind(kind)), safe_repr)
        _contents[kind] = content
    return content


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


_contents: dict[type, Callable[[Any], Any]] = {}
"""Of the kinds that were met lately."""
_KINDS: tuple[tuple[Callable[[type], bool], Callable[[Any], Any]], ...] = (
    (_is_a(set, frozenset, deque, Set, Mapping), _few),
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
_COSTS: dict[Callable[[Any], Any], int] = {
    safe_repr: 2,
    str: 2,
    _bytes: 3,
    _array: 2,
    _few: 3,
    _tensor: 4,
    _pydantic: 4,
}
"""Steps, where it is not one."""


def _piecewise(value: Any, limit: int) -> bytes:
    try:
        return _Pieces(limit, _Work()).json(value, MAX_DEPTH)
    except Exception as error:  # noqa: BLE001 - the last line of defence, without memory or stack, say
        pass_on(error)
        return b'"<a value that cannot be shown>"'


_LEAVES = frozenset({type(None), bool, int, float})
_IN_KEYS = _LEAVES | {str}
_CONTAINERS = frozenset({dict, list, tuple})
_MEASURED = _IN_KEYS | _CONTAINERS


class _Pieces:
    """Writes a value as JSON within a budget of bytes, spent depth first, and of work."""

    def __init__(self, budget: int, work: _Work) -> None:
        self._left = budget
        self._work = work
        self._above: set[int] = set()
        self._careful = False
        """Whether members were much larger than they seemed."""
        self._vast = False
        """Whether few members had too many parts to measure, once all looks were used up."""

    def json(self, value: Any, depth: int) -> bytes:
        """``value`` in what is left of the budget, and its marks of what is left out."""
        self._work.steps -= 3
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
        self._work.steps -= 6
        if issubclass(kind, dict):
            return self._mapping(dict.items(value), dict.__len__(value), depth)
        if issubclass(kind, list):
            return self._sequence(_slices(value, list), list.__len__(value), depth)
        if issubclass(kind, tuple):
            return self._sequence(_slices(value, tuple), tuple.__len__(value), depth)
        if issubclass(kind, Mapping):
            return self._mapping(value.items(), len(value), depth)
        if issubclass(kind, (set, frozenset, deque, Set)):
            members = value if len(value) > _FEW else _ordered(list(islice(value, _FEW)), kind)
            return self._sequence(_Chunks(members, lambda what: f"… {what}"), len(members), depth)
        if kind in _WRITTEN_BY_ORJSON:
            return self._spend(_dumps(value))
        content = _content_of(kind)
        self._work.steps -= _COSTS.get(content, 1)
        return self.json(content(value), depth - 1)

    def _spend(self, written: bytes) -> bytes:
        self._left -= len(written) + 1
        return written

    def _whole(self, members: Any) -> bytes | None:
        """A few members at once, without their brackets, if orjson can and they fit."""
        work = self._work
        try:
            if not _LEAVES.issuperset(map(type, members)):
                work.steps -= len(members) >> 4
                if work.steps <= 0 or self._seem_larger(members):
                    return None
            work.kept = max(work.steps - 4 * min(len(members), _SEVERAL), 0)
            written = _dumps(members, work.held)
        except Exception as error:  # noqa: BLE001 - in smaller parts then
            pass_on(error)
            return None
        if len(written) > self._left:
            self._careful |= len(written) > self._left + _MUCH
            return None
        return self._spend(written[1:-1])

    def _seem_larger(self, members: Any) -> bool:
        """Whether they are larger than what is left; of too many to measure some are taken for all."""
        few = len(members) <= _PART  # much in few is gone into: trying it whole at each level takes long
        size = min(self._left, _MUCH) if few else self._left
        larger = _is_larger(members, size, self._work)
        if larger is None and few and not self._vast:
            looks = _Work(looks=_FEW_LOOKS)
            larger = _is_larger(members, size, looks)
            if larger is None:
                self._vast = True
            else:
                self._work.steps -= _FEW_LOOKS - looks.looks
        elif larger is None and not few and not self._careful:
            some = list(members.values() if type(members) is dict else members)[::_PART]
            larger = _is_larger(some, size // _PART, _Work())
        return larger is not False

    def _no_more(self) -> bool:
        return self._left <= 0 or self._work.steps <= 0

    def _text(self, text: str) -> bytes:
        """As much of a string as fits."""
        length = str.__len__(text)
        written = [b'"']
        at = 0
        size = max(min(length, self._left), _TEXT)
        while at < length:
            piece = _escaped(str.__getitem__(text, slice(at, at + size)))
            if len(piece) <= self._left:
                self._left -= len(piece)
                written.append(piece)
                at += size
            elif size == 1:
                break
            else:
                size = max(size // 8, 1)
        if at < length:
            written.append(f"… ({length - at} more characters)".encode())
        written.append(b'"')
        self._left -= 3
        return b"".join(written)

    def _sequence(self, chunks: Iterator[Any], count: int, depth: int) -> bytes:
        return b"[" + b",".join(self._items(chunks, count, depth)) + b"]"

    def _items(self, chunks: Iterator[Any], count: int, depth: int) -> Iterator[bytes]:
        self._left -= 2
        done = 0
        for chunk in chunks:
            parts = [chunk]
            while parts:
                part = self._simpler(parts.pop())
                whole = self._whole(part) if self._left > 0 else None
                if whole is not None:
                    done += len(part)
                    yield whole
                    continue
                if len(part) > _PART and not self._no_more():
                    parts += reversed(list(_slices(part, type(part), max(_PART, len(part) // _PART))))
                    continue
                for item in part:
                    if self._no_more():
                        yield f'"… ({max(count - done, 1)} more items)"'.encode()
                        return
                    done += 1
                    yield self._sharing(item, count - done, depth)

    def _simpler(self, members: Any) -> Any:
        """The same for orjson, where all are numpy's numbers or dicts by numbers."""
        kind = type(members[0])
        if kind is dict:
            if len(members) > _SEVERAL or type(next(iter(members[0]), "")) is not int:
                return members
            return [self._by_number(entries) if type(entries) is dict else entries for entries in members]
        if kind in _IN_KEYS or _content_of(kind) is not _numpy_scalar or self._no_more():
            return members
        if set(map(type, members)) == {kind} and members[0].dtype.kind in "iufb":
            self._work.steps -= len(members) >> 3
            return sys.modules["numpy"].array(members).tolist()
        return members

    def _mapping(self, entries: Iterable[tuple[Any, Any]], count: int, depth: int) -> bytes:
        chunks = _Chunks(entries, lambda what: ("…", what))
        return b"{" + b",".join(self._entries(chunks, count, depth)) + b"}"

    def _entries(self, chunks: Iterator[Any], count: int, depth: int) -> Iterator[bytes]:
        self._left -= 2
        seen: set[Any] = set()
        done = 0
        for chunk in chunks:
            parts = [chunk]
            while parts:
                part = parts.pop()
                members = self._named(part)
                distinct = len(members) == len(part) and seen.isdisjoint(members)
                whole = self._whole(members) if distinct and not self._no_more() else None
                if whole is not None:
                    seen.update(members)
                    self._work.steps -= len(part) >> 2
                    done += len(part)
                    yield whole
                    continue
                if len(part) > _PART and not self._no_more():
                    parts += reversed(list(_slices(part, list, max(_PART, len(part) // _PART))))
                    continue
                for key, item in part:
                    if self._no_more():
                        said = f'"({max(count - done, 1)} more entries)"'
                        yield _dumps(_unique("…", seen)) + b":" + said.encode()
                        return
                    done += 1
                    name = self._text(_unique(_key(key, self._work), seen))
                    yield name + b":" + self._sharing(item, count - done, depth)

    def _named(self, entries: list[tuple[Any, Any]]) -> dict[Any, Any]:
        """Entries by name, where that is quickly found."""
        members = self._by_number(dict(entries))
        if set(map(type, members)) == {tuple} and not self._no_more() and all(map(_is_plain, members)):
            self._work.steps -= len(members)
            return dict(zip(map(repr, members), members.values(), strict=True))
        return members

    def _by_number(self, entries: dict[Any, Any]) -> dict[Any, Any]:
        """Entries by name, if all are by numbers."""
        if set(map(type, entries)) != {int} or self._no_more():
            return entries
        self._work.steps -= 2 + (len(entries) >> 3)
        return dict(zip(map(str, entries), entries.values(), strict=True))

    def _sharing(self, item: Any, others: int, depth: int) -> bytes:
        """One of several members, which leaves something to those after it."""
        kept = min(self._left // 2, 64 * max(others, 0))
        self._left -= kept
        try:
            return self.json(item, depth - 1)
        finally:
            self._left += kept


_TEXT = 4096
"""Characters of a string that are encoded at once at the least."""
_NESTED = _dumps("… (nested too deeply)")
_CYCLE = _dumps("… (a cycle)")
_WRITTEN_BY_ORJSON = frozenset({datetime.datetime, datetime.date, datetime.time, uuid.UUID})


def _escaped(text: str) -> bytes:
    """The inside of a JSON string."""
    try:
        return _dumps(text)[1:-1]
    except TypeError:  # lone surrogates
        return _dumps(text.encode("utf-8", "backslashreplace").decode())[1:-1]


def _key(key: Any, work: _Work) -> str:
    """The name of an entry in a JSON object."""
    kind = type(key)
    if issubclass(kind, str):
        return str.__getitem__(key, slice(None))
    if kind in _LEAVES:
        return str(_integer(key) if kind is int else key)
    if kind is tuple and _is_plain(key):
        return repr(key)
    written = _Pieces(_KEY, work).json(key, MAX_DEPTH)
    return str(orjson.loads(written)) if written[:1] == b'"' else written.decode()


def _is_plain(key: tuple[Any, ...]) -> bool:
    """Whether a key is a few numbers and short strings."""
    return (
        len(key) <= _NARROW
        and _IN_KEYS.issuperset(map(type, key))
        and all(type(part) is not str or len(part) <= _PREVIEW for part in key)
    )


def _unique(key: str, seen: set[Any]) -> str:
    """A name that is not there yet: 1 and "1" are two keys to Python."""
    unique, number = key, 2
    while unique in seen:
        unique, number = f"{key} ({number})", number + 1
    seen.add(unique)
    return unique


def _slices(members: Any, kind: type[Any], size: int = _CHUNK) -> Iterator[Any]:
    """A list or tuple, in parts, whatever its class has made of it."""
    # No generator: what a signal handler raises while one is closed would be lost.
    slices = [slice(at, at + size) for at in range(0, kind.__len__(members), size)]
    return map(functools.partial(kind.__getitem__, members), slices)


class _Chunks:
    """What a container gives, in lists; if that raises, a note as the last member. No generator, as above."""

    def __init__(self, members: Iterable[Any], said: Callable[[str], Any]) -> None:
        self._members = iter(members)
        self._said = said

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        chunk: list[Any] = []
        try:
            chunk.extend(islice(self._members, _CHUNK))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's, or it changed meanwhile
            pass_on(error)
            chunk.append(self._said(f"(the rest raises {_type_name(type(error))})"))
            self._members = iter(())
        if not chunk:
            raise StopIteration
        return chunk
