"""Decode a trajectory's turns to text, each token once.

A branch keeps the text of its beginning in pieces, which end where turns end, between two characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_rollout.forwarder.context_diff import Branch
from otel_rollout.forwarder.detokenizer import Detokenizer


class Piece(NamedTuple):
    """The text of a branch's tokens from the piece before up to ``end``."""

    end: int
    text: str


def decode(branch: Branch, ids: Sequence[int], ends: Iterable[int], detokenizer: Detokenizer) -> None:
    """Decode those of ``ids`` that the branch has no text of yet.

    Args:
        branch: gets the pieces.
        ids: the branch's tokens, or those of its beginning.
        ends: where pieces may end.
        detokenizer: decodes.
    """
    pieces = branch.pieces
    covered = pieces[-1].end if pieces else 0
    for end in sorted({detokenizer.border(ids, end) for end in (*ends, len(ids))}):
        if end > covered:
            pieces.append(Piece(end, detokenizer.part(ids, covered, end)))
            covered = end


def text(branch: Branch, ids: Sequence[int], start: int, end: int, detokenizer: Detokenizer) -> str:
    """Return the text of ``ids[start:end]``, from pieces that end there if any do."""
    ends = [0, *(piece.end for piece in branch.pieces)]
    if start in ends and end in ends:
        return "".join(piece.text for piece in branch.pieces[ends.index(start) : ends.index(end)])
    return detokenizer.part(ids, start, end)
