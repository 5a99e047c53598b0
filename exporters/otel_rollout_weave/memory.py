"""A bounded dictionary of what was sent, so that nothing is stored twice."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

CAPACITY: Final = 20_000
"""Entries kept. To send a failed batch again, the entries of one batch are enough."""

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """A dictionary that drops its oldest entries."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, Value] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> Value | None:
        """Return an entry, or None."""
        return self._entries.get(key)

    def put(self, key: str, value: Value) -> None:
        """Set an entry; the oldest entry goes when there are too many."""
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
