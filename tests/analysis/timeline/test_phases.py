"""Each instant of a trajectory belongs to one phase."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.analysis.timeline.phases import Call, Segment, segments_of

_calls = st.lists(
    st.builds(
        lambda start, length, phase, name: Call(start, start + length, phase, name),
        st.integers(-50, 150),
        st.integers(0, 80),
        st.sampled_from(["generate", "tool", "reward"]),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


def _shown(calls: list[Call], start: int, end: int) -> list[tuple[str, str]]:
    """Return phase and name of each unit of time, straight from the rule."""
    shown = []
    for time in range(start, end):
        running = [call for call in calls if call.start <= time < call.end]
        first = min(running, key=lambda call: (call.start, -call.end, call.phase, call.name), default=None)
        shown.append((first.phase, first.name) if first else ("waiting", ""))
    return shown


@given(_calls, st.integers(0, 100))
def test_phases_fill_a_trajectory_by_the_rule(calls, length):
    """The segments have no gap and no overlap, add up to the duration, and are those of the first call."""
    segments = segments_of(calls, 0, length)
    assert all(segment.end > segment.start for segment in segments)
    assert all(left.end == right.start for left, right in pairwise(segments))
    assert sum(segment.end - segment.start for segment in segments) == length
    found = [(each.phase, each.name) for each in segments for _ in range(each.start, each.end)]
    assert found == _shown(calls, 0, length)


@given(_calls, st.integers(0, 100), st.integers(-20, 120))
def test_phases_of_a_running_trajectory_end_with_unrecorded_time(calls, length, recorded_until):
    """What follows the last recorded span is in no other phase."""
    segments = segments_of(calls, 0, length, recorded_until)
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
    assert segments_of(calls, 0, 40) == [
        Segment(0, 10, "tool", "browser"),
        Segment(10, 20, "waiting"),
        Segment(20, 35, "reward", "compute_score"),
        Segment(35, 40, "waiting"),
    ]
