"""Phases of a request, placed by the times that an engine says."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base import semconv
from otel_rollout.otlp.engine_phases import PHASES, Phase, phase_lines, phases_of
from tests.spool_reader import Recorded, read_lines

START = 1_800_000_000_000_000_000
ID = bytes(range(1, 9))
SECOND = 1_000_000_000
TIMES = (semconv.LATENCY_QUEUE, semconv.LATENCY_PREFILL, semconv.LATENCY_DECODE)
OTHERS = (semconv.LATENCY_FIRST_TOKEN, semconv.LATENCY_TOTAL)


def said(queue: Any, prefill: Any, decode: Any, first_token: Any = None, total: Any = None) -> dict[str, Any]:
    """Return the attributes with which vLLM says these times; None is not said."""
    values = zip((*TIMES, *OTHERS), (queue, prefill, decode, first_token, total), strict=True)
    return {name: value for name, value in values if value is not None}


def found(attributes: dict[str, Any], start_ns: int = START, span_id: bytes = ID) -> list[Phase]:
    """Return the phases of a request."""
    return phases_of("llm_request", span_id, attributes, start_ns)


def offsets(phases: list[Phase]) -> list[tuple[str, float, float]]:
    """Return name, start and end of phases, in seconds after the request's arrival."""
    return [(p.name, (p.start_ns - START) / SECOND, (p.end_ns - START) / SECOND) for p in phases]


def test_phases_lie_around_the_first_token() -> None:
    """Prefill ends with the first token, and what is before the queue is the engine's front end."""
    phases = found(said(1.0, 0.5, 2.0, first_token=1.75, total=4.0))
    assert offsets(phases) == [("queue", 0.25, 1.25), ("prefill", 1.25, 1.75), ("decode", 1.75, 3.75)]


def test_phases_that_reach_past_the_end_are_moved_before_it() -> None:
    """The front end saw the first token late: the phases end with the request, and keep their lengths."""
    phases = found(said(1.0, 0.5, 2.0, first_token=2.25, total=4.0))
    assert offsets(phases) == [("queue", 0.5, 1.5), ("prefill", 1.5, 2.0), ("decode", 2.0, 4.0)]


def test_phases_that_begin_before_the_arrival_are_moved_after_it() -> None:
    """No phase begins before the request's arrival, even if its times are longer than the request."""
    for first_token, total in ((1.0, 4.0), (1.0, 2.0), (None, 2.0), (None, None), (math.nan, -1.0)):
        phases = found(said(1.0, 0.5, 2.0, first_token, total))
        assert offsets(phases) == [("queue", 0.0, 1.0), ("prefill", 1.0, 1.5), ("decode", 1.5, 3.5)]


@pytest.mark.parametrize(
    ("first_token", "total", "queue", "prefill", "decode", "begin"),
    [
        (0.0303283, 0.0421031, 0.0000598, 0.0175688, 0.0147822, 0.0096922),  # chat: 3 ms past its end
        (0.3996987, 0.6019478, 0.0000406, 0.1503436, 0.3618517, 0.0897119),  # one of three replies: 60 ms
        (0.0214600, 0.0453400, 0.0000300, 0.0162100, 0.0229700, 0.0052200),  # inside its request
    ],
)
def test_times_that_vllm_said_give_phases_inside_the_request(
    first_token: float, total: float, queue: float, prefill: float, decode: float, begin: float
) -> None:
    """The front end sees tokens late; its smaller delay, of the first and last token, places the phases."""
    phases = found(said(queue, prefill, decode, first_token, total))
    assert (phases[0].start_ns - START) / SECOND == pytest.approx(begin, abs=1e-6)
    assert phases[0].start_ns > START
    assert phases[-1].end_ns - START <= round(total * SECOND)


def test_older_version_that_says_the_queue_alone_gives_the_queue() -> None:
    """vLLM before 0.10 says no time of prefill and decode; nothing is invented."""
    attributes = said(1.0, None, None, first_token=1.5, total=4.0) | {"gen_ai.latency.time_in_scheduler": 0.1}
    assert offsets(found(attributes)) == [("queue", 0.0, 1.0)]
    assert offsets(found(said(1.0, 0.5, None, first_token=1.75))) == [
        ("queue", 0.25, 1.25),
        ("prefill", 1.25, 1.75),
    ]
    assert found(said(None, 0.5, 2.0, first_token=1.75)) == []


def test_another_span_has_no_phases() -> None:
    """Only the span of an engine's request is read, also if another one has the times."""
    attributes = said(1.0, 0.5, 2.0, first_token=1.75)
    assert phases_of("chat", ID, attributes, START) == []
    assert found({}) == []


@pytest.mark.parametrize(
    "wrong", [math.nan, math.inf, -math.inf, -0.1, 1e9, 10**400, "0.5", True, [1.0], b"1"]
)
def test_what_is_no_time_gives_no_phase(wrong: Any) -> None:
    """A phase whose time is no time of a request is not made, nor is a phase after it."""
    for number, name in enumerate(TIMES):
        attributes = said(1.0, 0.5, 2.0, first_token=1.75) | {name: wrong}
        assert [phase.name for phase in found(attributes)] == list(PHASES[:number])


SECONDS = st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.floats(0, 1000)


@given(
    st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
    st.integers(0, (1 << 64) - 1),
    st.binary(min_size=8, max_size=8),
)
def test_any_times_give_phases_in_order_or_none(times: Any, start_ns: int, span_id: bytes) -> None:
    """Phases follow each other without a gap, begin at or after the arrival, and are as long as said."""
    attributes = said(*times)
    phases = found(attributes, start_ns, span_id)
    assert phases == found(attributes, start_ns, span_id)
    assert [phase.name for phase in phases] == list(PHASES[: len(phases)])
    assert len({span_id, *(phase.span_id for phase in phases)}) == 1 + len(phases)
    for phase, following in pairwise(phases):
        assert phase.end_ns == following.start_ns
    for phase, seconds in zip(phases, times, strict=False):
        assert phase.end_ns - phase.start_ns == round(seconds * SECOND)
    if phases:
        assert 0 < start_ns <= phases[0].start_ns <= phases[-1].end_ns < 1 << 63


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0, 1), st.floats(0, 1))
def test_phases_inside_the_request_stay_around_the_first_token(
    queue: float, prefill: float, decode: float, before: float, after: float
) -> None:
    """If the times fit into the request, the phases lie inside it, and prefill ends at the first token."""
    first_token = before + queue + prefill
    total = first_token + decode + after
    phases = found(said(queue, prefill, decode, first_token, total))
    rounding = 50  # ns, of sums of floats
    assert abs(phases[1].end_ns - START - first_token * SECOND) <= rounding
    assert phases[0].start_ns >= START
    assert phases[2].end_ns - START <= total * SECOND + rounding


def test_lines_of_phases_are_spans_of_ours_below_the_engines() -> None:
    """A line has the trajectory's identity, the phase's name, and the flags of the engine's span."""
    phases = found(said(1.0, 0.5, 2.0, first_token=1.75))
    identity = b'{"key":"rollout.step","value":{"intValue":"3"}}'
    for identity_, expected in ((identity, {"rollout.step": 3}), (b"", {})):
        lines = phase_lines(phases, bytes([1] * 16), ID, 0x301, identity_)
        head = b'{"resourceSpans":[{"resource":{"attributes":[]},"scopeSpans":[{'
        spans: list[Recorded] = read_lines([head + line for line in lines])
        for span, phase in zip(spans, phases, strict=True):
            assert (span.scope, span.name, span.span.span_id) == ("otel_rollout", phase.name, phase.span_id)
            assert (span.span.trace_id, span.span.parent_span_id) == (bytes([1] * 16), ID)
            assert span.span.start_time_unix_nano == phase.start_ns
            assert span.span.end_time_unix_nano == phase.end_ns
            assert (span.span.kind, span.span.flags) == (1, 0x101)
            assert span.attributes == {**expected, "rollout.engine.phase": phase.name}
