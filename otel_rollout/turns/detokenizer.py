"""Decode token ids to text, with the tokenizers from the run's node directory."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.waits import wait_until, waits
from otel_rollout.spool import layout
from otel_rollout.spool.private_files import read_beside

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_DETOKENIZERS: Final = 8
"""Tokenizers that a cache holds at most."""
_CONTEXT_TOKENS: Final = 4
"""Tokens decoded ahead of a part: some tokenizers treat the first token of a text specially."""
_MAX_CHARACTER_TOKENS: Final = 4
"""Maximum tokens of one character: the longest character has this many bytes in UTF-8."""
_MAX_LOOKBACK: Final = 32
"""Tokens before a position that are searched for a border between characters."""
UNFINISHED: Final = "\ufffd"
"""Replacement character: stands for bytes that are not a complete character."""
_UNFINISHED_TOKENS: Final = (UNFINISHED, "ï¿½", "<0xEF><0xBF><0xBD>")
"""Spellings of ``UNFINISHED`` in vocabularies: the character, its bytes as GPT and as Llama spell them."""


class Detokenizer:
    """Decodes token ids with one tokenizer, special tokens included.

    Args:
        tokenizer: a tokenizer of the library ``tokenizers``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_border_after = functools.lru_cache(maxsize=4096)(self._ends_a_character)

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

    def part(self, ids: Sequence[int], start: int, end: int) -> str:
        """Return the text that ``ids[start:end]`` adds to the text of earlier tokens.

        An unknown id becomes ``<unknown token ID>``.

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


class DetokenizerCache:
    """Loads each detokenizer once, and waits for a tokenizer's file that is still being written.

    Several threads may use one cache.

    Args:
        node_dir: holds the tokenizers.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._loaded: dict[str, Detokenizer] = {}
        self._next_look: BoundedDict[str, float] = BoundedDict(_MAX_DETOKENIZERS)
        self._lock = threading.Lock()

    def get(self, name: str, end: float) -> Detokenizer | None:
        """Return the detokenizer ``name`` for a span that ended at Unix time ``end``, in seconds.

        Return None if the tokenizer is missing or cannot be used. The first time, log a warning.
        """
        loaded = self._loaded.get(name)  # without the lock, which a wait for another tokenizer may hold
        if loaded is not None:
            return loaded
        with self._lock:
            return self._get(name, end)

    def _get(self, name: str, end: float) -> Detokenizer | None:
        if name in self._loaded:
            return self._loaded[name]
        if time.monotonic() < self._next_look.get(name, -math.inf):
            return None
        # A wrong clock may put a span's end into the future: wait as if the span ended now.
        deadline = min(end, time.time()) + waits().tokenizer
        detokenizer = self._load(name, 0.0 if name in self._next_look else deadline)
        if detokenizer is None:
            self._next_look[name] = time.monotonic() + waits().absent
            return None
        self._loaded[name] = detokenizer
        while len(self._loaded) > _MAX_DETOKENIZERS:
            del self._loaded[next(iter(self._loaded))]
        return detokenizer

    def _load(self, name: str, deadline: float) -> Detokenizer | None:
        path = layout.tokenizer_file(self._node_dir, name)
        wait_until(path.exists, deadline - time.time())
        problem: object = f"{path} does not exist"
        try:
            detokenizer = Detokenizer.stored(self._node_dir, name)
            if detokenizer is not None:
                return detokenizer
        except ImportError:
            problem = "it needs the library tokenizers: pip install 'otel-rollout[tokens]'"
        except Exception as error:  # noqa: BLE001 - a file that holds no tokenizer
            problem = error
        if name not in self._next_look:
            logger.warning("token ids are exported without their text: %s", problem)
        return None
