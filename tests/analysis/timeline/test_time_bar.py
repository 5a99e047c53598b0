"""The bar of one trajectory's time comes from its spans, of whatever source."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from otel_rollout.look.analysis.timeline.phase_drawing import Tick, Total, time_bar_of
from otel_rollout.look.conversation.trajectories import trajectory_in
from otel_rollout.look.pages import rendering
from otel_rollout.table.query import Engine
from tests.analysis.timeline.steps import SECOND, at, call, trajectory
from tests.table.tables import score, written


def bar_of(path: Path, *rows):
    engine = Engine(written(path / "table", rows).open())
    return time_bar_of(engine.narrowed(trajectory_in(engine, "0" * 32).rows))


def rendered(bar) -> str:
    template = '{% import "time_bar.html" as time %}{{ time.style() }}{{ time.time_bar(bar) }}'
    return rendering._environment().from_string(template).render(bar=bar)


def test_bar_shows_phases_in_order(tmp_path):
    """The boxes fill the time; a score that came later is no part of it."""
    late = score("0", "e", 1.0, step=12, start_ns=at(900), duration_ns=5 * SECOND, score_origin="outside")
    bar = bar_of(
        tmp_path, *trajectory(0, 0, 10, call("LLM", 1, 4, "generate"), call("TOOL", 5, 10, "web")), late
    )
    assert [(*box[:3], title) for box, title in bar.boxes] == [
        (0.0, 100.0, "waiting", "outside of any call: 1.00 s, at the start"),
        (100.0, 300.0, "generate", "generate generate: 3.00 s, after 1.00 s"),
        (400.0, 100.0, "waiting", "outside of any call: 1.00 s, after 4.00 s"),
        (500.0, 500.0, "tool", "tool web: 5.00 s, after 5.00 s"),
    ]
    totals = ("generate", "3.00 s"), ("tool", "5.00 s"), ("waiting", "2.00 s")
    assert bar.totals == tuple(Total(name, name, text) for name, text in totals)
    assert bar.ticks[1] == Tick(200.0, "2 s")
    page = rendered(bar)
    assert page.count("<rect") == 4
    assert '<text x="1000.0" y="30" text-anchor="end">10 s</text>' in page, "else its end is cut off"
    assert '<i class="tool"></i>tool 5.00 s' in page


def test_bar_of_ten_thousand_spans_is_short(tmp_path):
    """Each box shows what lasts longest in it."""
    calls = [call("LLM" if number % 2 else "TOOL", number, number + 1, "t") for number in range(10_000)]
    bar = bar_of(tmp_path, *trajectory(0, 0, 10_000, *calls))
    assert len(bar.boxes) == 250
    assert bar.boxes[0][1].startswith("mostly ")
    assert [total.text for total in bar.totals] == ["1 h 23 min", "1 h 23 min"]


def test_bar_of_odd_trajectories(tmp_path):
    """One that runs lasts until its last span; one without time or spans has no bar."""
    running = bar_of(tmp_path / "a", *trajectory(0, 0, 99, call("LLM", 1, 4))[1:])
    assert [box.phase for box, _ in running.boxes] == ["generate"]
    assert bar_of(tmp_path / "b", *trajectory(0, 0, 0)) is None
    assert bar_of(tmp_path / "c", *trajectory(0, 0, 0, start_ns=0)) is None
    assert isinstance(rendered(None), (str, Markup))


def test_hostile_names_are_escaped(tmp_path):
    """A tool's name is text in the bar."""
    page = rendered(bar_of(tmp_path, *trajectory(0, 0, 10, call("TOOL", 1, 4, "<script>\x1b"))))
    assert "&lt;script&gt;␛" in page
    assert "<script" not in page
