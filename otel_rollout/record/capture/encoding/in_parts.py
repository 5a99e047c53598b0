"""Encode a value in parts, within a budget of bytes and of work.

orjson encodes parts as large as possible. A part that orjson refuses, or that does not fit, is split, down to
single members.
"""

from __future__ import annotations

import datetime
import enum
import functools
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any, Final

import orjson

from otel_rollout.base.errors import pass_on
from otel_rollout.record.capture.encoding import converters, limits
from otel_rollout.record.capture.encoding.converters import type_name
from otel_rollout.record.capture.encoding.size import KEYS, SCALARS, Work, is_larger

_dumps = orjson.dumps
_NESTED: Final = _dumps("… (nested too deeply)")
_CYCLE: Final = _dumps("… (a cycle)")
_ENCODED_BY_ORJSON: Final = frozenset({datetime.datetime, datetime.date, datetime.time, uuid.UUID})


def encode_in_parts(value: Any, limit: int) -> bytes:
    """Encode a value as JSON of at most about ``limit`` bytes, part by part."""
    try:
        return BoundedEncoder(limit, Work()).encode(value, limits.MAX_DEPTH)
    except Exception as error:  # noqa: BLE001 - out of memory or of stack, for example
        pass_on(error)
        return b'"<a value that cannot be shown>"'


class BoundedEncoder:
    """Encode a value depth first, until a budget of bytes or of work is used up.

    Args:
        budget: bytes to spend.
        work: work units and visits to spend.
    """

    def __init__(self, budget: int, work: Work) -> None:
        self._bytes_left = budget
        self._work = work
        self._ancestors: set[int] = set()
        """Ids of the containers around the value that is being encoded, to find cycles."""
        self._was_underestimated = False
        """Whether a part was much larger than measured. From then on no samples are measured."""
        self._is_vast = False
        """Whether a part of few members had more than MAX_VISITED_AGAIN values. From then on such parts are
        not measured again."""

    def encode(self, value: Any, depth: int) -> bytes:
        """Encode a value within the bytes that are left; notes say what is missing."""
        self._work.units -= 3
        type_ = type(value)
        if issubclass(type_, str) and not issubclass(type_, enum.Enum):
            return self._text(value)
        if type_ in SCALARS:
            scalar = converters.convert_integer(value) if type_ is int else value
            return self._text(scalar) if type(scalar) is str else self._spend(_dumps(scalar))
        if depth == 0:
            return self._spend(_NESTED)
        if id(value) in self._ancestors:
            return self._spend(_CYCLE)
        self._ancestors.add(id(value))
        try:
            return self._container(value, type_, depth)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - of a user's method; the other values are recorded
            pass_on(error)
            return self._text(converters.safe_repr(value))
        finally:
            self._ancestors.discard(id(value))

    def _container(self, value: Any, type_: type, depth: int) -> bytes:
        self._work.units -= 6
        if issubclass(type_, dict):
            return self._mapping(dict.items(value), dict.__len__(value), depth)
        if issubclass(type_, list):
            return self._sequence(_slices(value, list), list.__len__(value), depth)
        if issubclass(type_, tuple):
            return self._sequence(_slices(value, tuple), tuple.__len__(value), depth)
        if issubclass(type_, Mapping):
            return self._mapping(value.items(), len(value), depth)
        if issubclass(type_, (set, frozenset, deque, Set)):
            members = value
            if len(value) <= limits.MAX_COPIED_MEMBERS:
                members = converters.in_stable_order(list(islice(value, limits.MAX_COPIED_MEMBERS)), type_)
            return self._sequence(_Chunks(members, lambda note: f"… {note}"), len(members), depth)
        if type_ in _ENCODED_BY_ORJSON:
            return self._spend(_dumps(value))
        converter = converters.converter_of(type_)
        self._work.units -= converters.WORK_UNITS.get(converter, 1)
        return self.encode(converter(value), depth - 1)

    def _spend(self, encoded: bytes) -> bytes:
        self._bytes_left -= len(encoded) + 1
        return encoded

    def _is_used_up(self) -> bool:
        return self._bytes_left <= 0 or self._work.units <= 0

    def _text(self, text: str) -> bytes:
        """Encode as much of a string as fits."""
        length = str.__len__(text)
        encoded = [b'"']
        start = 0
        size = max(min(length, self._bytes_left), limits.MIN_TEXT_CHARS)
        while start < length:
            piece = _escaped(str.__getitem__(text, slice(start, start + size)))
            if len(piece) <= self._bytes_left:
                self._bytes_left -= len(piece)
                encoded.append(piece)
                start += size
            elif size == 1:
                break
            else:
                size = max(size // 8, 1)
        if start < length:
            encoded.append(f"… ({length - start} more characters)".encode())
        encoded.append(b'"')
        self._bytes_left -= 3
        return b"".join(encoded)

    # --- Several members at once ----------------------------------------------------------------------------

    def _whole(self, members: Any) -> bytes | None:
        """Encode members at once, without brackets; None if they need smaller parts."""
        work = self._work
        try:
            if not SCALARS.issuperset(map(type, members)):
                work.units -= len(members) >> 4
                if work.units <= 0 or self._may_not_fit(members):
                    return None
            work.reserved = max(work.units - 4 * min(len(members), limits.MAX_CONVERTED_MEMBERS), 0)
            encoded = _dumps(members, work.convert)
        except Exception as error:  # noqa: BLE001 - the members are encoded in smaller parts instead
            pass_on(error)
            return None
        if len(encoded) > self._bytes_left:
            self._was_underestimated |= len(encoded) > self._bytes_left + limits.MAX_WHOLE_BYTES
            return None
        return self._spend(encoded[1:-1])

    def _may_not_fit(self, members: Any) -> bool:
        """Return whether members may be larger than the bytes left.

        If there are too many members to measure, only a sample is measured.
        """
        # Split few large members at once: an attempt to encode them whole on each level would take long.
        are_few = len(members) <= limits.SPLIT_PARTS
        size = min(self._bytes_left, limits.MAX_WHOLE_BYTES) if are_few else self._bytes_left
        larger = is_larger(members, size, self._work)
        if larger is None and are_few and not self._is_vast:
            last_visits = Work(visits=limits.MAX_VISITED_AGAIN)
            larger = is_larger(members, size, last_visits)
            if larger is None:
                self._is_vast = True
            else:
                self._work.units -= limits.MAX_VISITED_AGAIN - last_visits.visits
        elif larger is None and not are_few and not self._was_underestimated:
            sample = list(members.values() if type(members) is dict else members)[:: limits.SPLIT_PARTS]
            larger = is_larger(sample, size // limits.SPLIT_PARTS, Work())
        return larger is not False

    def _sharing(self, item: Any, others: int, depth: int) -> bytes:
        """Encode one of several members; reserve some bytes for the members after it."""
        reserved = min(self._bytes_left // 2, 64 * max(others, 0))
        self._bytes_left -= reserved
        try:
            return self.encode(item, depth - 1)
        finally:
            self._bytes_left += reserved

    # --- Sequences ------------------------------------------------------------------------------------------

    def _sequence(self, chunks: Iterator[Any], count: int, depth: int) -> bytes:
        return b"[" + b",".join(self._items(chunks, count, depth)) + b"]"

    def _items(self, chunks: Iterator[Any], count: int, depth: int) -> Iterator[bytes]:
        self._bytes_left -= 2
        done = 0
        for chunk in chunks:
            parts = [chunk]
            while parts:
                part = self._simplified(parts.pop())
                whole = self._whole(part) if self._bytes_left > 0 else None
                if whole is not None:
                    done += len(part)
                    yield whole
                    continue
                if len(part) > limits.SPLIT_PARTS and not self._is_used_up():
                    parts += reversed(list(_slices(part, type(part), _part_size(part))))
                    continue
                for item in part:
                    if self._is_used_up():
                        yield f'"… ({max(count - done, 1)} more items)"'.encode()
                        return
                    done += 1
                    yield self._sharing(item, count - done, depth)

    def _simplified(self, members: Any) -> Any:
        """Convert numpy's numbers, or dicts with integer keys, to values for orjson."""
        type_ = type(members[0])
        if type_ is dict:
            if len(members) > limits.MAX_CONVERTED_MEMBERS or type(next(iter(members[0]), "")) is not int:
                return members
            return [
                self._with_text_keys(entries) if type(entries) is dict else entries for entries in members
            ]
        if type_ in KEYS or self._is_used_up():
            return members
        if converters.converter_of(type_) is not converters.convert_numpy_scalar:
            return members
        if set(map(type, members)) == {type_} and members[0].dtype.kind in "iufb":
            self._work.units -= len(members) >> 3
            return sys.modules["numpy"].array(members).tolist()
        return members

    # --- Mappings -------------------------------------------------------------------------------------------

    def _mapping(self, entries: Iterable[tuple[Any, Any]], count: int, depth: int) -> bytes:
        chunks = _Chunks(entries, lambda note: ("…", note))
        return b"{" + b",".join(self._entries(chunks, count, depth)) + b"}"

    def _entries(self, chunks: Iterator[Any], count: int, depth: int) -> Iterator[bytes]:
        self._bytes_left -= 2
        seen: set[Any] = set()
        done = 0
        for chunk in chunks:
            parts = [chunk]
            while parts:
                part = parts.pop()
                members = self._named(part)
                are_distinct = len(members) == len(part) and seen.isdisjoint(members)
                whole = self._whole(members) if are_distinct and not self._is_used_up() else None
                if whole is not None:
                    seen.update(members)
                    self._work.units -= len(part) >> 2
                    done += len(part)
                    yield whole
                    continue
                if len(part) > limits.SPLIT_PARTS and not self._is_used_up():
                    parts += reversed(list(_slices(part, list, _part_size(part))))
                    continue
                for key, item in part:
                    if self._is_used_up():
                        note = f'"({max(count - done, 1)} more entries)"'
                        yield _dumps(_unique_key("…", seen)) + b":" + note.encode()
                        return
                    done += 1
                    name = self._text(_unique_key(_key_text(key, self._work), seen))
                    yield name + b":" + self._sharing(item, count - done, depth)

    def _named(self, entries: list[tuple[Any, Any]]) -> dict[Any, Any]:
        """Return entries as a dict; integer keys, or short tuples as keys, become text."""
        members = self._with_text_keys(dict(entries))
        if set(map(type, members)) == {tuple} and not self._is_used_up() and all(map(_is_plain_key, members)):
            self._work.units -= len(members)
            return dict(zip(map(repr, members), members.values(), strict=True))
        return members

    def _with_text_keys(self, entries: dict[Any, Any]) -> dict[Any, Any]:
        """Convert the keys of a dict to text if all are integers; else return the dict."""
        if set(map(type, entries)) != {int} or self._is_used_up():
            return entries
        self._work.units -= 2 + (len(entries) >> 3)
        return dict(zip(map(str, entries), entries.values(), strict=True))


def _part_size(members: Any) -> int:
    return max(limits.SPLIT_PARTS, len(members) // limits.SPLIT_PARTS)


def _escaped(text: str) -> bytes:
    """Encode the inside of a JSON string."""
    try:
        return _dumps(text)[1:-1]
    except TypeError:  # lone surrogates
        return _dumps(text.encode("utf-8", "backslashreplace").decode())[1:-1]


def _key_text(key: Any, work: Work) -> str:
    """Convert a key of any type to the key of a JSON object."""
    type_ = type(key)
    if issubclass(type_, str):
        return str.__getitem__(key, slice(None))
    if type_ in SCALARS:
        return str(converters.convert_integer(key) if type_ is int else key)
    if type_ is tuple and _is_plain_key(key):
        return repr(key)
    encoded = BoundedEncoder(limits.MAX_KEY_BYTES, work).encode(key, limits.MAX_DEPTH)
    return str(orjson.loads(encoded)) if encoded[:1] == b'"' else encoded.decode()


def _slices(members: Any, type_: type[Any], size: int = limits.CHUNK_MEMBERS) -> Iterator[Any]:
    """Slice a list or tuple by the methods of ``type_``, not by overriding ones."""
    ranges = [slice(start, start + size) for start in range(0, type_.__len__(members), size)]
    return map(functools.partial(type_.__getitem__, members), ranges)


class _Chunks:
    """Iterate over a container's members in lists, and note if the iteration raises.

    This is no generator: Python drops an exception that a signal handler raises while a generator is closed.

    Args:
        members: the members of the container.
        note: makes a member from a text; this member is the last one if the iteration raises.
    """

    def __init__(self, members: Iterable[Any], note: Callable[[str], Any]) -> None:
        self._members = iter(members)
        self._note = note

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        chunk: list[Any] = []
        try:
            chunk.extend(islice(self._members, limits.CHUNK_MEMBERS))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's iterator, or a changed container
            pass_on(error)
            chunk.append(self._note(f"(the rest raises {type_name(type(error))})"))
            self._members = iter(())
        if not chunk:
            raise StopIteration
        return chunk


def _is_plain_key(key: tuple[Any, ...]) -> bool:
    """Return whether a tuple is so small and plain that its ``repr`` is a key."""
    return (
        len(key) <= limits.MAX_TUPLE_KEY_PARTS
        and KEYS.issuperset(map(type, key))
        and all(type(part) is not str or len(part) <= limits.MAX_TUPLE_KEY_CHARS for part in key)
    )


def _unique_key(key: str, seen: set[Any]) -> str:
    """Make a key unique and add it to ``seen``: 1 and "1" are two keys in Python."""
    unique, number = key, 2
    while unique in seen:
        unique, number = f"{key} ({number})", number + 1
    seen.add(unique)
    return unique
