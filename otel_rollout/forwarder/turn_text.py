"""Decode a trajectory's turns to text, each token once.

A branch keeps decoded text in pieces. Each piece ends where a turn ends, at a border between characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_rollout.forwarder.context_diff import Branch
from otel_rollout.forwarder.detokenizer import Detokenizer


class Piece(NamedTuple):
    """The text of a branch's tokens from the end of the previous piece to ``end``."""

    end: int
    text: str


def decode(branch: Branch, ids: Sequence[int], ends: Iterable[int], detokenizer: Detokenizer) -> None:
    """Decode the ids that the branch has no text for yet.

    Args:
        branch: receives the pieces.
        ids: token ids of the branch, from the first on.
        ends: positions at which pieces may end, besides the end of ``ids``.
        detokenizer: decodes the ids.
    """
    pieces = branch.pieces
    covered = pieces[-1].end if pieces else 0
    for end in sorted({detokenizer.border(ids, end) for end in (*ends, len(ids))}):
        if end > covered:
            pieces.append(Piece(end, detokenizer.part(ids, covered, end)))
            covered = end


def text(branch: Branch, ids: Sequence[int], start: int, end: int, detokenizer: Detokenizer) -> str:
    """Return the text of ``ids[start:end]``, from pieces if they fit exactly."""
    ends = [0, *(piece.end for piece in branch.pieces)]
    if start in ends and end in ends:
        return "".join(piece.text for piece in branch.pieces[ends.index(start) : ends.index(end)])
    return detokenizer.part(ids, start, end)
