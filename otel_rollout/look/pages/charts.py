"""Draw plain SVG charts: lines over steps, columns, one bar of shares.

A chart has no script. Its colours are the page's, so it follows the light and the dark theme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal

from markupsafe import Markup, escape

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.pages.scale import Scale, domain, finite, short_number, thinned, ticks

Colour = Literal["user", "assistant", "tool", "evaluator", "failure", "system"]
"""A colour of the page's style: blue, green, amber, violet, red, grey."""

_WIDTH: Final = 640
_HEIGHT: Final = 200
"""Units of a chart's drawing; the page scales it to the width that it has."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 34
"""Margins of the drawing, with room for the labels of the axes."""
_Y_TICKS: Final = 4
_X_TICKS: Final = 8
_MAX_POINTS: Final = 240
"""Points that are drawn of a line at most; of more, those that keep its shape."""
_MIN_COLUMNS: Final = 3
"""Columns that a chart has room for at least: one alone is no wall."""
_MAX_COLUMNS: Final = 120
"""Columns that are drawn at most; of more, each stands for several with their mean."""


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
        label: what stands below it.
        values: the value of each part, as the chart names them; None is nothing.
        title: what a browser shows beside the pointer, before the values.
        link: address of a page.
    """

    label: str
    values: Sequence[float | None]
    title: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of each column, or of one bar; ``value`` counts in a bar alone."""

    name: str
    colour: Colour = "user"
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Axes:
    """What the axes of a chart say.

    Attributes:
        x: label of the horizontal axis.
        number: text of a value, such as a duration.
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
    x = Scale(*domain(xs, around=1.0), _LEFT, _WIDTH - _RIGHT)
    y = Scale(*domain(ys, axes.from_zero), _HEIGHT - _BOTTOM, _TOP)
    is_integer = all(each.is_integer() for each in xs)
    inside = [*_y_axis(y, axes), *_x_axis(x, axes.x, is_integer)]
    for each, points in zip(series, drawn, strict=True):
        inside.append(f'<g class="{each.colour}">')
        inside += _line(each.name, points, x, y, axes)
        inside.append("</g>")
    if not ys:
        inside.append(_text(_WIDTH / 2, _HEIGHT / 2, "no values", "middle"))
    legend = [(each.name, each.colour) for each in series] if len(series) > 1 else []
    return _figure(title, legend, inside)


def column_chart(
    title: str, parts: Sequence[Slice], columns: Sequence[ChartColumn], axes: Axes = _AXES
) -> Markup:
    """Draw a column for each entry, of at least one, whose parts stand on one another.

    A value below zero is drawn as zero.
    """
    columns = _merged(columns)
    heights = [[max(0.0, finite(value) or 0.0) for value in column.values] for column in columns]
    y = Scale(*domain([min(sum(each), 1e300) for each in heights], True), _HEIGHT - _BOTTOM, _TOP)
    inside = _y_axis(y, axes)
    room = (_WIDTH - _LEFT - _RIGHT) / max(_MIN_COLUMNS, len(columns))
    every = -(-len(columns) // _X_TICKS)
    for index, (column, values) in enumerate(zip(columns, heights, strict=True)):
        left, base = _LEFT + index * room, 0.0
        rectangles = []
        for part, value in zip(parts, values, strict=True):
            top, bottom = y(base + value), y(base)
            base += value
            if value:
                rectangles.append(
                    f'<rect class="{part.colour}" x="{left + room * 0.1:.1f}" y="{top}" '
                    f'width="{room * 0.8:.1f}" height="{max(bottom - top, 0.5):.1f}"/>'
                )
        inside.append(_linked("".join(rectangles), column.link, _said(column, parts, values, axes)))
        if index % every == 0:
            inside.append(_text(left + room / 2, _HEIGHT - _BOTTOM + 14, column.label, "middle"))
    inside.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, axes.x, "middle"))
    legend = [(part.name, part.colour) for part in parts] if len(parts) > 1 else []
    return _figure(title, legend, inside)


def share_bar(parts: Sequence[Slice], axes: Axes = _AXES) -> Markup:
    """Draw one horizontal bar whose parts are the shares of a whole, with a legend."""
    known = [(part, max(0.0, finite(part.value) or 0.0)) for part in parts]
    whole = sum(min(value, 1e290) for _, value in known)
    left, inside = 0.0, []
    for part, value in known:
        width = _WIDTH * min(value, 1e290) / whole if whole else 0.0
        title = f"{part.name}: {axes.number(value)}"
        rectangle = f'<rect class="{part.colour}" x="{left:.1f}" y="0" width="{width:.1f}" height="18"/>'
        inside += [_linked(rectangle, None, title)] if width else []
        left += width
    legend = [(f"{part.name} {axes.number(value)}", part.colour) for part, value in known]
    return _figure("", legend, inside, 18)


def _line(name: str, points: Sequence[Point], x: Scale, y: Scale, axes: Axes) -> Iterator[str]:
    """Yield the band, the line and the points of a series."""
    ordered = sorted(points, key=lambda point: point.x)
    values = [finite(point.y) for point in ordered]
    kept = [ordered[index] for index in thinned(values, _MAX_POINTS)]
    yield from _band(kept, x, y)
    places = [None if (value := finite(point.y)) is None else (x(float(point.x)), y(value)) for point in kept]
    yield from _polylines(places)
    for point, place in zip(kept, places, strict=True):
        if place is None or point.y is None:
            continue
        title = f"{name} · {axes.x} {short_number(point.x)}: {axes.number(point.y)}"
        yield _linked(f'<circle cx="{place[0]}" cy="{place[1]}" r="2.2"/>', point.link, title)


def _band(points: Sequence[Point], x: Scale, y: Scale) -> Iterator[str]:
    """Yield a shape for each part of a band without a gap."""
    upper: list[str] = []
    lower: list[str] = []
    for point in [*points, None]:
        low, high = (None, None) if point is None else (finite(point.low), finite(point.high))
        if point is not None and low is not None and high is not None:
            place = x(float(point.x))
            upper.append(f"{place},{y(high)}")
            lower.append(f"{place},{y(low)}")
        elif upper:
            yield f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/>'
            upper, lower = [], []


def _polylines(places: Sequence[tuple[float, float] | None]) -> Iterator[str]:
    """Yield a line for each part without a gap; a point alone is a short line."""
    for is_gap, run in groupby(places, lambda place: place is None):
        if not is_gap:
            part = [f"{x},{y}" for x, y in filter(None, run)]
            yield f'<polyline points="{" ".join(part if len(part) > 1 else part * 2)}"/>'


def _y_axis(y: Scale, axes: Axes) -> list[str]:
    lines = []
    for value in ticks(y.low, y.high, _Y_TICKS):
        place = y(value)
        lines.append(f'<path class="grid" d="M{_LEFT} {place}H{_WIDTH - _RIGHT}"/>')
        lines.append(_text(_LEFT - 6, place + 4, axes.number(value), "end"))
    return lines


def _x_axis(x: Scale, label: str, is_integer: bool) -> list[str]:
    values = ticks(x.low, x.high, _X_TICKS, is_integer)
    labels = [_text(x(value), _HEIGHT - _BOTTOM + 14, short_number(value), "middle") for value in values]
    return [*labels, _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, label, "middle")]


def _merged(columns: Sequence[ChartColumn]) -> Sequence[ChartColumn]:
    """Return columns that have room: of many, each is the mean of several neighbours."""
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
    """Return a column's numbers, a line for each part."""
    lines = [f"{part.name}: {axes.number(value)}" for part, value in zip(parts, values, strict=True)]
    return "\n".join([column.title or f"{axes.x} {column.label}", *lines])


def _figure(
    title: str, legend: Sequence[tuple[str, str]], inside: Sequence[str], height: int = _HEIGHT
) -> Markup:
    keys = "".join(f'<span class="key {colour}">{_safe(name)}</span>' for name, colour in legend)
    caption = f"<figcaption><b>{_safe(title)}</b> {keys}</figcaption>" if title or keys else ""
    return Markup(  # noqa: S704 (every text in it is escaped)
        f'<figure class="chart">{caption}<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{_safe(title)}">{"".join(inside)}</svg></figure>'
    )


def _linked(shape: str, link: str | None, title: str) -> str:
    """Return a shape with its title, as a link where there is an address."""
    titled = f"<title>{_safe(title, keep_lines=True)}</title>{shape}"
    return f"<g>{titled}</g>" if link is None else f'<a href="{_safe(link)}">{titled}</a>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_safe(text)}</text>'


def _safe(text: str, keep_lines: bool = False) -> str:
    lines = text.split("\n") if keep_lines else [text]
    return "\n".join(str(escape(in_one_line(line))) for line in lines)
