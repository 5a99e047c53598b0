"""Decode token ids to text, with a tokenizer from the run's node directory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rollout.spool import layout
from otel_rollout.spool.private_files import read_beside

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTEXT_TOKENS: Final = 4
"""Tokens decoded ahead of a part: some tokenizers treat the first token of a text specially."""
_MAX_CHARACTER_TOKENS: Final = 4
"""Maximum tokens of one character: the longest character has this many bytes in UTF-8."""
_MAX_LOOKBACK: Final = 32
"""Tokens before a position that are searched for a border between characters."""
UNFINISHED: Final = "\ufffd"
"""Replacement character: stands for bytes that are not a complete character."""
_UNFINISHED_TOKENS: Final = (UNFINISHED, "ï¿½", "<0xEF><0xBF><0xBD>")
"""Spellings of ``UNFINISHED`` itself in vocabularies: plain, as bytes of GPT, as bytes of Llama."""


class Detokenizer:
    """Decodes with one tokenizer; special tokens are kept.

    Args:
        tokenizer: a tokenizer of the library ``tokenizers``.

    Attributes:
        decoded: tokens decoded so far.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_border_after = functools.lru_cache(maxsize=4096)(self._ends_a_character)
        self.decoded = 0

    @classmethod
    def stored(cls, node_dir: Path, name: str) -> Detokenizer | None:
        """Load the run's tokenizer ``name``; return None if its file is missing.

        Raises:
            ImportError: the library ``tokenizers`` is not installed.
            Exception: the file holds no tokenizer.
        """
        from tokenizers import Tokenizer

        path = layout.tokenizer_file(node_dir, name)
        return cls(Tokenizer.from_str(read_beside(path).decode())) if path.exists() else None

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, with ``<unknown token ID>`` for unknown ids."""
        return self.part(ids, 0, len(ids))

    def part(self, ids: Sequence[int], start: int, end: int) -> str:
        """Return the text that ``ids[start:end]`` adds to the text of earlier tokens.

        A character whose tokens lie in two parts belongs to the part in which the character ends, so that the
        parts join to the whole text. An incomplete character at the end of ``ids`` belongs to the last part.
        """
        if start >= end:
            return ""
        first, last = self.border(ids, start), self.border(ids, end)
        in_part_before = self._decoded(ids[first:start]).rstrip(UNFINISHED)
        rest = self._decoded(ids[last:end])
        text = self._between(ids, first, last) + (rest if end == len(ids) else rest.rstrip(UNFINISHED))
        return text.removeprefix(in_part_before)

    def border(self, ids: Sequence[int], position: int) -> int:
        """Return the last border between characters at or before ``position``.

        If the last 32 tokens have no border, return ``position``, or 0 near the beginning of the text.
        """
        for candidate in range(position, max(0, position - _MAX_LOOKBACK), -1):
            if self._is_border_after(tuple(ids[max(0, candidate - _MAX_CHARACTER_TOKENS) : candidate])):
                return candidate
        return 0 if position <= _MAX_LOOKBACK else position

    def _ends_a_character(self, ids: tuple[int, ...]) -> bool:
        # A byte-level tokenizer may decode no byte if the first byte continues a character: try each suffix.
        if any(not self._decoded(ids[start:]).endswith(UNFINISHED) for start in reversed(range(len(ids)))):
            return True
        return "".join(self._tokenizer.id_to_token(i) or "" for i in ids).endswith(_UNFINISHED_TOKENS)

    def _between(self, ids: Sequence[int], start: int, end: int) -> str:
        """Return the text between two borders, decoded with the tokens before it."""
        before = ids[self.border(ids, max(0, start - _CONTEXT_TOKENS)) : start]
        prefix, both = self._decoded(before), self._decoded([*before, *ids[start:end]])
        return both[len(prefix) :] if both.startswith(prefix) else self._decoded(ids[start:end])

    def _decoded(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        unknown = {i for i in set(ids) if self._tokenizer.id_to_token(i) is None}
        parts: list[str] = []
        start = 0
        for position, token in enumerate(ids) if unknown else ():
            if token in unknown:
                parts += [self._known(ids[start:position]), f"<unknown token {token}>"]
                start = position + 1
        return "".join([*parts, self._known(ids[start:])])

    def _known(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""
