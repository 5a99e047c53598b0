"""The trace follows Chrome's trace-event format strictly, for any spans."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.look.analysis.timeline import perfetto
from otel_rollout.look.analysis.timeline.lanes import Lane, Name, TimedSpan
from tests.analysis.timeline.steps import call, process, timed, trajectory

_KEYS = {
    "M": {"ph", "name", "ts", "pid", "args"},
    "X": {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"},
    "C": {"ph", "name", "ts", "pid", "args"},
}
"""Phase of an event → the keys that the format wants."""
_OPTIONAL = {"M": {"tid"}, "X": {"cname"}, "C": set()}
_METADATA = {
    "process_name": {"name": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}
"""Name of a metadata event → its argument."""
_COLOURS = {
    *("thread_state_running", "thread_state_iowait", "rail_animation", "grey", "terrible"),
    *("yellow", "thread_state_runnable", "good"),
}
"""Of the format's reserved colour names those that are used."""


def check(trace):
    """Check a whole trace against the format; return its slices."""
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names, slices = defaultdict(set), []
    for event in trace["traceEvents"]:
        phase = event["ph"]
        assert _KEYS[phase] <= event.keys() <= _KEYS[phase] | _OPTIONAL[phase], event
        assert all(type(event[key]) is int and event[key] >= 0 for key in ("ts", "pid") if key in event)
        assert event["pid"] > 0
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["args"], dict)
        if phase == "M":
            wanted = _METADATA[event["name"]]
            assert {key: type(value) for key, value in event["args"].items()} == wanted
            assert ("tid" in event) == event["name"].startswith("thread")
            names[event["name"]].add((event["pid"], event.get("tid")))
        elif phase == "C":
            assert all(type(value) is int and value >= 0 for value in event["args"].values())
        else:
            assert type(event["tid"]) is int
            assert event["tid"] > 0
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
            assert event.get("cname", "grey") in _COLOURS
            slices.append(event)
    threads = {(event["pid"], event["tid"]) for event in slices}
    assert threads == names["thread_name"] == names["thread_sort_index"]
    assert len({tid for _, tid in threads}) == len(threads)
    pids = {pid for pid, _ in names["process_name"]}
    assert {pid for pid, _ in threads} <= pids
    assert not pids & {tid for _, tid in threads}
    for thread in threads:
        check_nesting([event for event in slices if (event["pid"], event["tid"]) == thread])
    return slices


def check_nesting(events):
    """Check that slices of a thread, in their order, are nested or apart."""
    open_ends = []
    for before, event in itertools.pairwise([events[0], *events]):
        assert before["ts"] <= event["ts"]
    for event in events:
        while open_ends and open_ends[-1] <= event["ts"]:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)


def trace_of(found, path):
    perfetto.write(found, path)
    return json.loads(path.read_bytes())


def test_trace_of_a_step(tmp_path):
    """A process per worker, a thread per trajectory, and one more for a call beside another."""
    found = timed(
        tmp_path,
        *trajectory(
            0, 0, 10,
            call("LLM", 1, 5, "generate", tokens_in=7, tokens_out=3),
            call("TOOL", 5, 8, "browser", status="error", error_type="OSError", error_message="too\x1b late"),
            call("TOOL", 6, 9, "python"),
            resource=process(5, "node-1"),
        ),
        *trajectory(1, 2, 4),
    )  # fmt: skip
    trace = trace_of(found, tmp_path / "trace.json")
    slices = check(trace)
    named = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    }
    assert named == {
        (1, None): "Step 12",
        (2, None): "pid 5 on node-1",
        (2, 3): "12/0/0",
        (2, 4): "12/0/0, parallel calls 1",
        (1, 5): "12/0/1",
    }
    assert [(event["name"], event["cat"], event["ts"], event["dur"], event["tid"]) for event in slices] == [
        ("agent_loop", "agent", 0, 10_000_000, 3),
        ("generate", "generate", 1_000_000, 4_000_000, 3),
        ("browser", "tool", 5_000_000, 3_000_000, 3),
        ("python", "tool", 6_000_000, 3_000_000, 4),
        ("agent_loop", "agent", 2_000_000, 2_000_000, 5),
    ]
    assert slices[1]["args"] == {
        "trajectory": "12/0/0",
        "kind": "LLM",
        "tokens_in": 7,
        "tokens_out": 3,
        "span_id": "0c0".rjust(16, "0"),
    }
    assert (slices[2]["args"]["error"], slices[2]["cname"]) == ("OSError: too␛ late", "terrible")
    counted = [event["args"]["running"] for event in trace["traceEvents"] if event["ph"] == "C"]
    assert counted == [1, 2, 1, 0]


_ids = st.sampled_from([f"{number:016x}" for number in range(8)])
_spans = st.lists(
    st.builds(
        lambda span_id, parent, start, length: TimedSpan(
            span_id, parent, "TOOL", "\x00name", start, start + length, "", None, None, None
        ),
        _ids,
        st.none() | _ids,
        st.integers(0, 9000),
        st.integers(0, 9000),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda span: span.span_id,
)


@given(_spans)
def test_any_spans_are_nested_or_apart(spans):
    """Parents may be missing, shorter than their children, or children of their children."""
    ordered = tuple(sorted(spans, key=lambda span: (span.start, -span.end)))
    lane = Lane("1", Name("1/7/0", "1/7/0"), "ok", 0, 1, (), ordered, 0, None)
    placed = perfetto.placed_in(lane)
    assert [span for span, _ in placed] == list(ordered)
    threads = {thread for _, thread in placed}
    assert threads == set(range(len(threads)))
    for wanted in threads:
        events = [
            {"ts": span.start // 1000, "dur": span.end // 1000 - span.start // 1000}
            for span, thread in placed
            if thread == wanted
        ]
        check_nesting(events)


@pytest.mark.parametrize("count", [1, 2_000])
def test_parallel_calls_have_threads_of_their_own(tmp_path, count):
    """Two thousand calls at once are two thousand threads, placed without comparing all of them."""
    calls = [call("TOOL", 1 + number / count, 3 + number / count, "t") for number in range(count)]
    slices = check_quickly(trace_of(timed(tmp_path, *trajectory(0, 0, 10, *calls)), tmp_path / "trace.json"))
    assert len(slices) == count + 1
    assert len({event["tid"] for event in slices}) == count


def check_quickly(trace):
    """Return the slices of a trace, each thread's nesting checked."""
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads[event["tid"]].append(event)
    for events in threads.values():
        check_nesting(events)
    return [event for events in threads.values() for event in events]


def test_hostile_names_are_text(tmp_path):
    """Control characters are visible, and an empty name has the span's category."""
    odd = call("TOOL", 1, 2, '\x1b[31m","ph":"B"</script>\n')
    unnamed = call("TOOL", 2, 3) | {"name": None, "tool_name": None, "kind": None}
    slices = check(trace_of(timed(tmp_path, *trajectory(0, 0, 10, odd, unnamed)), tmp_path / "trace.json"))
    assert [event["name"] for event in slices] == ["agent_loop", '␛[31m","ph":"B"</script>␊', "operation"]


def test_trace_is_compressed_by_its_suffix(tmp_path):
    """Perfetto opens both."""
    found = timed(tmp_path, *trajectory(0, 0, 10, call("LLM", 1, 5)))
    perfetto.write(found, tmp_path / "trace.json.gz")
    check(json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())))
