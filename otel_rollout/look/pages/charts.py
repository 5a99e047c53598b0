"""Draw plain SVG charts: lines over steps, columns, or one bar of shares.

A chart has no script. Its colours are the page's, so it follows the light and the dark theme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, groupby, pairwise
from typing import Any, Final, Literal

from markupsafe import Markup

from otel_rollout.look.pages.rendering import render
from otel_rollout.look.pages.scale import Scale, domain, finite, short_number, thinned, ticks

Colour = Literal["user", "assistant", "tool", "evaluator", "failure", "system"]
"""A colour of the page's style: blue, green, amber, violet, red, grey."""

_WIDTH: Final = 640
_HEIGHT: Final = 200
"""Units of a chart's drawing; the page scales it to the width that it has."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 628, 10, 166
"""Edges of the plot, with room for the labels of the axes around it."""
_BAR_HEIGHT: Final = 18
_Y_TICKS: Final = 4
_X_TICKS: Final = 8
_MAX_POINTS: Final = 240
"""Maximum points that are drawn of a line; of more points, those are drawn that keep its shape."""
_MIN_COLUMNS: Final = 3
"""Minimum number of columns that a chart has room for, so that a single column is not too wide."""
_MAX_COLUMNS: Final = 120
"""Maximum columns that are drawn; with more, each drawn column is the mean of several."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line.

    Attributes:
        x: its place, such as the step.
        y: its value; None, NaN and infinity are a gap.
        low: lower edge of the band around the line.
        high: upper edge of the band.
        link: address of a page.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A line with its name in the legend."""

    name: str
    points: Sequence[Point]
    colour: Colour = "user"


@dataclass(frozen=True, slots=True)
class ChartColumn:
    """A column of a chart.

    Attributes:
        label: text below the column.
        values: the value of each part, in the order of the chart's parts; None counts as 0.
        title: first line of the tooltip, before the values.
        link: address of a page.
    """

    label: str
    values: Sequence[float | None]
    title: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of each column, or of a bar; only a bar uses ``value``."""

    name: str
    colour: Colour = "user"
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Axes:
    """Labels and range of a chart's axes.

    Attributes:
        x: label of the horizontal axis.
        number: returns the text of a value, for example as a duration.
        from_zero: whether the vertical axis includes zero.
    """

    x: str = "step"
    number: Callable[[float], str] = field(default=short_number)
    from_zero: bool = True


_AXES: Final = Axes()


def line_chart(title: str, series: Sequence[Series], axes: Axes = _AXES) -> Markup:
    """Draw a line for each series, with a band where points have one."""
    drawn = [[point for point in each.points if finite(point.x) is not None] for each in series]
    xs = [float(point.x) for points in drawn for point in points]
    ys = [
        value
        for points in drawn
        for point in points
        for given in (point.y, point.low, point.high)
        if (value := finite(given)) is not None
    ]
    x = Scale(*domain(xs, around=1.0), _LEFT, _RIGHT)
    y = Scale(*domain(ys, axes.from_zero), _BOTTOM, _TOP)
    is_integer = all(each.is_integer() for each in xs)
    return _figure(
        title,
        [(each.name, each.colour) for each in series] if len(series) > 1 else [],
        x_labels=[(x(value), short_number(value)) for value in ticks(x.low, x.high, _X_TICKS, is_integer)],
        lines=[_line(each, points, x, y, axes) for each, points in zip(series, drawn, strict=True)],
        is_empty=not ys,
        **_axis(axes, y),
    )


def column_chart(
    title: str, parts: Sequence[Slice], columns: Sequence[ChartColumn], axes: Axes = _AXES
) -> Markup:
    """Draw a column of stacked parts for each entry.

    A value below zero is drawn as zero.
    """
    columns = _merged(columns)
    heights = [[max(0.0, finite(value) or 0.0) for value in column.values] for column in columns]
    y = Scale(*domain([min(sum(each), 1e300) for each in heights], True), _BOTTOM, _TOP)
    room = (_RIGHT - _LEFT) / max(_MIN_COLUMNS, len(columns))
    drawn = []
    for left, column, values in zip(count(_LEFT, room), columns, heights, strict=False):
        places = [y(height) for height in accumulate(values, initial=0.0)]
        rectangles = [
            (part.colour, left + room * 0.1, top, room * 0.8, max(bottom - top, 0.5))
            for part, value, (bottom, top) in zip(parts, values, pairwise(places), strict=True)
            if value
        ]
        drawn.append((rectangles, column.link, _said(column, parts, values, axes)))
    every = max(1, -(-len(columns) // _X_TICKS))
    labels = [(_LEFT + (index + 0.5) * room, column.label) for index, column in enumerate(columns)]
    legend = [(part.name, part.colour) for part in parts] if len(parts) > 1 else []
    return _figure(title, legend, x_labels=labels[::every], columns=drawn, **_axis(axes, y))


def share_bar(parts: Sequence[Slice], axes: Axes = _AXES) -> Markup:
    """Draw one horizontal bar whose parts are the shares of a whole, with a legend."""
    known = [(part, max(0.0, finite(part.value) or 0.0)) for part in parts]
    whole = sum(min(value, 1e290) for _, value in known)
    left, drawn = 0.0, []
    for part, value in known:
        width = _WIDTH * min(value, 1e290) / whole if whole else 0.0
        if width:
            rectangle = (part.colour, left, 0, width, _BAR_HEIGHT)
            drawn.append(([rectangle], None, f"{part.name}: {axes.number(value)}"))
        left += width
    legend = [(f"{part.name} {axes.number(value)}", part.colour) for part, value in known]
    return _figure("", legend, height=_BAR_HEIGHT, columns=drawn)


def _line(series: Series, points: Sequence[Point], x: Scale, y: Scale, axes: Axes) -> dict[str, Any]:
    """Return what the template draws of a series: its bands, its parts without a gap, and its points."""
    ordered = sorted(points, key=lambda point: point.x)
    values = [finite(point.y) for point in ordered]
    kept = [ordered[index] for index in thinned(values, _MAX_POINTS)]
    places = [None if (value := finite(point.y)) is None else (x(float(point.x)), y(value)) for point in kept]
    titled = [
        (*place, point.link, f"{series.name} · {axes.x} {short_number(point.x)}: {axes.number(point.y)}")
        for point, place in zip(kept, places, strict=True)
        if place is not None and point.y is not None
    ]
    return {
        "colour": series.colour, "bands": list(_bands(kept, x, y)), "parts": list(_parts(places)),
        "points": titled, "places": set(places),
    }  # fmt: skip


def _bands(points: Sequence[Point], x: Scale, y: Scale) -> Iterator[str]:
    """Yield the outline of each part of a band without a gap."""
    upper: list[str] = []
    lower: list[str] = []
    for point in [*points, None]:
        low, high = (None, None) if point is None else (finite(point.low), finite(point.high))
        if point is not None and low is not None and high is not None:
            place = x(float(point.x))
            upper.append(f"{place},{y(high)}")
            lower.append(f"{place},{y(low)}")
        elif upper:
            yield " ".join([*upper, *reversed(lower)])
            upper, lower = [], []


def _parts(places: Sequence[tuple[float, float] | None]) -> Iterator[str]:
    """Yield the points of each part of a line without a gap; a point alone is a short line."""
    for is_gap, run in groupby(places, lambda place: place is None):
        if not is_gap:
            part = [f"{x},{y}" for x, y in filter(None, run)]
            yield " ".join(part if len(part) > 1 else part * 2)


def _merged(columns: Sequence[ChartColumn]) -> Sequence[ChartColumn]:
    """Return at most ``_MAX_COLUMNS`` columns; if there are more, each is the mean of neighbours."""
    each = -(-len(columns) // _MAX_COLUMNS)
    if each <= 1:
        return columns
    found = []
    for first in range(0, len(columns), each):
        some = columns[first : first + each]
        known = [[finite(value) or 0.0 for value in column.values] for column in some]
        means = [
            sum(min(value, 1e290) for value in values) / len(some) for values in zip(*known, strict=True)
        ]
        span = some[0].label if len(some) == 1 else f"{some[0].label}–{some[-1].label}"
        found.append(ChartColumn(some[0].label, means, f"{span}, mean", some[0].link))
    return found


def _said(column: ChartColumn, parts: Sequence[Slice], values: Sequence[float], axes: Axes) -> str:
    """Return the text of a column's tooltip: its title, and a line for each part."""
    lines = [f"{part.name}: {axes.number(value)}" for part, value in zip(parts, values, strict=True)]
    return "\n".join([column.title or f"{axes.x} {column.label}", *lines])


def _figure(title: str, legend: Sequence[tuple[str, str]], height: int = _HEIGHT, **shapes: Any) -> Markup:
    """Return a chart; ``shapes`` are the variables of its template."""
    edges: dict[str, Any] = {
        "width": _WIDTH,
        "height": height,
        "left": _LEFT,
        "right": _RIGHT,
        "bottom": _BOTTOM,
    }
    page = render("chart.html", title=title, legend=legend, **edges, **shapes)
    return Markup(page)  # noqa: S704 (the template has escaped every text)


def _axis(axes: Axes, y: Scale) -> dict[str, Any]:
    """Return the label of the horizontal axis, and the numbers of the vertical axis with their places."""
    values = ticks(y.low, y.high, _Y_TICKS)
    return {"axis": axes.x, "y_labels": [(y(value), axes.number(value)) for value in values]}
