"""Times of an engine that come with a response: a span of the request, and its phases."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_rollout import record_engine_times, rollout_trace_attr, rollout_trace_op
from tests.spool_reader import Recorded, tree

RESPONSE = {
    "time_to_first_token_ms": 30.0,
    "generation_time_ms": 200.0,
    "queue_time_ms": 120.0,
    "mean_itl_ms": 6.5,
    "tokens_per_second": 90.0,
    "speculative_decoding": None,
}
"""``metrics`` of a response of vLLM's server."""
PHASES = ["queue", "prefill", "decode"]
Read = Callable[[], list[Recorded]]


def state(**changes: Any) -> SimpleNamespace:
    """Return what ``RequestOutput.metrics`` has, of a request that arrived half a second ago."""
    points = {"queued_ts": 50.0, "scheduled_ts": 50.12, "first_token_ts": 50.15, "last_token_ts": 50.35}
    known = {"arrival_time": time.time() - 0.5, "first_token_latency": 0.16, "num_preemptions": 0}
    return SimpleNamespace(**{**points, **known, **changes})


@rollout_trace_op(kind="LLM")
def generate(metrics: Any, request_id: Any = None) -> str:
    """Stand for a call of a server that says its times."""
    record_engine_times(metrics, request_id)
    return "answer"


def recorded_with(recorded: Read, metrics: Any, request_id: Any = None) -> dict[str, Recorded]:
    """Return the spans of a trajectory with one call, by name."""
    with rollout_trace_attr(step=1):
        generate(metrics, request_id)
    return {span.name: span for span in recorded()}


@pytest.mark.parametrize("make", [lambda: RESPONSE, lambda: SimpleNamespace(**RESPONSE), state])
def test_times_become_a_request_with_phases_below_the_call(recorded: Read, make: Any) -> None:
    """A response's dict, the client's object and RequestOutput.metrics give the same tree and times."""
    found = recorded_with(recorded, make(), "cmpl-7")
    assert tree(list(found.values())) == {"rollout_trace": [{"generate": [{"llm_request": PHASES}]}]}
    request = found["llm_request"]
    assert request.scope == "otel_rollout"
    assert request.attributes["gen_ai.request.id"] == "cmpl-7"
    seconds = [found[name].span.end_time_unix_nano - found[name].span.start_time_unix_nano for name in PHASES]
    assert [length / 1e9 for length in seconds] == pytest.approx([0.12, 0.03, 0.2], abs=1e-6)
    assert request.attributes["gen_ai.latency.time_in_model_inference"] == pytest.approx(0.23)
    assert all(span.attributes["rollout.step"] == 1 for span in found.values())


def test_request_ends_when_its_response_is_there(recorded: Read) -> None:
    """A response says durations alone; the request is placed before the call of the function."""
    before = time.time_ns()
    found = recorded_with(recorded, RESPONSE)
    request = found["llm_request"].span
    assert before <= request.end_time_unix_nano <= time.time_ns()
    assert (request.end_time_unix_nano - request.start_time_unix_nano) / 1e9 == pytest.approx(0.35)


def test_request_of_an_engine_here_begins_with_its_arrival(recorded: Read) -> None:
    """RequestOutput.metrics has the arrival; one that no clock shows now is not believed."""
    metrics = state()
    found = recorded_with(recorded, metrics)
    assert found["llm_request"].span.start_time_unix_nano == pytest.approx(
        metrics.arrival_time * 1e9, abs=1e3
    )
    with rollout_trace_attr(step=2):
        generate(state(arrival_time=12.0))
    late = [
        span for span in recorded() if span.name == "llm_request" and span.attributes["rollout.step"] == 2
    ]
    assert time.time_ns() - late[0].span.start_time_unix_nano < 60 * 10**9


def test_phases_that_are_unknown_are_left_out(recorded: Read) -> None:
    """A request that was aborted while it waited has no prefill and no decode."""
    waiting = state(first_token_ts=0.0, last_token_ts=0.0, first_token_latency=0.0)
    assert set(recorded_with(recorded, waiting)) == {"rollout_trace", "generate", "llm_request", "queue"}


@pytest.mark.parametrize("metrics", [None, {}, "120 ms", 7, object(), {"queue_time_ms": None}])
def test_metrics_without_times_are_one_warning(
    recorded: Read, caplog: pytest.LogCaptureFixture, metrics: Any
) -> None:
    """The warning says which option makes vLLM say its times."""
    assert set(recorded_with(recorded, metrics)) == {"rollout_trace", "generate"}
    generate(metrics)
    assert ["--enable-per-request-metrics" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("wrong", ["12", -1.0, float("nan"), float("inf"), True, 10**400, [1], 1e11])
def test_number_that_is_no_time_is_a_warning_and_left_out(
    recorded: Read, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    """The other times are recorded."""
    found = recorded_with(recorded, {**RESPONSE, "generation_time_ms": wrong})
    assert set(found) == {"rollout_trace", "generate", "llm_request", "queue", "prefill"}
    assert ["ignores generation_time_ms" in message for message in caplog.messages] == [True]


def test_nothing_is_recorded_outside_trajectories(recorded: Read) -> None:
    """There is no call to which the request could belong."""
    record_engine_times(RESPONSE)
    assert recorded() == []


def test_nothing_is_recorded_below_an_unrecorded_trajectory(recorded: Read) -> None:
    """The phases are not recorded either."""
    with rollout_trace_attr(step=1, trace=False):
        generate(RESPONSE)
    assert recorded() == []


def test_seeded_generator_does_not_repeat_our_ids(recorded: Read) -> None:
    """vLLM seeds Python's random numbers in the engine's process; our ids are drawn from others."""
    for _ in range(2):
        random.seed(0)
        with rollout_trace_attr(step=1):
            generate(RESPONSE)
    spans = recorded()
    assert len({span.span.span_id for span in spans}) == len(spans) == 12
    assert len({span.span.trace_id for span in spans}) == 2
    random.seed(0)
    expected = random.random()
    random.seed(0)
    with rollout_trace_attr(step=1):
        generate(RESPONSE)
    assert random.random() == expected


class Raising:
    """An object whose fields cannot be read."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())
)
FIELDS = st.dictionaries(st.sampled_from([*RESPONSE, *vars(state())]), ANYTHING)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(ANYTHING, FIELDS, FIELDS.map(lambda fields: SimpleNamespace(**fields)), st.builds(Raising)),
    ANYTHING,
)
def test_nothing_is_raised_whatever_is_given(tracing: None, metrics: Any, request_id: Any) -> None:
    """The caller's code goes on."""
    with rollout_trace_attr(step=1):
        assert generate(metrics, request_id) == "answer"
