"""Find a turn whose tokens are not the beginning of the next prompt, and describe the break as attributes.

A trainer that joins the turns of a trajectory expects each prompt to begin with the prompt and the answer
before it. If a program renders its messages again for each turn, an answer may get other tokens
(retokenization), a part of the context may be left out, or the system prompt may change. The sampled tokens
are then not the tokens that later turns have seen.

A prompt may also belong to another conversation, such as that of a subagent, or go back to an earlier turn.
So a prompt counts as following a turn only if it repeats the turn's whole prompt, or holds the turn's answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from otel_rollout.base import semconv
from otel_rollout.turns.context_diff import TOKEN_BYTES, Mark, Turns, common_prefix
from otel_rollout.turns.detokenizer import Detokenizer

Kind: TypeAlias = Literal["retokenized", "cut", "beginning", "edited"]
"""Probable cause of a break.

- ``retokenized``: an answer has other tokens for the same text.
- ``cut``: a part of the context was left out.
- ``beginning``: the prompt before the first known answer, such as the system prompt, has other tokens.
- ``edited``: anything else.
"""
Decode: TypeAlias = Callable[[bytes, int, int], str]
"""Function that takes encoded tokens, a first and an end index, and returns the text of these tokens."""

TOLERANCE: Final = 2
"""Last tokens of an answer that may differ: templates drop or add the token that ends a turn."""
_LEAD: Final = 3
"""Tokens before an answer that are searched for together with the answer.

These tokens open a model's message. An answer that is only quoted has other tokens before it.
"""
_RUN: Final = 32
"""Maximum tokens of an answer that are searched for."""
_MIN_ANSWER: Final = 4
"""Minimum tokens of an answer that is searched for: a shorter one could be anywhere."""
_MAX_CANDIDATES: Final = 32
"""Maximum turns that are examined for one prompt: the turns that ended last."""
_RUNS: Final = (32, 16, 8, 4, 2, 1)
"""Lengths, in tokens, of the end of a context that is searched for in the prompt."""
_LONG_RUN: Final = 8
"""Minimum length of such an end, in tokens, to search the whole prompt for it.

A shorter end is searched for near the break only.
"""
_MAX_RETOKENIZED: Final = 64
"""Maximum tokens of a retokenization that is told without text, or whose extent is found by text."""
_MAX_COMPARED: Final = 256
"""Maximum tokens of a difference whose text is compared."""


class PrefixBreak(NamedTuple):
    """The first difference between a turn's context and the prompt that follows.

    Attributes:
        turn: id of the earlier turn.
        token: index, in the earlier turn's prompt and answer, of the first token that the prompt does not
            repeat.
        removed: number of tokens of the earlier turn from ``token`` to the last difference.
        added: number of tokens that the prompt has instead; None if the prompt repeats nothing after the
            difference.
        kind: probable cause of the break.
    """

    turn: str
    token: int
    removed: int
    added: int | None
    kind: Kind


class _Earlier(NamedTuple):
    """A turn that had ended when the prompt was sent.

    Attributes:
        mark: the turn.
        data: the sequence of its branch.
        shared: number of its leading tokens that the prompt repeats.
        answers: first and end index of each answer in the branch, up to this turn's.
    """

    mark: Mark
    data: bytearray
    shared: int
    answers: Sequence[tuple[int, int]]

    @property
    def is_whole(self) -> bool:
        """Whether the prompt repeats the turn, except at most the last ``TOLERANCE`` tokens of its answer."""
        return self.shared >= max(self.mark.asked, self.mark.length - TOLERANCE)

    def part(self, start: int, end: int) -> bytes:
        return bytes(self.data[start * TOKEN_BYTES : end * TOKEN_BYTES])


def find(
    turns: Turns, turn: str, prompt: bytes, start: int, decode: Decode | None = None
) -> tuple[PrefixBreak, bytes] | None:
    """Find the break between a prompt and the turn that the prompt follows.

    Args:
        turns: the earlier turns of the trajectory, of token ids.
        turn: id of the prompt's own turn.
        prompt: the encoded prompt.
        start: when the prompt was sent, in ns.
        decode: decodes tokens; without it, only numbers of tokens tell a retokenization from an edit.

    Returns:
        The break, and the encoded tokens of the turn that the prompt follows; None without a break.
    """
    known = _known(turns, turn, prompt, start)
    base = max(
        (each for each in known if each.is_whole),
        key=lambda each: (each.shared, -each.mark.length, each.mark.end),
        default=None,
    )
    if base is not None and decode is not None and _has_other_end(base, prompt, decode):
        return _break(base, prompt, decode)
    later = _later(known, base, len(prompt) // TOKEN_BYTES)
    broken = [each for each in later if _is_followed(each, base, known, prompt)]
    if not broken:
        return None
    return _break(max(broken, key=lambda each: (each.shared, each.mark.end)), prompt, decode)


def _known(turns: Turns, turn: str, prompt: bytes, start: int) -> list[_Earlier]:
    found: dict[str, _Earlier] = {}
    for branch in turns.branches:
        common = common_prefix(prompt, branch.data, TOKEN_BYTES)
        answers: list[tuple[int, int]] = []
        for mark in sorted(branch.marks):
            answers.append((mark.asked, mark.length))
            if mark.can_be_continued and mark.end < start and mark.turn != turn:
                shared = min(common, mark.length)
                found.setdefault(mark.turn, _Earlier(mark, branch.data, shared, tuple(answers)))
    return list(found.values())


def _later(known: list[_Earlier], base: _Earlier | None, length: int) -> list[_Earlier]:
    """Return the turns that a prompt of ``length`` tokens may follow although it does not repeat them."""
    # A difference inside a prompt that an earlier call has also sent is a break of that earlier call.
    sent = max((each.mark.asked for each in known if each.shared >= each.mark.asked), default=0)
    later = [
        each
        for each in known
        if not each.is_whole
        and sent <= each.shared < length  # if all are shared, the prompt only repeats the context
        and (base is None or (each.mark.end > base.mark.end and each.shared >= base.shared))
    ]
    return sorted(later, key=lambda each: each.mark.end)[-_MAX_CANDIDATES:]


def _is_followed(each: _Earlier, base: _Earlier | None, known: list[_Earlier], prompt: bytes) -> bool:
    """Return whether a prompt follows the turn ``each``, although the prompt does not repeat all of it."""
    mark = each.mark
    if each.shared >= mark.asked and (base is None or each.shared > base.shared):
        # If one prompt got several answers, the next prompt may follow an answer that is not known.
        is_mostly_repeated = 2 * (each.shared - mark.asked) >= mark.length - mark.asked
        if is_mostly_repeated or _answers_to_its_prompt(each, known) == 1:
            return True
    end = mark.length - TOLERANCE
    if end - mark.asked < _MIN_ANSWER:
        return False
    first = max(0, mark.asked - _LEAD)
    if _index(prompt, each.part(first, min(end, first + _LEAD + _RUN)), each.shared) is not None:
        return True
    is_of_one_conversation = each.shared >= min(asked for asked, _ in each.answers)
    tail = each.part(max(mark.asked, end - _RUN), end)
    return is_of_one_conversation and _index(prompt, tail, each.shared) is not None


def _answers_to_its_prompt(each: _Earlier, known: list[_Earlier]) -> int:
    """Count the different answers to a turn's prompt.

    The spans of an engine and of its client hold the same answer, which counts once.
    """
    asked, prompt = each.mark.asked, each.part(0, each.mark.asked)
    return len(
        {
            other.part(asked, other.mark.length)
            for other in known
            if other.mark.asked == asked and other.part(0, asked) == prompt
        }
    )


def _break(each: _Earlier, prompt: bytes, decode: Decode | None) -> tuple[PrefixBreak, bytes]:
    context = each.part(0, each.mark.length)
    removed, added = _extent(context, prompt, each.shared)
    if added is None and decode is not None:
        removed, added = _extent_by_text(context, prompt, each.shared, decode)
    kind = _kind(each, context, prompt, (removed, added), decode)
    return PrefixBreak(each.mark.turn, each.shared, removed, added, kind), context


def _extent(context: bytes, prompt: bytes, start: int) -> tuple[int, int | None]:
    """Return the length of the difference, in tokens, in the context and in the prompt.

    The difference begins at token ``start``. The context's end is searched for in the prompt, and the
    difference extends to that end in both. The second length is None if the prompt does not hold the
    context's end.
    """
    old, new = (value[start * TOKEN_BYTES :] for value in (context, prompt))
    length = len(old) // TOKEN_BYTES
    for run in _RUNS:
        near = None if run >= _LONG_RUN else 2 * length + _LONG_RUN
        for end in range(length, max(length - TOLERANCE, run) - 1, -1):
            wanted = old[(end - run) * TOKEN_BYTES : end * TOKEN_BYTES]
            place = _index(new, wanted, 0, near) if len(wanted) == run * TOKEN_BYTES else None
            if place is not None:
                return _without_common_end(old, new, end - run, place)
    return length, None


def _without_common_end(old: bytes, new: bytes, end: int, place: int) -> tuple[int, int]:
    while end and place and _token(old, end - 1) == _token(new, place - 1):
        end, place = end - 1, place - 1
    return end, place


def _extent_by_text(context: bytes, prompt: bytes, start: int, decode: Decode) -> tuple[int, int | None]:
    """Return both lengths of a short difference at the context's end whose text the prompt repeats.

    The second length is None if the prompt does not repeat the text.
    """
    length, last = len(context) // TOKEN_BYTES, len(prompt) // TOKEN_BYTES
    if length - start <= _MAX_RETOKENIZED:
        for end in range(length, max(start, length - TOLERANCE - 1), -1):
            wanted = decode(context, start, end)
            for place in range(start + 1, min(last, start + 2 * (end - start) + _LONG_RUN) + 1):
                if wanted and decode(prompt, start, place) == wanted:
                    return end - start, place - start
    return length - start, None


def _has_other_end(base: _Earlier, prompt: bytes, decode: Decode) -> bool:
    """Return whether the prompt holds the text of a turn's last tokens as other tokens."""
    mark = base.mark
    if base.shared == mark.length:
        return False
    _, added = _extent_by_text(base.part(0, mark.length), prompt, base.shared, decode)
    return added is not None


def _kind(
    each: _Earlier, context: bytes, prompt: bytes, extent: tuple[int, int | None], decode: Decode | None
) -> Kind:
    start, (removed, added) = each.shared, extent
    is_in_answer = any(asked <= start and start + removed <= end for asked, end in each.answers)
    if (
        removed
        and added
        and is_in_answer
        and _is_retokenized(context, prompt, start, (removed, added), decode)
    ):
        return "retokenized"
    if added is not None and 4 * added <= removed:
        return "cut"
    return "beginning" if start < min(asked for asked, _ in each.answers) else "edited"


def _is_retokenized(
    context: bytes, prompt: bytes, start: int, extent: tuple[int, int], decode: Decode | None
) -> bool:
    removed, added = extent
    if decode is None:
        return max(extent) <= _MAX_RETOKENIZED and max(extent) <= 2 * min(extent) + 2
    if max(extent) > _MAX_COMPARED:
        return False
    return decode(context, start, start + removed) == decode(prompt, start, start + added)


def _index(items: bytes, wanted: bytes, start: int, near: int | None = None) -> int | None:
    """Return the index of the first token of ``wanted`` in ``items``, from token ``start`` on.

    Args:
        items: encoded tokens.
        wanted: encoded tokens to look for.
        start: index from which to look.
        near: number of tokens to look through; all by default.
    """
    end = len(items) if near is None else min(len(items), (start + near) * TOKEN_BYTES)
    place = items.find(wanted, start * TOKEN_BYTES, end)
    while place >= 0 and place % TOKEN_BYTES:
        place = items.find(wanted, place + 1, end)
    return None if place < 0 else place // TOKEN_BYTES


def _token(items: bytes, index: int) -> bytes:
    return items[index * TOKEN_BYTES : (index + 1) * TOKEN_BYTES]


# --- the attributes of the model call after the break -------------------------------------------------------


_SHOWN: Final = 16
"""Maximum tokens of the context, and of the prompt, whose text is shown."""
_BEFORE: Final = 64
_BEHIND: Final = 8
"""Tokens before and after a part that are decoded with it, to find where its characters begin and end."""
_BETWEEN: Final = "|"
_MORE: Final = "…"


def attributes_of(
    turns: Turns, turn: str, prompt: bytes, start: int, detokenizer: Detokenizer | None
) -> dict[str, Any] | None:
    """Return the attributes that describe the prefix break of a model call; None without a break.

    Args:
        turns: the earlier turns of the trajectory, of token ids.
        turn: id of the model call.
        prompt: its encoded prompt.
        start: when the call began, in ns.
        detokenizer: decodes the ids; without it, the attributes hold no text.
    """
    text = None if detokenizer is None else _Text(detokenizer)
    found = find(turns, turn, prompt, start, None if text is None else text.part)
    if found is None:
        return None
    broken, context = found
    described = {
        semconv.BREAK_OF: broken.turn,
        semconv.BREAK_TOKEN: broken.token,
        semconv.BREAK_REMOVED: broken.removed,
        semconv.BREAK_ADDED: broken.added,
        semconv.BREAK_KIND: broken.kind,
    }
    if text is not None:
        rest = len(prompt) // TOKEN_BYTES - broken.token
        described[semconv.BREAK_WAS] = text.shown(context, broken, broken.removed)
        described[semconv.BREAK_BECAME] = text.shown(
            prompt, broken, rest if broken.added is None else broken.added
        )
    return {name: value for name, value in described.items() if value is not None}


class _Text:
    """Decodes parts of encoded tokens."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def part(self, items: bytes, start: int, end: int) -> str:
        """Return the text of the tokens from index ``start`` up to ``end``."""
        first = max(0, start - _BEFORE)
        ids = array("I", items[first * TOKEN_BYTES : (end + _BEHIND) * TOKEN_BYTES]).tolist()
        return self._detokenizer.part(ids, start - first, end - first)

    def shown(self, items: bytes, broken: PrefixBreak, count: int) -> str:
        """Return the text of the first different tokens; ``|`` separates retokenized tokens."""
        end = broken.token + min(count, _SHOWN)
        more = _MORE if count > _SHOWN else ""
        if broken.kind != "retokenized":
            return self.part(items, broken.token, end) + more
        pieces = [self.part(items, index, index + 1) for index in range(broken.token, end)]
        return _BETWEEN.join(pieces) + more
