"""Convert objects that are not JSON to something nearer to JSON, by their type.

docs/recording.md lists what is recorded of each type. Converters call few methods of a user's object: a
method may do anything, and a remote proxy answers every attribute over the network.
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
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Any, Final, cast

from otel_rollout.base.errors import pass_on
from otel_rollout.record.capture.encoding import limits
from otel_rollout.record.recording.exception_text import qualified_name

Converter = Callable[[Any], Any]


class TooLarge(Exception):
    """The content of an object is too large for orjson; it is encoded in parts."""


# --- Names and reprs ----------------------------------------------------------------------------------------

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
_NAME_OF_TYPE: Final = type.__dict__["__name__"].__get__


def safe_repr(value: Any) -> str:
    """Return the ``repr`` of any object, cut, and without memory addresses.

    An object whose class defines no ``__repr__`` is described by its class. None of its methods is called.
    """
    type_ = type(value)
    try:
        if cast("object", type_.__repr__) is object.__repr__:
            return f"<{qualified_name(type_)} object>"
        text = repr(value)
        return _ADDRESS.sub("", _cut(text))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's __repr__
        pass_on(error)
        return f"<a {type_name(type_)} whose repr raises {type_name(type(error))}>"


def _cut(text: str) -> str:
    beginning = str.__getitem__(text, slice(0, limits.MAX_REPR_CHARS))
    more = str.__len__(text) - limits.MAX_REPR_CHARS
    return beginning if more <= 0 else f"{beginning}… ({more} more characters)"


def type_name(type_: type) -> str:
    """Return the name of a class without a call of its metaclass."""
    return cast("str", _NAME_OF_TYPE(type_))


# --- Containers and objects with fields ---------------------------------------------------------------------


def _copy_members(value: Any) -> Any:
    """Return the members of a set, a deque or a mapping other than a dict."""
    type_ = type(value)
    is_mapping = issubclass(type_, Mapping)
    members = list(islice(value.items() if is_mapping else value, limits.MAX_COPIED_MEMBERS + 1))
    if len(members) > limits.MAX_COPIED_MEMBERS:
        raise TooLarge
    return dict(members) if is_mapping else in_stable_order(members, type_)


def in_stable_order(members: list[Any], type_: type) -> list[Any]:
    """Sort a set of strings or of numbers, so that all processes record one order; keep any other order."""
    member_types = set(map(type, members))
    if type_ is not deque and (member_types <= {str} or member_types <= {int, float}):
        return sorted(members)
    return members


def _stored_attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return stored attributes without a call of ``__getattr__``."""
    stored = {}
    for name in names:
        try:
            stored[name] = object.__getattribute__(value, name)
        except AttributeError:  # not set yet
            stored[name] = None
    return stored


def dataclass_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's stored fields without private names, as orjson does."""
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        stored = _stored_attributes(value, type(value).__dataclass_fields__)
    return {name: item for name, item in stored.items() if not name.startswith("_")}


def _attrs_fields(value: Any) -> dict[str, Any]:
    return _stored_attributes(value, [field.name for field in type(value).__attrs_attrs__])


def _pydantic_fields(value: Any) -> Any:
    """Return a pydantic model's dump: the model's serializers may hide secrets."""
    type_ = type(value)
    return type_.model_dump(value) if hasattr(type_, "model_dump") else type_.dict(value)


def _exception(value: BaseException) -> dict[str, Any]:
    return {"exception": qualified_name(type(value)), "args": BaseException.__dict__["args"].__get__(value)}


# --- Numbers, bytes and functions ---------------------------------------------------------------------------


def convert_integer(value: int) -> Any:
    """Return an integer, a large one as text: readers of JSON would round it."""
    bits = int.bit_length(value)
    if bits > limits.MAX_INTEGER_BITS:
        return f"<an integer of {bits} bits>"
    exact = int.__index__(value)
    return exact if -(1 << 63) <= exact < 1 << 64 else repr(exact)


def _bytes(value: Any) -> str:
    view = memoryview(value)
    size = view.nbytes
    try:
        start = bytes(view.cast("B")[: limits.MAX_PREVIEW_BYTES]) if view.contiguous else b""
        text = start.decode() if size <= limits.MAX_PREVIEW_BYTES else start.decode("utf-8", "ignore")
        readable = text.isprintable() and len(text.encode()) > len(start) - 4
    except (UnicodeDecodeError, TypeError):
        readable = False
    if not readable or not text:
        return f"<{size} bytes>"
    return f"<{size} bytes: {text}{'…' if size > limits.MAX_PREVIEW_BYTES else ''}>"


def _function_name(value: Any) -> str:
    function = getattr(value, "__func__", value)
    module = getattr(function, "__module__", None)
    prefix = "" if module in (None, "builtins") else f"{module}."
    return f"<function {prefix}{function.__qualname__}>"


def _generator_name(value: Any) -> str:
    """Describe a generator or coroutine without advancing it."""
    return f"<{type(value).__name__} {value.__qualname__}>"


# --- Arrays, tensors and images -----------------------------------------------------------------------------


def _shape_and_type(noun: str, value: Any) -> str:
    try:
        shape = f"{tuple(value.shape)} "
    except Exception as error:  # noqa: BLE001 - a nested tensor has no shape
        pass_on(error)
        shape = ""
    return f"<{noun} {shape}{value.dtype}"


def _tensor(value: Any) -> Any:
    """Return the numbers of a small tensor in main memory; describe any other one."""
    device = value.device
    try:
        if (
            device.type == "cpu"
            and value.numel() <= limits.MAX_TENSOR_ELEMENTS
            and (value.dim() < 2 or value.numel())
        ):
            return value.detach().tolist()
    except Exception as error:  # noqa: BLE001 - a sparse, quantised or fake tensor has no plain numbers
        pass_on(error)
    where = "" if device.type == "cpu" else f" on {device}"
    gradient = " with gradient" if value.requires_grad else ""
    return f"{_shape_and_type('tensor', value)}{where}{gradient}>"


def convert_numpy_array(value: Any) -> Any:
    """Return the elements of a numpy array that is not large; describe a large one."""
    is_small = value.size <= limits.MAX_TENSOR_ELEMENTS or (
        value.size <= limits.MAX_ARRAY_NUMBERS and value.dtype.kind in "iufb"
    )
    if not is_small or value.nbytes > limits.MAX_ARRAY_BYTES or (value.ndim > 1 and not value.size):
        return f"{_shape_and_type('array', value)}>"
    return value.astype(str).tolist() if value.dtype.kind in "mM" else value.tolist()


def convert_numpy_scalar(value: Any) -> Any:
    """Return a numpy scalar as a builtin value."""
    if value.dtype.kind in "mM":
        return str(value)
    builtin = value.item()
    if type(builtin) is not type(value):
        return builtin
    return float(value) if value.dtype.kind == "f" else str(value)


def _builtin_array(value: Any) -> Any:
    is_small = len(value) <= limits.MAX_ARRAY_NUMBERS
    return value.tolist() if is_small else f"<array ({len(value)},) {value.typecode}>"


def _image(value: Any) -> str:
    width, height = value.size
    return f"<image {width}×{height} {value.mode}>"


# --- Which converter a type has -----------------------------------------------------------------------------


def _is_a(*types_: type) -> Callable[[type], bool]:
    return lambda type_: issubclass(type_, types_)


def _is_of(module: str, name: str) -> Callable[[type], bool]:
    """Match subclasses of a module's class, if the module has been imported."""

    def matches(type_: type) -> bool:
        class_ = getattr(sys.modules.get(module), name, None)
        return isinstance(class_, type) and issubclass(type_, class_)

    return matches


def _has(name: str) -> Callable[[type], bool]:
    """Match types whose class has an attribute; an object such as a remote proxy may have every attribute."""
    return lambda type_: hasattr(type_, name)


_CONVERTERS: Final[tuple[tuple[Callable[[type], bool], Converter], ...]] = (
    (_is_a(set, frozenset, deque, Set, Mapping), _copy_members),
    (_is_a(enum.Enum), lambda v: object.__getattribute__(v, "_value_")),
    (_is_of("numpy", "generic"), convert_numpy_scalar),
    (_is_a(float), float.__float__),
    (_is_a(int), convert_integer),
    (_is_a(tuple), lambda v: list(tuple.__iter__(v))),
    (_is_a(bytes, bytearray, memoryview), _bytes),
    (_is_of("torch", "Tensor"), _tensor),
    (_is_of("numpy", "ndarray"), convert_numpy_array),
    (_is_of("PIL.Image", "Image"), _image),
    (_is_a(type), qualified_name),
    (_is_a(BaseException), _exception),
    (_is_a(decimal.Decimal, fractions.Fraction, datetime.timedelta, pathlib.PurePath), str),
    (_is_a(types.ModuleType), lambda v: f"<module {v.__name__}>"),
    (_is_a(types.FunctionType, types.BuiltinFunctionType, types.MethodType), _function_name),
    (_is_a(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _generator_name),
    (_is_a(functools.partial), lambda v: {"function": v.func, "args": v.args, "keywords": v.keywords}),
    (_is_a(array), _builtin_array),
    (_has("__pydantic_fields__"), _pydantic_fields),
    (_has("__fields_set__"), _pydantic_fields),
    (_has("__attrs_attrs__"), _attrs_fields),
    (_has("__dataclass_fields__"), dataclass_fields),
)
"""Test of a type → converter; the first match counts. Objects of other types become their ``repr``."""
WORK_UNITS: Final[dict[Converter, int]] = {
    safe_repr: 2,
    str: 2,
    _bytes: 3,
    convert_numpy_array: 2,
    _copy_members: 3,
    _tensor: 4,
    _pydantic_fields: 4,
}
"""Converter → work units per call; 1 if not listed."""
_converters: dict[type, Converter] = {}
"""Type → converter: a cache of at most MAX_CACHED_TYPES entries."""


def converter_of(type_: type) -> Converter:
    """Return the function that converts objects of a type."""
    converter = _converters.get(type_)
    if converter is None:
        if len(_converters) >= limits.MAX_CACHED_TYPES:
            _converters.clear()  # an application may define a new class with each call
        converter = next((converter for matches, converter in _CONVERTERS if matches(type_)), safe_repr)
        _converters[type_] = converter
    return converter
