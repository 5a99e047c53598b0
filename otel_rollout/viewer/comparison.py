"""Find the first turn, and its first token, in which two conversations differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from otel_rollout.viewer.conversation import Conversation, common_length
from otel_rollout.viewer.turn import Turn

_WORD: Final = re.compile(r"\S+")


@dataclass(frozen=True)
class Divergence:
    """The point where two conversations begin to differ.

    Attributes:
        turn: index of the first turn that differs.
        characters: length of the prefix that the texts of the two turns share.
        token: index of the first generated token that differs in that turn; None if no ids were recorded, or
            if all are equal.
        token_ids: the token's id in each conversation; None for a reply that ends before the token.
    """

    turn: int
    characters: int = 0
    token: int | None = None
    token_ids: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class Comparison:
    """Two conversations; ``divergence`` is None if the conversations are equal."""

    left: Conversation
    right: Conversation
    divergence: Divergence | None

    @property
    def shared(self) -> Sequence[Turn]:
        """The turns before the divergence."""
        return self.left.turns[: self.divergence.turn] if self.divergence else self.left.turns

    @property
    def rows(self) -> list[tuple[Turn | None, Turn | None]]:
        """Pairs of turns from the divergence on; None where one conversation has ended."""
        start = len(self.shared)
        return list(zip_longest(self.left.turns[start:], self.right.turns[start:]))

    def changed(self, turn: Turn) -> tuple[str, str, str] | None:
        """Split a turn's text into the shared words, the word that differs and the rest."""
        if self.divergence is None or self.divergence.characters >= len(turn.text):
            return None
        start = self.divergence.characters
        while start > 0 and not turn.text[start - 1].isspace():
            start -= 1
        word = _WORD.search(turn.text, start)
        end = word.end() if word else len(turn.text)
        return turn.text[:start], turn.text[start:end], turn.text[end:]


def compare(left: Conversation, right: Conversation) -> Comparison:
    """Compare two conversations turn by turn."""
    for index, (one, other) in enumerate(zip_longest(left.turns, right.turns)):
        if one is None or other is None:
            return Comparison(left, right, Divergence(index))
        if not _are_equal(one, other):
            return Comparison(left, right, _divergence(index, one, other))
    return Comparison(left, right, None)


def _are_equal(one: Turn, other: Turn) -> bool:
    if one.token_ids and other.token_ids and one.token_ids != other.token_ids:
        return False
    return _content(one) == _content(other)


def _content(turn: Turn) -> tuple[object, ...]:
    calls = [(call.name, call.arguments) for call in turn.calls]  # ids of calls differ in every run
    return turn.role, turn.name, turn.text, calls, turn.arguments, turn.error


def _divergence(index: int, one: Turn, other: Turn) -> Divergence:
    characters = common_length(one.text, other.text)
    token = common_length(one.token_ids, other.token_ids)
    if not one.token_ids or not other.token_ids or one.token_ids == other.token_ids:
        return Divergence(index, characters)
    return Divergence(index, characters, token, (_at(one.token_ids, token), _at(other.token_ids, token)))


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
