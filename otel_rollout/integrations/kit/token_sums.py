"""Reduce a trainer's values per token to one value per trajectory.

The tensors are the caller's. Only their methods are used, so this module does not import torch. No tensor is
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_BLOCK_BYTES: Final = 1 << 22
"""Bytes of a tensor that are reduced at a time on a CPU: few enough for its cache."""


def counts(mask: Any) -> list[int]:
    """Return how many tokens of each row are in the mask."""
    return [int(count) for (rows,) in _blocks(mask) for count in rows.bool().sum(1).tolist()]


def sums(values: Any, subtracted: Any = None) -> list[float]:
    """Return each row's sum over its tokens, of the values or of their difference to ``subtracted``."""
    if subtracted is None:
        return [total for (rows,) in _blocks(values) for total in rows.sum(1).tolist()]
    return [
        total for rows, others in _blocks(values, subtracted) for total in (rows - others).sum(1).tolist()
    ]


def means(values: Any, mask: Any) -> list[float | None]:
    """Return each row's mean over the tokens in the mask; None for a row without.

    Args:
        values: values per token, a torch tensor of shape (batch, tokens).
        mask: a tensor of equal shape.
    """
    found: list[float | None] = []
    for rows, is_inside in _blocks(values, mask):
        is_inside = is_inside.bool()
        number = is_inside.sum(1)
        # Not a product with the mask: what lies outside of it may be no number.
        mean = rows.masked_fill(~is_inside, 0.0).sum(1) / number
        pairs = zip(mean.tolist(), number.tolist(), strict=True)
        found += [value if count else None for value, count in pairs]
    return found


def _blocks(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """Yield blocks of equal rows of tensors of equal shape; a single block for another device."""
    first = tensors[0]
    rows, tokens = first.shape
    size = max(1, _BLOCK_BYTES // (first.element_size() * max(1, tokens)))
    if first.device.type != "cpu":
        size = max(1, rows)
    for start in range(0, rows, size):
        yield tuple(tensor.detach()[start : start + size] for tensor in tensors)
