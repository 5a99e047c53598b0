"""The text of a trajectory's turns, of which each token is decoded once.

A branch keeps the text of its beginning in pieces that end where turns do, between two characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_rollout.forwarder.context_diff import Branch
from otel_rollout.forwarder.detokenizer import Decoder


class Piece(NamedTuple):
    """The text of a branch's tokens from the end of the piece before it up to ``end``."""

    end: int
    text: str


def read(branch: Branch, ids: Sequence[int], ends: Iterable[int], decoder: Decoder) -> None:
    """Decode what of ``ids``, with which the branch begins, it has no text of yet.

    Args:
        branch: gets the pieces.
        ids: its tokens, or those of its beginning.
        ends: where pieces may end.
        decoder: what to decode with.
    """
    pieces = branch.pieces
    covered = pieces[-1].end if pieces else 0
    for end in sorted({decoder.border(ids, end) for end in (*ends, len(ids))}):
        if end > covered:
            pieces.append(Piece(end, decoder.part(ids, covered, end)))
            covered = end


def text(branch: Branch, ids: Sequence[int], begin: int, end: int, decoder: Decoder) -> str:
    """Return the text of ``ids[begin:end]``, from the pieces where they end there."""
    ends = [0, *(piece.end for piece in branch.pieces)]
    if begin in ends and end in ends:
        return "".join(piece.text for piece in branch.pieces[ends.index(begin) : ends.index(end)])
    return decoder.part(ids, begin, end)
