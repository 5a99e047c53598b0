"""Find the step from which on something is more frequent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SURPRISING: Final = 3.0
"""Surprise from which on a change is listed: about one of 400 by chance."""


def risen_at(calls: Sequence[int], errors: Sequence[int]) -> int | None:
    """Return the place of the step from which on errors are more frequent; None if chance explains them."""
    whole, bad = sum(calls), sum(errors)
    if not 0 < bad < whole:
        return None
    spread = math.sqrt(bad / whole * (1 - bad / whole))
    best, found = SURPRISING, None
    for place, (before, failed) in enumerate(
        zip(accumulate(calls), accumulate(errors), strict=True), start=1
    ):
        after = whole - before
        if before and after:
            rise = (bad - failed) / after - failed / before
            surprise = rise / (spread * math.sqrt(1 / before + 1 / after))
            best, found = (surprise, place) if surprise > best else (best, found)
    return found
