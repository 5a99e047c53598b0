"""Token ids → text, by a tokenizer that a run has left in its directory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rollout.spool import layout
from otel_rollout.spool.private_files import read_beside

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTEXT: Final = 4
"""Tokens before others that are decoded with them: to some tokenizers the first of a text is special."""
_CHARACTER: Final = 4
"""Bytes of the longest character, and so the most tokens that one can consist of."""
_LOOK_BACK: Final = 32
"""Tokens before a position among which a border between characters is looked for."""
UNFINISHED: Final = "\ufffd"
"""What stands for bytes that are no character, or not yet."""
_WRITTEN_OUT: Final = (UNFINISHED, "ï¿½", "<0xEF><0xBF><0xBD>")
"""That same character where it is part of the text: in a vocabulary, as bytes of GPT's kind, of Llama's."""


class Decoder:
    """Decodes by one tokenizer; special tokens are kept.

    Args:
        tokenizer: of the library ``tokenizers``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_border_after = functools.lru_cache(maxsize=4096)(self._ends_a_character)
        self.decoded = 0
        """Tokens decoded so far."""

    @classmethod
    def stored(cls, node_dir: Path, name: str) -> Decoder | None:
        """The decoder for what a run calls ``name``; None where there is none.

        Raises:
            ImportError: without the library ``tokenizers``.
            Exception: when the file holds no tokenizer.
        """
        from tokenizers import Tokenizer

        path = layout.tokenizer_file(node_dir, name)
        return cls(Tokenizer.from_str(read_beside(path).decode())) if path.exists() else None

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; ids that the tokenizer does not know are named."""
        return self.part(ids, 0, len(ids))

    def part(self, ids: Sequence[int], begin: int, end: int) -> str:
        """Return what ``ids[begin:end]`` adds to the text of the tokens before it.

        A character whose tokens lie on both sides of a border belongs to the part in which it ends. So the
        parts of a text together are the text. Bytes at the end of ``ids`` that are no character yet belong to
        the last part.
        """
        if begin >= end:
            return ""
        first, last = self.border(ids, begin), self.border(ids, end)
        in_part_before = self._decoded(ids[first:begin]).rstrip(UNFINISHED)
        rest = self._decoded(ids[last:end])
        text = self._between(ids, first, last) + (rest if end == len(ids) else rest.rstrip(UNFINISHED))
        return text.removeprefix(in_part_before)

    def border(self, ids: Sequence[int], position: int) -> int:
        """Return the last border between characters up to ``position``, or that where there is none near."""
        for candidate in range(position, max(0, position - _LOOK_BACK), -1):
            if self._is_border_after(tuple(ids[max(0, candidate - _CHARACTER) : candidate])):
                return candidate
        return 0 if position <= _LOOK_BACK else position

    def _ends_a_character(self, ids: tuple[int, ...]) -> bool:
        # A decoder of single bytes makes nothing of all of them where the first are the end of a character.
        if any(not self._decoded(ids[begin:]).endswith(UNFINISHED) for begin in reversed(range(len(ids)))):
            return True
        return "".join(self._tokenizer.id_to_token(i) or "" for i in ids).endswith(_WRITTEN_OUT)

    def _between(self, ids: Sequence[int], begin: int, end: int) -> str:
        """Return the text between two borders, decoded with some tokens before it."""
        before = ids[self.border(ids, max(0, begin - _CONTEXT)) : begin]
        start, both = self._decoded(before), self._decoded([*before, *ids[begin:end]])
        return both[len(start) :] if both.startswith(start) else self._decoded(ids[begin:end])

    def _decoded(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        unknown = {i for i in set(ids) if self._tokenizer.id_to_token(i) is None}
        parts: list[str] = []
        begin = 0
        for position, token in enumerate(ids) if unknown else ():
            if token in unknown:
                parts += [self._known(ids[begin:position]), f"<unknown token {token}>"]
                begin = position + 1
        return "".join([*parts, self._known(ids[begin:])])

    def _known(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""
