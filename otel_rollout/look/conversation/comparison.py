"""Find the first turn, and its first token, in which conversations differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from otel_rollout.look.conversation.conversation import Conversation, common_length
from otel_rollout.look.conversation.turn import Turn

_WORD: Final = re.compile(r"\S+")


@dataclass(frozen=True)
class Divergence:
    """The point where conversations begin to differ.

    Attributes:
        turn: index of the first turn that differs.
        characters: length of the prefix that the texts of the turns share.
        token: index of the first generated token that differs in that turn; None if no token ids were
            recorded, or if all token ids are equal.
        token_ids: the token's id in each conversation; None for a reply that ends before the token.
        word: index of the first word that differs in the texts of the turns.
        in_arguments: whether the arguments differ, which are shown before the texts.
    """

    turn: int
    characters: int = 0
    token: int | None = None
    token_ids: tuple[int | None, ...] = ()
    word: int = 0
    in_arguments: bool = False


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
        """Split a turn's text into the shared words, the word that differs and the rest; None at its end."""
        found = self.divergence
        if found is None or found.in_arguments or found.word >= len(turn.text):
            return None
        return at_word(turn.text, found.word)


def compare(left: Conversation, right: Conversation) -> Comparison:
    """Compare two conversations turn by turn."""
    for index, pair in enumerate(zip_longest(left.turns, right.turns)):
        if len(classes_of(pair)) > 1:
            return Comparison(left, right, divergence_of(index, pair))
    return Comparison(left, right, None)


def classes_of(turns: Sequence[Turn | None]) -> list[list[int]]:
    """Sort turns into classes of equal turns; return the indices of each class, the lowest index first.

    A turn without token ids joins the first class with equal content, whatever token ids that class has.

    Args:
        turns: the turns of several conversations at one index; None for a conversation that has ended.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(turns)), key=lambda index: not _has_ids(turns[index])):
        joined = next((one for one in found if _are_equal(turns[one[0]], turns[index])), None)
        if joined is None:
            found.append([index])
        else:
            joined.append(index)
    return sorted(sorted(each) for each in found)


def divergence_of(index: int, turns: Sequence[Turn | None]) -> Divergence:
    """Return the point where turns at one index, which are not all equal, begin to differ.

    Args:
        index: the turns' index in their conversations.
        turns: a turn of each class; None for conversations that have ended.
    """
    present = [turn for turn in turns if turn is not None]
    if len(present) < 2:
        return Divergence(index)
    characters, word = parting_of([turn.text for turn in present])
    ids = [turn.token_ids for turn in present]
    if not all(ids) or all(each == ids[0] for each in ids):
        if any(turn.arguments != present[0].arguments for turn in present):
            return Divergence(index, characters, in_arguments=True)
        return Divergence(index, characters, word=word)
    token = min(common_length(ids[0], each) for each in ids[1:])
    return Divergence(index, characters, token, tuple(_at(each, token) for each in ids), word)


def parting_of(texts: Sequence[str]) -> tuple[int, int]:
    """Return the length of the prefix that texts share, and the index of the first word that differs.

    The word begins in the prefix if a text goes on inside it. If it ends in each text, the next one differs.
    """
    start = characters = min(common_length(texts[0], other) for other in texts[1:])
    if any(text[characters : characters + 1].strip() for text in texts):
        while start > 0 and not texts[0][start - 1].isspace():
            start -= 1
    return characters, start


def at_word(text: str, start: int) -> tuple[str, str, str]:
    """Split a text into the part before an index, the word that begins there or follows, and the rest."""
    word = _WORD.search(text, start)
    start, end = word.span() if word else (start, len(text))
    return text[:start], text[start:end], text[end:]


def _are_equal(one: Turn | None, other: Turn | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.token_ids and other.token_ids and one.token_ids != other.token_ids:
        return False
    return _content(one) == _content(other)


def _has_ids(turn: Turn | None) -> bool:
    return turn is not None and bool(turn.token_ids)


def _content(turn: Turn) -> tuple[object, ...]:
    calls = [(call.name, call.arguments) for call in turn.calls]  # ids of calls differ in every run
    return turn.role, turn.name, turn.text, calls, turn.arguments, turn.error


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
