"""Find the new part of a turn.

A model call resends its context and adds to it. A turn is a sequence of token ids or of messages, encoded as
bytes with a fixed width per item. A turn may continue any earlier turn of its trajectory. Most turns append
to the last one. A branch returns to an earlier one. Where a context was edited or cut, the shared prefix
ends. A turn is exported as three parts: the id of the turn that it continues, the length of the shared
prefix, and the new items. :func:`restored` joins them.

Whether a turn is found depends on when turns began and ended, not on the order in which they were added.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from otel_rollout.otlp.messages import Shared
from otel_rollout.turns.detokenizer import Detokenizer

TOKEN_BYTES: Final = 4
MESSAGE_BYTES: Final = 8
MAX_BRANCHES: Final = 16
"""Maximum sequences remembered per trajectory; the least recently continued one is forgotten first."""
_MARK_BYTES: Final = 256
"""Bytes of memory counted per turn, in addition to its sequence."""

Item = TypeVar("Item")


class Mark(NamedTuple):
    """The position at which a turn ends on a branch."""

    length: int
    end: int
    """When the turn ended, in ns."""
    turn: str
    can_be_continued: bool
    asked: int
    """Length of the turn without its answer."""


class Piece(NamedTuple):
    """The text of a branch's tokens from the end of the previous piece to index ``end``.

    Where possible, ``end`` lies between two characters.
    """

    end: int
    text: str


@dataclass(eq=False)
class ContextBranch:
    """A sequence of items, and the turns that end in it.

    Attributes:
        data: the encoded sequence.
        marks: the positions at which turns end.
        pieces: decoded text of the sequence, if any.
    """

    data: bytearray = field(default_factory=bytearray)
    marks: list[Mark] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


class Turns:
    """The turns of one trajectory.

    Args:
        width: bytes per token or message.
        min_shared: minimum length of a shared prefix, in items.
    """

    def __init__(self, width: int, min_shared: int = 1) -> None:
        self._width = width
        self._min_shared = min_shared
        self.branches: list[ContextBranch] = []

    @property
    def size(self) -> int:
        """Approximate memory, in bytes."""
        total = 0
        for branch in self.branches:
            total += len(branch.data) + _MARK_BYTES * len(branch.marks)
            for piece in branch.pieces:
                total += len(piece.text)
        return total

    def shared(self, turn: str, items: bytes, start: int) -> Shared | None:
        """Return the longest prefix that ``items`` shares with another turn that ended before ``start``.

        ``start`` is in ns. Return None if the longest prefix is shorter than ``min_shared``.
        """
        best: tuple[int, int, int, str] | None = None
        for branch in self.branches:
            common = common_prefix(items, branch.data, self._width)
            for mark in reversed(branch.marks):  # the longest prefix is mostly that of the last turn
                if best is not None and mark.length < best[0]:
                    continue
                # Strictly before: else each of two turns could be exported as continuing the other.
                if mark.can_be_continued and mark.end < start and mark.turn != turn:
                    # Prefer the longest prefix, then the shortest turn, then the one that ended last.
                    rank = (min(common, mark.length), -mark.length, mark.end, mark.turn)
                    best = rank if best is None else max(best, rank)
        if best is None or best[0] < self._min_shared:
            return None
        return Shared(best[3], best[0])

    def add(
        self, turn: str, items: bytes, end: int, can_be_continued: bool = True, asked: int | None = None
    ) -> ContextBranch:
        """Add a turn with its answer; return the branch that begins with ``items``.

        Args:
            turn: the turn's id.
            items: the turn and its answer, encoded.
            end: when the turn ended, in ns.
            can_be_continued: whether later turns may refer to this one.
            asked: length of the turn without its answer; all of ``items`` by default.
        """
        length = len(items) // self._width
        branch, common = self._longest(items)
        if common < length:
            if common * self._width < len(branch.data):
                branch = self._cut(branch, common)
            branch.data += items[common * self._width :]
        if turn not in [mark.turn for mark in branch.marks]:
            branch.marks.append(Mark(length, end, turn, can_be_continued, length if asked is None else asked))
        others = [other for other in self.branches if other is not branch]
        self.branches = [*others, branch][-MAX_BRANCHES:]
        return branch

    def knows(self, turn: str, items: bytes, end: int) -> bool:
        """Return whether another turn that ended at or before ``end``, in ns, begins with ``items``."""
        length = len(items) // self._width
        return any(
            mark.turn != turn and mark.end <= end and mark.length >= length
            for branch in self.branches
            if common_prefix(items, branch.data, self._width) == length
            for mark in branch.marks
        )

    def _longest(self, items: bytes) -> tuple[ContextBranch, int]:
        found, longest = ContextBranch(), 0
        for branch in self.branches:
            common = common_prefix(items, branch.data, self._width)
            if common > longest:
                found, longest = branch, common
        return found, longest

    def _cut(self, branch: ContextBranch, length: int) -> ContextBranch:
        return ContextBranch(
            branch.data[: length * self._width],
            [mark for mark in branch.marks if mark.length <= length],
            [piece for piece in branch.pieces if piece.end <= length],
        )


def tokens(ids: Sequence[int]) -> bytes | None:
    """Encode token ids for :class:`Turns`; return None for any other value."""
    if type(ids) is not list or not set(map(type, ids)) <= {int}:
        return None
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        return None


def messages(conversation: Sequence[Any]) -> bytes:
    """Encode messages for :class:`Turns` as one hash per message, which only this process can compare."""
    return array("q", map(hash, map(orjson.dumps, conversation))).tobytes()


def restored(continued: Sequence[Item], shared: int, new: Sequence[Item]) -> list[Item]:
    """Return a whole turn: the first ``shared`` items of the turn that it continues, then its new items."""
    return [*continued[:shared], *new]


def common_prefix(one: bytes, other: bytearray, width: int) -> int:
    """Return the number of leading items that two sequences share."""
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


# --- the token ids of a model call --------------------------------------------------------------------------


class TokenTurn:
    """The prompt and the answer of a model call, or of a whole conversation.

    The recorder may have cut either.

    Attributes:
        prompt: token ids of the prompt.
        answer: token ids of the answer.
        ids: the ids of the prompt, then the ids of the answer.
        rest_of_prompt: the recorder's note in place of prompt ids that it cut off; empty if it cut none.
        rest_of_answer: the recorder's note in place of answer ids that it cut off; empty if it cut none.
        encoded_prompt: the prompt as bytes; None if it was cut, or is no list of token ids.
        encoded: prompt and answer as bytes; None if either was cut, or is no list of token ids.
        has_answer: whether the answer is a list of token ids, which may be cut or empty.
        branch: the trace's branch that begins with ``ids``; None until the call is added to one.
    """

    def __init__(self, prompt: Any, answer: list[Any]) -> None:
        self.prompt, self.rest_of_prompt, self.encoded_prompt = _ids(prompt)
        self.answer, self.rest_of_answer, encoded_answer = _ids(answer)
        self.has_answer = bool(self.answer or self.rest_of_answer) or encoded_answer is not None
        self.ids = [*self.prompt, *self.answer]
        is_whole = self.encoded_prompt is not None and encoded_answer is not None
        self.encoded = self.encoded_prompt + encoded_answer if is_whole else None  # type: ignore[operator]
        self.branch: ContextBranch | None = None

    def decode(self, shown_from: int, detokenizer: Detokenizer) -> None:
        """Decode the ids of the branch that have no text yet.

        Pieces of text end at three positions: ``shown_from``, the prompt's end, and the last id. Each end
        moves back to the border between two characters.
        """
        if self.branch is None:
            return
        pieces = self.branch.pieces
        covered = pieces[-1].end if pieces else 0
        ends = (shown_from, len(self.prompt), len(self.ids))
        for end in sorted({detokenizer.border(self.ids, end) for end in ends}):
            if end > covered:
                pieces.append(Piece(end, detokenizer.part(self.ids, covered, end)))
                covered = end

    def prompt_text(self, start: int, detokenizer: Detokenizer) -> str:
        """Return the text of the prompt from token ``start`` on."""
        return self._text(start, len(self.prompt), detokenizer) + self.rest_of_prompt

    def answer_text(self, detokenizer: Detokenizer) -> str:
        """Return the text of the answer."""
        return self._text(len(self.prompt), len(self.ids), detokenizer) + self.rest_of_answer

    def segments(self, mask: Any, detokenizer: Detokenizer) -> list[dict[str, Any]]:
        """Split the answer by its mask into texts of the model and the environment."""
        if not isinstance(mask, list) or len(mask) != len(self.answer) or not mask:
            return []
        changes = (i for i in range(1, len(mask)) if bool(mask[i]) != bool(mask[i - 1]))
        first = len(self.prompt)
        return [
            {
                "role": "model" if mask[start] else "environment",
                "tokens": end - start,
                "text": self._text(first + start, first + end, detokenizer),
            }
            for start, end in itertools.pairwise([0, *changes, len(mask)])
        ]

    def _text(self, start: int, end: int, detokenizer: Detokenizer) -> str:
        """Return the text of ``ids[start:end]``, all in the prompt or all in the answer."""
        if self.branch is not None:
            ends = [0, *(piece.end for piece in self.branch.pieces)]
            if start in ends and end in ends:
                return "".join(
                    piece.text for piece in self.branch.pieces[ends.index(start) : ends.index(end)]
                )
            return detokenizer.part(self.ids, start, end)
        if self.encoded_prompt is not None:
            return detokenizer.part(self.ids, start, end)
        first = len(self.prompt)  # ids between prompt and answer may be missing
        if end <= first:
            return detokenizer.part(self.prompt, start, end)
        return detokenizer.part(self.answer, start - first, end - first)


def prompt_of(holders: Sequence[dict[str, Any]]) -> Any:
    """Return the prompt that all objects share; None if their prompts differ, [] without objects."""
    prompts = [holder["prompt_ids"] for holder in holders]
    if len({tokens(prompt) for prompt in prompts}) > 1:
        return None
    return prompts[0] if prompts else []


def _ids(value: Any) -> tuple[list[int], str, bytes | None]:
    """Return token ids, the note in place of cut-off ids, and the ids as bytes.

    The bytes are None if the recorder cut ids off. A value that is no list of token ids (for example a nested
    list, or one with placeholders of images) has no ids, no note and no bytes.
    """
    if not isinstance(value, list):
        return [], "", None
    note = value[-1] if value and isinstance(value[-1], str) and value[-1].startswith("… (") else ""
    ids = value[:-1] if note else value
    encoded = tokens(ids)
    if encoded is None:
        return [], "", None
    return ids, note, None if note else encoded
