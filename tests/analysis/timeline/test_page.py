"""The page of a step's time draws it, loads nothing, and interprets nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from otel_rollout.look.analysis.timeline.page import page_of_timeline
from otel_rollout.look.analysis.timeline.phase_drawing import WIDTH, Tick, boxes_of, ticks_of
from otel_rollout.look.analysis.timeline.phases import Segment
from otel_rollout.look.pages.rendering import Links
from tests.analysis.timeline.steps import SECOND, call, timed, trajectory


class _Linked(Links):
    def trajectory(self, reference):
        return f"/t/{reference}"


def drawings(page):
    """Return the SVG drawings of a page; each is well-formed XML."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def lanes_in(page):
    return [lane for lane in drawings(page)[1].iter("g") if lane.find("text") is not None]


def test_page_draws_each_trajectory(tmp_path):
    """A lane has a path per phase; the held time is marked; names are links where there are pages."""
    rows = [each for number in range(11) for each in trajectory(number, 0, 10, call("LLM", 0, 5))]
    rows += trajectory(11, 0, 30, call("TOOL", 0, 30, "browser"), status="error")
    found = timed(tmp_path, *rows)
    page = page_of_timeline(found)
    assert "The slowest of 12 held the step for 20.00 s: 20.00 s in tool <code>browser</code>." in page
    lanes = lanes_in(page)
    assert ["".join(lane.find("text").itertext()) for lane in lanes][:2] == ["12/1/3", "12/1/2"]
    assert [[path.get("class") for path in lane.iter("path")] for lane in lanes[:2]] == [
        ["tool"],
        ["generate", "waiting"],
    ]
    assert lanes[0].find("path").get("d") == "M0 1h1000v9h-1000z"
    assert lanes[0].find("text").get("class").split() == ["held", "failed"]
    assert "Shaded: all but those in bold have ended. Red: failed." in page
    window = drawings(page)[1].find("rect")
    assert (window.get("x"), window.get("width")) == ("333.33", "666.67")
    assert "<a " not in page
    assert 'href="/t/12/1/3"' in page_of_timeline(found, _Linked())


def test_page_draws_a_sample_of_many(tmp_path):
    """The last ones are all drawn, the others evenly, and the page says so."""
    rows = [each for number in range(400) for each in trajectory(number, 0, 10 + number)]
    page = page_of_timeline(timed(tmp_path, *rows))
    assert len(lanes_in(page)) == 160
    assert "160 of 400: the 60 that ended last, and an even sample of the others." in page


def test_hostile_text_is_shown(tmp_path):
    """Names of tools, rows and runs are text."""
    odd = "<script>alert(1)</script>\x1b]0;\u202e"
    rows = trajectory(
        0, 0, 10, call("TOOL", 1, 9, odd), call("TOOL", 9, 10, "x"), resource='{"host.name": "<b>"}'
    )
    page = page_of_timeline(timed(tmp_path, *[{**each, "sample_index": odd, "run_id": odd} for each in rows]))
    assert "<script" not in page
    assert not re.search("[\x1b\u202e]", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert len(drawings(page)) == 2


@pytest.mark.parametrize("end", [0, 10])
def test_step_of_one_empty_trajectory_has_a_page(tmp_path, end):
    """Its wall time may be nothing."""
    assert "There is one trajectory" in page_of_timeline(timed(tmp_path, *trajectory(0, 0, end)))


def test_many_segments_become_few_boxes():
    """Each box shows the phase that lasts longest in it, and the boxes fill the trajectory."""
    segments = [
        Segment(start, start + length, phase)
        for number in range(5_000)
        for start, length, phase in ((number * 10, 7, "tool"), (number * 10 + 7, 3, "waiting"))
    ]
    boxes = boxes_of(segments, 0, 100_000)
    assert len(boxes) == 250
    assert {box.phase for box in boxes} == {"tool"}
    assert sum(box.width for box in boxes) == pytest.approx(WIDTH / 2)
    assert boxes[0].x == 0


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (50, ["0", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        (0.008, ["0", "1.0 ms", "2.0 ms", "3.0 ms", "4.0 ms", "5.0 ms", "6.0 ms", "7.0 ms", "8.0 ms"]),
        (130, ["0", "20 s", "40 s", "1 min 0 s", "1 min 20 s", "1 min 40 s", "2 min 0 s"]),
        (0, []),
    ],
)  # fmt: skip
def test_ticks_are_round(seconds, labels):
    """An axis has at most nine labels."""
    ticks = ticks_of(round(seconds * SECOND))
    assert [tick.label for tick in ticks] == labels
    assert ticks[:1] == ([Tick(0.0, "0")] if seconds else [])
