"""Token ids → text, by a tokenizer that a run has left in its directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rollout import spool

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTEXT: Final = 4
"""Tokens before others that are decoded with them: to some tokenizers the first of a text is special."""
UNFINISHED: Final = "\ufffd"
"""What stands for bytes that are no character, or not yet."""


class Decoder:
    """Decodes by one tokenizer; special tokens are kept.

    Args:
        tokenizer: of the library ``tokenizers``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
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

        path = spool.tokenizer_file(node_dir, name)
        return cls(Tokenizer.from_str(spool.read_owned(path, node_dir).decode())) if path.exists() else None

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids; ids that the tokenizer does not know are named."""
        self.decoded += len(ids)
        unknown = {i for i in set(ids) if self._tokenizer.id_to_token(i) is None}
        if not unknown:
            return str(self._tokenizer.decode(ids, skip_special_tokens=False))
        parts: list[str] = []
        begin = 0
        for position, token in enumerate(ids):
            if token in unknown:
                parts += [self._known(ids[begin:position]), f"<unknown token {token}>"]
                begin = position + 1
        return "".join([*parts, self._known(ids[begin:])])

    def _known(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""

    def part(self, ids: Sequence[int], begin: int, end: int) -> str:
        """What ``ids[begin:end]`` add to the text of the tokens before them."""
        if begin == 0:
            return self.text(ids[:end])
        context = ids[max(0, begin - _CONTEXT) : begin]
        start = self.text(context)
        both = self.text([*context, *ids[begin:end]])
        return both[len(start) :] if both.startswith(start) else self.text(ids[begin:end])
