"""Iterate over large containers in chunks, and name the entries of mappings.

The iterators here are no generators: Python drops an exception that a signal handler raises while a generator
is closed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from otel_rollout.base.interrupts import pass_on
from otel_rollout.capture.encoding.converters import type_name
from otel_rollout.capture.encoding.limits import CHUNK_MEMBERS, MAX_TUPLE_KEY_CHARS, MAX_TUPLE_KEY_PARTS
from otel_rollout.capture.encoding.size import KEYS


def slices(members: Any, type_: type[Any], size: int = CHUNK_MEMBERS) -> Iterator[Any]:
    """Slice a list or tuple by the methods of ``type_``, not by overriding ones."""
    ranges = [slice(start, start + size) for start in range(0, type_.__len__(members), size)]
    return map(functools.partial(type_.__getitem__, members), ranges)


class Chunks:
    """Iterate over a container's members in lists, and note if the iteration raises.

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
            chunk.extend(islice(self._members, CHUNK_MEMBERS))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's iterator, or a changed container
            pass_on(error)
            chunk.append(self._note(f"(the rest raises {type_name(type(error))})"))
            self._members = iter(())
        if not chunk:
            raise StopIteration
        return chunk


def is_plain_key(key: tuple[Any, ...]) -> bool:
    """Return whether a tuple is so small and plain that its ``repr`` is a key."""
    return (
        len(key) <= MAX_TUPLE_KEY_PARTS
        and KEYS.issuperset(map(type, key))
        and all(type(part) is not str or len(part) <= MAX_TUPLE_KEY_CHARS for part in key)
    )


def unique_key(key: str, seen: set[Any]) -> str:
    """Make a key unique and add it to ``seen``: 1 and "1" are two keys in Python."""
    unique, number = key, 2
    while unique in seen:
        unique, number = f"{key} ({number})", number + 1
    seen.add(unique)
    return unique
