"""Compute the scales of charts: domains of axes, ticks, and which of many points to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, SupportsFloat

_LARGEST: Final = 1e300
"""Maximum magnitude of a drawn number; the difference of two larger ones may be infinite."""
_SUFFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_DIGITS: Final = 4
"""Significant digits of a number without a suffix."""
_CLOSE: Final = 1e-9
"""Relative difference up to which two numbers are drawn as one."""
_TINY: Final = 1e-290
"""Difference up to which two numbers are drawn as one."""


class Scale(NamedTuple):
    """A linear map from numbers to places of the drawing.

    Attributes:
        low: the number at ``start``.
        high: the number at ``end``; greater than ``low``.
        start: place of the least number.
        end: place of the greatest number.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number, to a tenth of a unit."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)


def finite(value: SupportsFloat | None) -> float | None:
    """Return a number that can be drawn; None for a missing, infinite or huge one."""
    try:
        number = math.nan if value is None else float(value)
    except (OverflowError, ValueError):
        return None
    return number if abs(number) <= _LARGEST else None


def domain(
    values: Iterable[float], from_zero: bool = False, around: float | None = None
) -> tuple[float, float]:
    """Return the least and the greatest number of an axis; the two are never equal.

    Args:
        values: the numbers to show; they are finite.
        from_zero: whether zero is shown, too.
        around: range on each side of a single number; by default a tenth of the number.
    """
    found = [*values, 0.0] if from_zero else list(values)
    if not found:
        return 0.0, 1.0
    low, high = min(found), max(found)
    if high - low > max(_CLOSE * max(abs(low), abs(high)), _TINY):
        return low, high
    if from_zero:
        return 0.0, 1.0
    around = max(around or abs(low) * 0.1 or 0.5, abs(low) * _CLOSE)
    return low - around, high + around


def ticks(low: float, high: float, count: int, is_integer: bool = False) -> list[float]:
    """Return about ``count`` round numbers from ``low`` to ``high``.

    Args:
        low: the least number.
        high: the greatest number.
        count: the number of ticks that fit.
        is_integer: whether only integers are wanted.
    """
    rough = (high - low) / max(1, count)
    size = 10.0 ** math.floor(math.log10(rough))
    distance = next(size * each for each in (1, 2, 5, 10) if size * each >= rough * 0.999)
    distance = max(1.0, distance) if is_integer else distance
    first = math.ceil(low / distance - 1e-9)
    last = math.floor(high / distance + 1e-9)
    return [each * distance for each in range(first, last + 1)]


def short_number(value: float) -> str:
    """Return a number for a label: ``1.2k``, ``0.25``, ``3.4M``."""
    size = abs(value)
    if size < 10_000:
        return "0" if value == 0 else f"{value:.{_DIGITS}g}"
    for unit, suffix in _SUFFIXES:
        if unit <= size < unit * 10_000:
            return f"{value / unit:.{3 if size < unit * 999.5 else 4}g}{suffix}"
    return f"{value:.2e}"


def thinned(values: Sequence[float | None], most: int) -> list[int]:
    """Return the indices of the values that keep the shape of a line.

    The values are divided into equal parts. Of each part, the first, the last, the least and the greatest
    value stay. So a single outlier among ten thousand values stays visible.

    Args:
        values: the values; None is a gap.
        most: maximum number of indices.
    """
    if len(values) <= most:
        return list(range(len(values)))
    parts = max(1, most // 4)
    chosen: set[int] = set()
    for part in range(parts):
        span = range(part * len(values) // parts, (part + 1) * len(values) // parts)
        known = [(value, index) for index in span if (value := values[index]) is not None]
        if known:
            chosen.update((known[0][1], known[-1][1], min(known)[1], max(known)[1]))
        else:
            chosen.add(span[0])
    return sorted(chosen)
