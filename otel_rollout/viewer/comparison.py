"""Two conversations side by side, and where they part: the first turn, and in it the first token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from otel_rollout.viewer.conversation import Conversation, Turn, common_length

_WORD: Final = re.compile(r"\S+")


@dataclass(frozen=True)
class Divergence:
    """Where two conversations part.

    Attributes:
        turn: index of the first turn in which they differ.
        characters: how many the texts of the two turns have in common at their beginning.
        token: index of the first token that differs, of those the model wrote in that turn; None where no ids
            were recorded, or none of them differs.
        ids: that token in the one and in the other; None where a reply has ended.
    """

    turn: int
    characters: int = 0
    token: int | None = None
    ids: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class Comparison:
    """Two conversations and where they part; ``divergence`` is None where they do not."""

    one: Conversation
    other: Conversation
    divergence: Divergence | None

    @property
    def shared(self) -> Sequence[Turn]:
        """The turns that both have."""
        return self.one.turns[: self.divergence.turn] if self.divergence else self.one.turns

    @property
    def rows(self) -> list[tuple[Turn | None, Turn | None]]:
        """What comes then, in pairs; None where one has ended."""
        begin = len(self.shared)
        return list(zip_longest(self.one.turns[begin:], self.other.turns[begin:]))

    def changed(self, turn: Turn) -> tuple[str, str, str] | None:
        """The text of a turn in which they part: what both have, the word that differs, and the rest."""
        if self.divergence is None or self.divergence.characters >= len(turn.text):
            return None
        begin = self.divergence.characters
        while begin > 0 and not turn.text[begin - 1].isspace():
            begin -= 1
        word = _WORD.search(turn.text, begin)
        end = word.end() if word else len(turn.text)
        return turn.text[:begin], turn.text[begin:end], turn.text[end:]


def compare(one: Conversation, other: Conversation) -> Comparison:
    """Put two conversations side by side."""
    for number, (mine, theirs) in enumerate(zip_longest(one.turns, other.turns)):
        if mine is None or theirs is None:
            return Comparison(one, other, Divergence(number))
        if not _same(mine, theirs):
            return Comparison(one, other, _divergence(number, mine, theirs))
    return Comparison(one, other, None)


def _same(one: Turn, other: Turn) -> bool:
    if one.ids and other.ids and one.ids != other.ids:
        return False
    return _said(one) == _said(other)


def _said(turn: Turn) -> tuple[object, ...]:
    calls = [(call.name, call.arguments) for call in turn.calls]  # their ids are different each time
    return turn.role, turn.name, turn.text, calls, turn.arguments, turn.problem


def _divergence(number: int, one: Turn, other: Turn) -> Divergence:
    characters = common_length(one.text, other.text)
    token = common_length(one.ids, other.ids)
    if not one.ids or not other.ids or one.ids == other.ids:
        return Divergence(number, characters)
    return Divergence(number, characters, token, (_at(one.ids, token), _at(other.ids, token)))


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
