"""Charts are well-formed SVG for any number of points and any numbers."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from otel_rollout.look.pages.charts import (
    Axes,
    ChartColumn,
    Point,
    Series,
    Slice,
    column_chart,
    line_chart,
    share_bar,
)
from otel_rollout.look.pages.scale import domain, short_number, thinned, ticks


def _parsed(chart: Markup) -> ElementTree.Element:
    """Return the chart's elements; every number in them is finite."""
    assert not re.search("nan|inf", chart)
    return ElementTree.fromstring(chart)


def _count(chart: Markup, name: str) -> int:
    return len(list(_parsed(chart).iter(name)))


def _lines(chart: Markup) -> list[int]:
    """Return the number of points of each line."""
    return [len(line.attrib["points"].split()) for line in _parsed(chart).iter("polyline")]


def test_line_has_a_gap_where_a_value_is_missing() -> None:
    """None, NaN and infinity end a line; the next value begins another one."""
    values = [1, 2, None, 3, 4, 5, math.nan, 6, math.inf, 7, 8, 10**400]
    points = [Point(step, value) for step, value in enumerate(values)]
    assert _lines(line_chart("reward", [Series("mean", points)])) == [2, 3, 2, 2]


def test_line_on_which_another_lies_is_seen_in_its_gaps() -> None:
    """The first of the lines that are mostly equal is drawn through; the others have ever longer gaps."""
    low, high = ([Point(step, step + more) for step in range(4)] for more in (0, 5))
    most = [*low[:3], Point(3, 1)]
    series = [Series(name, points) for name, points in (("a", low), ("b", high), ("c", most), ("d", low))]
    lines = _parsed(line_chart("shares", series)).iter("polyline")
    assert [line.attrib.get("stroke-dasharray") for line in lines] == [None, None, "4 8", "3 9"]


def test_point_shows_its_title_and_leads_to_its_page() -> None:
    """A point has a title and, if it has an address, a link."""
    points = [Point(1, 0.5, link="/step/1?a=1&b=2"), Point(2, 0.25)]
    chart = _parsed(line_chart("reward", [Series("mean", points)]))
    assert [each.text for each in chart.iter("title")] == ["mean · step 1: 0.5", "mean · step 2: 0.25"]
    assert [each.attrib["href"] for each in chart.iter("a")] == ["/step/1?a=1&b=2"]


def test_band_lies_around_the_line_with_its_gap() -> None:
    """A band without a gap is one shape with two points for each step."""
    points = [Point(step, step, step - 1, step + 1) for step in range(6)]
    points[3] = Point(3, 3)
    bands = list(_parsed(line_chart("reward", [Series("mean", points)])).iter("polygon"))
    assert [len(band.attrib["points"].split()) for band in bands] == [6, 4]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [0.5],
        [0],
        [-3, -3],
        [math.nan, -math.inf],
        [1e308, -1e308, 5],
        [1e-300, 5e-324],
        [1e15, 1e15 + 1],
    ],
)
@pytest.mark.parametrize("from_zero", [True, False])
def test_odd_numbers_make_a_well_formed_chart(values: list[float | None], from_zero: bool) -> None:
    """No points, one point, equal, huge and tiny numbers are drawn within the chart."""
    axes = Axes(from_zero=from_zero)
    points = [Point(step, value) for step, value in enumerate(values)]
    chart = line_chart("odd", [Series("mean", points)], axes)
    columns = column_chart(
        "odd", [Slice("a"), Slice("b")], [ChartColumn("1", [value, value]) for value in values]
    )
    for each in (chart, columns, share_bar([Slice("a", value=value) for value in values])):
        for element in _parsed(each).iter():
            for name in ("x", "y", "cx", "cy", "width", "height"):
                assert -60 <= float(element.attrib.get(name, 0)) <= 640


@pytest.mark.parametrize("step", [0, -1, 40, 2**63, 1e300])
def test_single_step_is_drawn_in_the_middle(step: float) -> None:
    """A step alone has a point in the middle of the chart."""
    chart = _parsed(line_chart("reward", [Series("mean", [Point(step, 1)])]))
    assert [circle.attrib["cx"] for circle in chart.iter("circle")] == ["340.0"]


def test_ten_thousand_points_are_thinned_and_an_outlier_stays() -> None:
    """A line of ten thousand points is drawn small, and with its only outlier."""
    points = [Point(step, 100.0 if step == 7777 else step % 3) for step in range(10_000)]
    chart = line_chart("reward", [Series("mean", points)])
    assert len(chart) < 100_000
    assert "mean · step 7777: 100" in chart


def test_hostile_text_is_shown_as_text() -> None:
    """Markup, control characters and marks that reorder text cannot act."""
    text = '</svg><script>alert(1)</script>\x1b\u202e"'
    charts = [
        line_chart(text, [Series(text, [Point(1, 1, link=text)]), Series("b", [])], Axes(text)),
        column_chart(text, [Slice(text), Slice("b")], [ChartColumn(text, [1, 2], text, text)], Axes(text)),
        share_bar([Slice(text, value=1)]),
    ]
    for chart in charts:
        assert _count(chart, "script") == 0
        assert not set("\x1b\u202e") & set(chart)


def test_columns_stand_on_one_another() -> None:
    """The parts of a column have the heights of their values; zero and missing parts are not drawn."""
    columns = [ChartColumn("1", [3, 1], link="/1"), ChartColumn("2", [None, 4]), ChartColumn("3", [0, 2])]
    chart = _parsed(column_chart("calls", [Slice("ok"), Slice("failed", "failure")], columns))
    drawn = [(each.attrib["class"], float(each.attrib["height"])) for each in chart.iter("rect")]
    assert drawn == [("user", 117.0), ("failure", 39.0), ("failure", 156.0), ("failure", 78.0)]
    assert next(each.text for each in chart.iter("title")) == "step 1\nok: 3\nfailed: 1"


def test_many_columns_become_means_of_neighbours() -> None:
    """Of a thousand columns, each that is drawn says which it stands for."""
    columns = [ChartColumn(str(step), [step]) for step in range(1, 1001)]
    titles = [each.text for each in _parsed(column_chart("n", [Slice("n")], columns)).iter("title")]
    assert len(titles) == 112
    assert titles[0] == "1–9, mean\nn: 5"


def test_share_bar_has_the_whole_width() -> None:
    """Parts fill the bar by their shares, and the legend names them."""
    chart = share_bar([Slice("generate", value=3), Slice("tool", "tool", 1), Slice("reward", value=0)])
    assert [each.attrib["width"] for each in _parsed(chart).iter("rect")] == ["480.0", "160.0"]
    assert re.findall(r">([a-z]+ \d)<", chart) == ["generate 3", "tool 1", "reward 0"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1234, "1234"), (12_345, "12.3k"), (999_900, "999.9k"), (2.5e6, "2.5M"),
     (-4e9, "-4G"), (1e300, "1.00e+300"), (0.00012, "0.00012")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    """A label has at most a few digits."""
    assert short_number(value) == text


def test_ticks_are_round() -> None:
    """Ticks are multiples of one, two or five; those of steps are integers."""
    assert ticks(0, 1, 4) == pytest.approx([0, 0.5, 1])
    assert ticks(1, 3, 8, is_integer=True) == [1, 2, 3]
    assert ticks(*domain([40.0], around=1), 8, is_integer=True) == [39, 40, 41]
    assert ticks(-0.3, 0.7, 4) == pytest.approx([0, 0.5])


def test_thinned_values_keep_their_order_and_their_ends() -> None:
    """The first and the last value stay, and gaps do."""
    values = [None if 300 <= index < 700 else float(index % 7) for index in range(1000)]
    kept = thinned(values, 100)
    assert kept == sorted(kept)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (0, 999)
    assert any(values[index] is None for index in kept)
