"""Find what is new in a turn: a model call resends its context, and adds to it.

A turn is a sequence of token ids or of messages, here as bytes of a fixed width for each item. A turn may
continue any earlier turn of its trajectory: most turns append to the last one, a branch goes back to an
earlier one, and where a context was edited or cut, the shared prefix ends there. A turn is exported as the
turn that it continues, the length of the shared prefix, and the rest; :func:`restored` gives back the whole.

Whether a turn is found depends on when turns began and ended, not on the order in which they were added.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import orjson

TOKEN_BYTES: Final = 4
MESSAGE_BYTES: Final = 16
MAX_BRANCHES: Final = 16
"""Sequences of one trajectory that are remembered; of more sequences, those that were continued last."""
_MARK_BYTES: Final = 256
"""Bytes of memory that a turn takes, apart from its sequence."""

Item = TypeVar("Item")


class Shared(NamedTuple):
    """The prefix that a turn shares with an earlier turn."""

    turn: str
    """Id of the earlier turn."""
    length: int
    """Tokens or messages of the earlier turn, and of its answer, that are shared."""


class Mark(NamedTuple):
    """Where the sequence of a turn ends on a branch."""

    length: int
    end: int
    """When the turn ended, in ns."""
    turn: str
    can_be_continued: bool


class Branch:
    """A sequence, and the turns that it consists of.

    Attributes:
        data: the sequence.
        marks: where turns end.
        pieces: the text of the sequence, if it was decoded (:mod:`otel_rollout.forwarder.turn_text`).
    """

    def __init__(
        self, data: bytes | bytearray = b"", marks: Sequence[Mark] = (), pieces: Sequence[Any] = ()
    ) -> None:
        self.data = bytearray(data)
        self.marks = list(marks)
        self.pieces = list(pieces)


class Turns:
    """The turns of one trajectory.

    Args:
        width: bytes of a token or message.
        min_shared: items of a prefix that is worth sharing.
    """

    def __init__(self, width: int, min_shared: int = 1) -> None:
        self._width = width
        self._min_shared = min_shared
        self.branches: list[Branch] = []

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return sum(len(branch.data) + _MARK_BYTES * len(branch.marks) for branch in self.branches)

    def shared(self, turn: str, items: bytes, start: int) -> Shared | None:
        """Return the longest prefix shared with a turn that ended before ``start``."""
        best: tuple[int, int, int, str] | None = None
        for branch in self.branches:
            common = _common_prefix(items, branch.data, self._width)
            for mark in branch.marks:
                # Truly before: else two turns could each be exported as what continues the other.
                if mark.can_be_continued and mark.end < start and mark.turn != turn:
                    # The longest prefix; then the turn with the least besides, and of these the last.
                    rank = (min(common, mark.length), -mark.length, mark.end, mark.turn)
                    best = rank if best is None else max(best, rank)
        if best is None or best[0] < self._min_shared:
            return None
        return Shared(best[3], best[0])

    def add(self, turn: str, items: bytes, end: int, can_be_continued: bool = True) -> Branch:
        """Remember a turn with its answer; return the branch that begins with both."""
        length = len(items) // self._width
        branch, common = self._longest(items)
        if common < length:
            if common * self._width < len(branch.data):
                branch = self._cut(branch, common)
            branch.data += items[common * self._width :]
        if all(mark.turn != turn for mark in branch.marks):
            branch.marks.append(Mark(length, end, turn, can_be_continued))
        self.branches = [*(other for other in self.branches if other is not branch), branch][-MAX_BRANCHES:]
        return branch

    def knows(self, turn: str, items: bytes, end: int) -> bool:
        """Return whether another turn, ended by ``end``, had all of ``items``."""
        length = len(items) // self._width
        return any(
            mark.turn != turn and mark.end <= end and mark.length >= length
            for branch in self.branches
            if _common_prefix(items, branch.data, self._width) == length
            for mark in branch.marks
        )

    def _longest(self, items: bytes) -> tuple[Branch, int]:
        found, longest = Branch(), 0
        for branch in self.branches:
            common = _common_prefix(items, branch.data, self._width)
            if common > longest:
                found, longest = branch, common
        return found, longest

    def _cut(self, branch: Branch, length: int) -> Branch:
        return Branch(
            branch.data[: length * self._width],
            [mark for mark in branch.marks if mark.length <= length],
            [piece for piece in branch.pieces if piece.end <= length],
        )


def tokens(ids: Sequence[int]) -> bytes | None:
    """Return token ids as :class:`Turns` takes them; None for anything else."""
    if type(ids) is not list or not set(map(type, ids)) <= {int}:
        return None
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        return None


def messages(conversation: Sequence[Any]) -> bytes:
    """Return messages as :class:`Turns` takes them: a digest of each."""
    digests = (hashlib.blake2b(orjson.dumps(message), digest_size=MESSAGE_BYTES) for message in conversation)
    return b"".join(digest.digest() for digest in digests)


def restored(continued: Sequence[Item], shared: int, new: Sequence[Item]) -> list[Item]:
    """Return the whole of a turn from the turn it continues, and what is new."""
    return [*continued[:shared], *new]


def _common_prefix(one: bytes, other: bytearray, width: int) -> int:
    """Return how many items two sequences have in common at their beginning."""
    high = min(len(one), len(other)) // width
    if one[: high * width] == other[: high * width]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * width : middle * width] == other[low * width : middle * width]:
            low = middle
        else:
            high = middle
    return low
