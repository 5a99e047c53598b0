"""Cut entries into requests of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

Entry = TypeVar("Entry")
Encoded = TypeVar("Encoded")


def chunks(entries: Iterable[Entry], size: int) -> Iterator[list[Entry]]:
    """Cut entries into lists of at most ``size``."""
    rest = iter(entries)
    while chunk := list(islice(rest, size)):
        yield chunk


def batches(
    entries: Iterable[Entry], size_of: Callable[[Entry], int], max_size: int, max_entries: int | None = None
) -> Iterator[list[Entry]]:
    """Put entries together up to a limit; an entry larger than the limit goes alone.

    Args:
        entries: in order.
        size_of: size of an entry in the request, mostly in bytes, its separator included.
        max_size: upper bound of the entries' sizes together.
        max_entries: upper bound of their number; None: no bound.
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

    A larger entry goes alone.

    For encodings whose size is only known afterwards.
    """
    request = encode(entries)
    if len(entries) <= 1 or bytes_of(request) <= max_bytes:
        yield request
        return
    middle = len(entries) // 2
    yield from halved(entries[:middle], encode, bytes_of, max_bytes)
    yield from halved(entries[middle:], encode, bytes_of, max_bytes)
