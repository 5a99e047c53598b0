"""Hold the token ids of a model call, for comparison and for decoding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from otel_rollout.turns import context_diff
from otel_rollout.turns.context_diff import ContextBranch
from otel_rollout.turns.detokenizer import Detokenizer


class Piece(NamedTuple):
    """The text of a branch's tokens from the end of the previous piece to ``end``, a border of characters."""

    end: int
    text: str


class TokenTurn:
    """The prompt and the answer of a model call, or of a whole conversation.

    The recorder may have cut either.

    Attributes:
        prompt: token ids of the prompt.
        answer: token ids of the answer.
        ids: both, one after the other.
        rest_of_prompt: the recorder's note in place of prompt ids that it cut off; empty if it cut none.
        rest_of_answer: the recorder's note in place of answer ids.
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
        """Decode the ids of the branch that have no text yet: each token of a trajectory once.

        A piece of text may end at ``shown_from``, at the prompt's end, and at the last id.
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
    """Return the prompt that all objects share; None if their prompts differ."""
    prompts = [holder["prompt_ids"] for holder in holders]
    if len({context_diff.tokens(prompt) for prompt in prompts}) > 1:
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
    encoded = context_diff.tokens(ids)
    if encoded is None:
        return [], "", None
    return ids, note, None if note else encoded
