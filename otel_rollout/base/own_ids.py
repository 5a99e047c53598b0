"""Mark the ids of a run's spans, so that the run's receivers know them on sight.

A program that joins a trajectory is told the id of a span. A span of its own with that id would overwrite
ours. A receiver cannot look ids up: those of running operations are on no disk, those of other nodes on
another one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

RANDOM_BITS: Final = 40
"""Bits of a span's id behind the mark. Two of a thousand spans of a trace get one id in one of two million
traces."""


def mark_of(run_id: str) -> bytes:
    """Return the first six hex digits of the span ids of a run.

    Of the ids that other programs draw, one in 17 million has them by chance.
    """
    return blake2b(run_id.encode(errors="replace"), digest_size=3).hexdigest().encode()
