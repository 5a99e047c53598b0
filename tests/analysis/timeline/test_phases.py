"""Each instant of a trajectory belongs to one phase."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.look.analysis.timeline.lanes import lanes_in
from otel_rollout.look.analysis.timeline.phases import Segment, filled
from otel_rollout.table.query import Engine, dicts_of
from tests.table.tables import START_NS, row, written

KINDS = {"generate": "LLM", "tool": "TOOL", "reward": "EVALUATOR"}


class Call(NamedTuple):
    start: int
    end: int
    phase: str
    name: str


_calls = st.lists(
    st.builds(
        lambda start, length, phase, name: Call(start, start + length, phase, name),
        st.integers(-50, 150),
        st.integers(0, 80),
        st.sampled_from(sorted(KINDS)),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


def _lane(calls: list[Call], length: int) -> tuple[list[Segment], dict[str, Any]]:
    """Return the segments of a trajectory as the timeline has them, and its row of view ``phases``."""
    rows = [row("1", "a", name="rollout", kind="AGENT", start_ns=START_NS, duration_ns=length)]
    rows += [
        row(
            "1",
            f"b{number:x}",
            "a",
            name=call.name,
            kind=KINDS[call.phase],
            start_ns=START_NS + call.start,
            duration_ns=call.end - call.start,
        )
        for number, call in enumerate(calls)
    ]
    with tempfile.TemporaryDirectory() as directory:
        engine = Engine(written(Path(directory) / "table", rows).open())
        (lane,) = lanes_in(engine)
        (phases,) = dicts_of(engine.run("SELECT * FROM phases"))
    shift = [each._replace(start=each.start - START_NS, end=each.end - START_NS) for each in lane.segments]
    return shift, phases


def _shown(calls: list[Call], length: int) -> list[tuple[str, str]]:
    """Return phase and name of each unit of time, straight from the rule."""
    inside = [
        Call(max(call.start, 0), call.end if call.phase == "reward" else min(call.end, length), *call[2:])
        for call in calls
    ]
    inside = [call for call in inside if call.end > call.start]
    ends = [call.end for call in inside if call.phase == "reward"]
    shown = []
    taken_until = 0
    order = sorted(inside, key=lambda call: (call.start, -call.end, KINDS[call.phase], call.name))
    own: list[Call] = []
    for call in order:
        own.append(call._replace(start=max(call.start, taken_until)))
        taken_until = max(taken_until, call.end)
    for time in range(max([length, *ends])):
        first = next((call for call in own if call.start <= time < call.end), None)
        shown.append((first.phase, first.name) if first else ("waiting", ""))
    return shown


@given(_calls, st.integers(0, 100))
def test_phases_fill_a_trajectory_by_the_rule(calls, length):
    """The timeline's segments have no gap and no overlap, and add up to the view's phases."""
    segments, phases = _lane(calls, length)
    assert all(segment.end > segment.start for segment in segments)
    assert all(left.end == right.start for left, right in pairwise(segments))
    found = [(each.phase, each.name) for each in segments for _ in range(each.start, each.end)]
    assert found == _shown(calls, length)
    for phase in (*KINDS, "waiting"):
        taken = sum(each.end - each.start for each in segments if each.phase == phase)
        assert round(phases[f"{phase}_seconds"] * 1e9) == taken


@given(st.lists(st.integers(1, 20), max_size=6), st.integers(0, 100), st.integers(-20, 120))
def test_phases_of_a_running_trajectory_end_with_unrecorded_time(lengths, length, recorded_until):
    """What follows the last recorded span is in no other phase."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    parts = [Segment(start, start + each, "tool", "a") for start, each in zip(starts, lengths, strict=True)]
    segments = filled(parts, 0, length, recorded_until)
    known = min(max(recorded_until, 0), length)
    assert sum(segment.end - segment.start for segment in segments) == length
    assert [each for each in segments if each.phase == "unrecorded"] == (
        [Segment(known, length, "unrecorded")] if known < length else []
    )


def test_call_inside_another_one_is_part_of_it():
    """A judge's model call is part of the reward, and a tool's model call is part of the tool."""
    calls = [
        Call(0, 10, "tool", "browser"),
        Call(2, 5, "generate", "policy"),
        Call(20, 30, "generate", "judge"),
        Call(20, 35, "reward", "compute_score"),
    ]
    assert _lane(calls, 40)[0] == [
        Segment(0, 10, "tool", "browser"),
        Segment(10, 20, "waiting"),
        Segment(20, 35, "reward", "compute_score"),
        Segment(35, 40, "waiting"),
    ]
