"""Describe a broken prefix as attributes of the model call after it."""

from __future__ import annotations

from array import array
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.turns import prefix_break
from otel_rollout.turns.context_diff import TOKEN_BYTES, Turns
from otel_rollout.turns.detokenizer import Detokenizer
from otel_rollout.turns.prefix_break import PrefixBreak

_SHOWN: Final = 16
"""Tokens whose text is shown, of each side."""
_BEFORE: Final = 64
_BEHIND: Final = 8
"""Tokens before and behind a part that are decoded with it, to find where its characters begin and end."""
_BETWEEN: Final = "|"
_MORE: Final = "…"


def attributes_of(
    turns: Turns, turn: str, prompt: bytes, start: int, detokenizer: Detokenizer | None
) -> dict[str, Any] | None:
    """Return the attributes of a model call whose prompt breaks the prefix; None if it does not.

    Args:
        turns: the earlier turns of the trajectory, of token ids.
        turn: id of the model call.
        prompt: its encoded prompt.
        start: when the call began, in ns.
        detokenizer: decodes the ids; None if there is none.
    """
    text = None if detokenizer is None else _Text(detokenizer)
    found = prefix_break.find(turns, turn, prompt, start, None if text is None else text.part)
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
        """Return the text of some of the tokens."""
        first = max(0, start - _BEFORE)
        ids = array("I", items[first * TOKEN_BYTES : (end + _BEHIND) * TOKEN_BYTES]).tolist()
        return self._detokenizer.part(ids, start - first, end - first)

    def shown(self, items: bytes, broken: PrefixBreak, count: int) -> str:
        """Return the text of the first different tokens, with a mark between retokenized ones."""
        end = broken.token + min(count, _SHOWN)
        more = _MORE if count > _SHOWN else ""
        if broken.kind != "retokenized":
            return self.part(items, broken.token, end) + more
        pieces = [self.part(items, index, index + 1) for index in range(broken.token, end)]
        return _BETWEEN.join(pieces) + more
