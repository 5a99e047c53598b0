"""Reduce a trainer's values per token to one value per trajectory.

The tensors are the caller's. Only their methods are used, so this module does not import torch. No tensor is
changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

_BLOCK_BYTES: Final = 1 << 22
"""Bytes of a tensor that are reduced at a time on a CPU: few enough for its cache."""


def counts(mask: Any) -> list[int]:
    """Return how many tokens of each row are in the mask, which holds 0 and 1."""
    return [int(count) for count in mask.detach().sum(1).tolist()]


def sums(values: Any, subtracted: Any = None) -> list[float]:
    """Return each row's sum over its tokens, of the values or of their difference to ``subtracted``."""
    if subtracted is None:
        return [total for (rows,) in blocks(values) for total in rows.sum(1).tolist()]
    return [total for rows, others in blocks(values, subtracted) for total in (rows - others).sum(1).tolist()]


def means(values: Any, mask: Any) -> list[float | None]:
    """Return each row's mean over the tokens in the mask; None for a row without such tokens.

    Args:
        values: values per token, a torch tensor of shape (batch, tokens).
        mask: a tensor of equal shape.
    """
    totals: list[float] = []
    for rows, inside in blocks(values, mask):
        totals += (rows * inside).sum(1).tolist()  # a third of the time of masked_fill
    for row, total in enumerate(totals):
        if not math.isfinite(total):  # what lies outside of the mask may be no number
            totals[row] = float(values[row].detach().masked_fill(~mask[row].bool(), 0.0).sum())
    return [total / count if count else None for total, count in zip(totals, counts(mask), strict=True)]


def blocks(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the same rows of all tensors, block by block; all rows at once on a device other than the CPU."""
    first = tensors[0]
    rows, tokens = first.shape
    size = max(1, _BLOCK_BYTES // (first.element_size() * max(1, tokens)))
    if first.device.type != "cpu":
        size = max(1, rows)
    for start in range(0, rows, size):
        yield tuple(tensor.detach()[start : start + size] for tensor in tensors)
