"""What is new in a turn: a model call resends what was said before it, and adds to it.

A turn is a sequence of token ids or of messages, here as bytes of a fixed width for each. Whatever came
before in the trajectory may be continued: most turns append to the last one, a branch goes back to an earlier
one, and where a context was edited or cut, what is continued ends there. A turn is told as the one it
continues, how much of that it shares, and the rest: :func:`restored` gives back the whole.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import orjson

TOKEN_BYTES: Final = 4
MESSAGE_BYTES: Final = 16
NEVER: Final = 1 << 63
"""When a turn ended that none continues."""
MAX_BRANCHES: Final = 16
"""Sequences of one trajectory that are remembered; of further ones those that were continued last."""
_MARK_BYTES: Final = 256
"""What it takes to remember a turn, apart from its sequence."""

Item = TypeVar("Item")


class Shared(NamedTuple):
    """The beginning that a turn shares with an earlier one."""

    turn: str
    """The earlier turn."""
    length: int
    """How many tokens or messages of it, and of what it was answered."""


class Mark(NamedTuple):
    """Where the sequence of a turn ends on a branch."""

    length: int
    ended: int
    turn: str


class Branch:
    """A sequence, and the turns it was put together from."""

    def __init__(
        self, data: bytes | bytearray = b"", marks: Sequence[Mark] = (), pieces: Sequence[Any] = ()
    ) -> None:
        self.data = bytearray(data)
        self.marks = list(marks)
        self.pieces = list(pieces)
        """What a reader made of its beginning, piece by piece: see :mod:`.reading`."""


class Turns:
    """The turns of one trajectory.

    Args:
        width: bytes of a token or message.
        least: how many of them make a beginning worth telling.
    """

    def __init__(self, width: int, least: int = 1) -> None:
        self._width = width
        self._least = least
        self.branches: list[Branch] = []

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return sum(len(branch.data) + _MARK_BYTES * len(branch.marks) for branch in self.branches)

    def shared(self, turn: str, items: bytes, began: int) -> Shared | None:
        """The longest beginning that ``items`` shares with a turn that had ended when this one ``began``."""
        best: tuple[int, int, int] | None = None
        found: Mark | None = None
        for branch in self.branches:
            common = _common(items, branch.data, self._width)
            for mark in branch.marks:
                if mark.ended < began and mark.turn != turn:  # truly before: no two turns tell each other
                    # The longest, of the turn that has the least besides, and of these the last.
                    rank = (min(common, mark.length), -mark.length, mark.ended)
                    if best is None or rank > best:
                        best, found = rank, mark
        if best is None or found is None or best[0] < self._least:
            return None
        return Shared(found.turn, best[0])

    def add(self, turn: str, items: bytes, ended: int) -> Branch:
        """Remember a turn, with what it was answered; the branch that begins with it."""
        length = len(items) // self._width
        branch, common = self._longest(items)
        if common < length:
            if common * self._width < len(branch.data):
                branch = self._cut(branch, common)
            branch.data += items[common * self._width :]
        if all(mark.turn != turn for mark in branch.marks):
            branch.marks.append(Mark(length, ended, turn))
        self.branches = [*(other for other in self.branches if other is not branch), branch][-MAX_BRANCHES:]
        return branch

    def knows(self, items: bytes) -> bool:
        """Whether a turn, or several together, had all of this."""
        return self._longest(items)[1] * self._width == len(items)

    def _longest(self, items: bytes) -> tuple[Branch, int]:
        found, longest = Branch(), 0
        for branch in self.branches:
            common = _common(items, branch.data, self._width)
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
    """Token ids as :class:`Turns` takes them; None for anything else."""
    if type(ids) is not list or not set(map(type, ids)) <= {int}:
        return None
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        return None


def messages(told: Sequence[Any]) -> bytes:
    """Messages as :class:`Turns` takes them."""
    return b"".join(hashlib.blake2b(orjson.dumps(said), digest_size=MESSAGE_BYTES).digest() for said in told)


def restored(continued: Sequence[Item], shared: int, new: Sequence[Item]) -> list[Item]:
    """The whole of a turn that shares ``shared`` tokens or messages with the one it ``continued``."""
    return [*continued[:shared], *new]


def _common(one: bytes, other: bytearray, width: int) -> int:
    """How many items two sequences have in common at their beginning."""
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
