"""The key that an agent gets names the trajectory in which it was made."""

from __future__ import annotations

import pytest
from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.base.trajectory_key import traceparent_of

SECRET = "sk-master"


def span_of(key: str) -> tuple[str, str, bool]:
    """Return trace id, span id of a key, and whether the span is recorded."""
    traceparent = traceparent_of(key, SECRET)
    assert traceparent is not None
    _, trace_id, span_id, flags = traceparent.split("-")
    return trace_id, span_id, bool(int(flags, 16) & 1)


@pytest.mark.usefixtures("tracing")
def test_key_names_the_current_span() -> None:
    """Inside a trajectory the key holds the ids of its span."""
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0) as trajectory:
        current = trace.get_current_span().get_span_context()
        expected = (trajectory.trace_id, f"{current.span_id:016x}", True)
        assert span_of(otel_rollout.trajectory_key(SECRET)) == expected


@pytest.mark.usefixtures("tracing")
def test_key_of_an_unrecorded_trajectory_says_so() -> None:
    """Where head sampling excludes the trajectory, the proxy records nothing either."""
    otel_rollout.configure(sample_rate=0.0)
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        assert not span_of(otel_rollout.trajectory_key(SECRET))[2]


@pytest.mark.usefixtures("fresh_process")
def test_key_without_tracing_is_admitted_and_not_recorded() -> None:
    """With tracing off, agents ask the model as before; each key is another one."""
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        keys = [otel_rollout.trajectory_key(SECRET) for _ in range(2)]
    assert not any(span_of(key)[2] for key in keys)
    assert keys[0] != keys[1]


@pytest.mark.usefixtures("tracing")
def test_key_outside_a_trajectory_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The agent runs unrecorded, and one warning says why."""
    keys = [otel_rollout.trajectory_key(SECRET) for _ in range(2)]
    assert not any(span_of(key)[2] for key in keys)
    (warning,) = caplog.records
    assert "outside a trajectory" in warning.getMessage()


@pytest.mark.usefixtures("fresh_process")
def test_key_outside_a_trajectory_without_tracing_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is warned where nothing is recorded."""
    assert not span_of(otel_rollout.trajectory_key(SECRET))[2]
    assert not caplog.records
