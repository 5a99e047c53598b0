"""What the exporter remembers of what it sent, so that nothing is stored twice: bounded, in order of age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

CAPACITY: Final = 20_000
"""Entries kept. A driver that sends again what failed needs a batch's worth."""

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """A dictionary that forgets its oldest entries."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, Value] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Value | None:
        """The entry, or None."""
        return self._entries.get(key)

    def put(self, key: str, value: Value) -> None:
        """Remember; the oldest entry goes when there are too many."""
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def forget(self, keys: Iterable[str]) -> None:
        """Let go of entries, if they are there."""
        for key in keys:
            self._entries.pop(key, None)
