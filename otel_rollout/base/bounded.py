"""Bound the size of a dictionary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(MutableMapping[Key, Value]):
    """A dictionary of bounded size, which drops its oldest entries first.

    Args:
        limit: maximum number of entries; with ``size_of``, maximum sum of their sizes.
        size_of: measures a value when it is set; by default each entry counts as 1.
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int] | None = None) -> None:
        self._limit = limit
        self._size_of = size_of
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._total = 0

    def __getitem__(self, key: Key) -> Value:
        return self._entries[key][0]

    def __setitem__(self, key: Key, value: Value) -> None:
        size = 1 if self._size_of is None else self._size_of(value)
        replaced = self._entries.pop(key, None)
        self._entries[key] = value, size
        self._total += size if replaced is None else size - replaced[1]
        while self._total > self._limit:
            self._total -= self._entries.popitem(last=False)[1][1]

    def __delitem__(self, key: Key) -> None:
        self._total -= self._entries.pop(key)[1]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries
