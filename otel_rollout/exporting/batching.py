"""Cut entries into requests of bounded size, and group them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

Entry = TypeVar("Entry")
Encoded = TypeVar("Encoded")
Key = TypeVar("Key", bound=Hashable)


def chunks(entries: Iterable[Entry], size: int) -> Iterator[list[Entry]]:
    """Cut entries into lists of at most ``size``."""
    rest = iter(entries)
    while chunk := list(islice(rest, size)):
        yield chunk


def grouped(entries: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, list[Entry]]:
    """Group entries by key, in order."""
    groups: dict[Key, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def batches(
    entries: Iterable[Entry], size_of: Callable[[Entry], int], max_size: int, max_entries: int | None = None
) -> Iterator[list[Entry]]:
    """Group entries up to a limit; an entry larger than the limit is a batch alone.

    Args:
        entries: in order.
        size_of: returns the size of an entry in the request, mostly in bytes, with its separator.
        max_size: upper bound of the sum of a batch's sizes.
        max_entries: upper bound of a batch's entries; None for no bound.
    """
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        entry_size = size_of(entry)
        if batch and (size + entry_size > max_size or len(batch) == max_entries):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry_size
    if batch:
        yield batch


def halved(
    entries: Sequence[Entry],
    encode: Callable[[Sequence[Entry]], Encoded],
    bytes_of: Callable[[Encoded], int],
    max_bytes: int,
) -> Iterator[Encoded]:
    """Encode entries into one request, or halve them until each request fits.

    An entry larger than the limit is a request alone. This function is for encodings whose size is known only
    after encoding.
    """
    request = encode(entries)
    if len(entries) <= 1 or bytes_of(request) <= max_bytes:
        yield request
        return
    middle = len(entries) // 2
    yield from halved(entries[:middle], encode, bytes_of, max_bytes)
    yield from halved(entries[middle:], encode, bytes_of, max_bytes)
