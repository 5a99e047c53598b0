"""Running trajectories are listed, and end with the totals of all their spans."""

from __future__ import annotations

import time
from itertools import permutations

import pytest
from mlflow.entities import SpanStatusCode, Trace, TraceState
from mlflow_support import stored
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import Status, StatusCode

from tests.sdk_spans import JSON, Rollouts, deliver

SECOND = 10**9


class Trajectory:
    """A trajectory of four seconds with a model call in each of its first three.

    The calls have 10, 20 and 40 input tokens, and one output token each.
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self.start = time.time_ns() // SECOND * SECOND
        self.root: Span = rollouts.begin(
            "rollout_trace",
            self.start,
            openinference__span__kind="AGENT",
            input__value='{"question": 1}',
            **JSON,
        )
        below = otel.set_span_in_context(self.root)
        self.calls: list[ReadableSpan] = []
        for second, tokens in enumerate((10, 20, 40)):
            usage = {"gen_ai__usage__input_tokens": tokens, "gen_ai__usage__output_tokens": 1}
            at = self.start + second * SECOND
            call = rollouts.begin(f"call {second}", at, below, openinference__span__kind="LLM", **usage)
            call.end(at + SECOND)
            self.calls.append(call)

    def end(self, status: StatusCode = StatusCode.OK) -> Span:
        """End the root, four seconds after its start."""
        self.root.set_attribute("output.value", '{"answer": 2}')
        self.root.set_status(Status(status))
        self.root.end(self.start + 4 * SECOND)
        return self.root


@pytest.fixture
def trajectory(rollouts: Rollouts) -> Trajectory:
    """A running trajectory of the test's project."""
    return Trajectory(rollouts)


def tokens(trace: Trace) -> tuple[int, int, int]:
    """Return the trace's input, output and total tokens."""
    usage = trace.info.token_usage
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]


def assert_whole(trace: Trace, state: TraceState = TraceState.OK) -> None:
    """Check everything that MLflow shows of an ended trajectory."""
    assert (trace.info.state, trace.info.execution_duration) == (state, 4000)
    assert tokens(trace) == (70, 3, 73)
    assert (trace.info.request_preview, trace.info.response_preview) == ('{"question": 1}', '{"answer": 2}')
    assert trace.info.tags["step"] == "1"
    assert trace.info.tags["mlflow.traceName"] == "1/7/0"
    (root,) = (span for span in trace.data.spans if span.parent_id is None)
    assert (root.name, root.end_time_ns - root.start_time_ns) == ("rollout_trace", 4 * SECOND)
    below = [(span.name, span.parent_id) for span in trace.data.spans if span is not root]
    assert sorted(below) == [(f"call {number}", root.span_id) for number in range(3)]


def test_announced_trajectory_counts_tokens_of_every_batch(uri, project, trajectory, exporter_for):
    """Tokens and duration grow with each batch, until the root ends the trace."""
    exporter = exporter_for(uri)
    exporter.announce([trajectory.root])
    grown = []
    for call in trajectory.calls:
        deliver(exporter, [call])
        (running,) = stored(uri, project)
        assert running.info.state is TraceState.IN_PROGRESS
        grown.append((tokens(running), running.info.execution_duration))

    deliver(exporter, [trajectory.end()])

    assert grown == [((10, 1, 11), 1000), ((30, 2, 32), 2000), ((70, 3, 73), 3000)]
    (ended,) = stored(uri, project)
    assert_whole(ended)


def test_announced_trajectory_is_listed_and_found(uri, project, trajectory, exporter_for):
    """The trace has name, tags, session and start, but no end, before any of its spans is delivered."""
    exporter_for(uri).announce([trajectory.root])

    (running,) = stored(uri, project, "tags.step = '1' AND trace.name = '1/7/0'")
    assert (running.info.state, running.info.execution_duration) == (TraceState.IN_PROGRESS, 0)
    assert running.info.request_time == trajectory.start // 10**6
    assert running.info.trace_metadata["mlflow.trace.session"] == "step 1 - grpo"
    tags = {key: value for key, value in running.info.tags.items() if not key.startswith("mlflow.")}
    assert tags == {
        "experiment_name": "grpo",
        "step": "1",
        "sample_index": "7",
        "rollout_n": "0",
        "validate": "False",
    }


@pytest.mark.parametrize("order", list(permutations(["announce", "call", "root"])), ids="-".join)
def test_announced_trajectory_is_whole_in_every_order(uri, project, trajectory, exporter_for, order):
    """An announcement before or after root and calls, even by a second forwarder, changes no ended trace."""
    first, *others = trajectory.calls
    announced = exporter_for(uri)
    announced.announce([trajectory.root])
    exporter = exporter_for(uri)
    steps = {
        "announce": lambda: exporter.announce([trajectory.root]),
        "call": lambda: deliver(exporter, others),
        "root": lambda: deliver(exporter, [trajectory.end()]),
    }
    deliver(exporter, [first])
    for step in order:
        steps[step]()

    (ended,) = stored(uri, project)
    assert_whole(ended)


def test_announced_trajectory_that_fails_is_an_error(uri, project, trajectory, exporter_for):
    """The state comes from the root, and stays whatever arrives later."""
    exporter = exporter_for(uri)
    exporter.announce([trajectory.root])
    deliver(exporter, trajectory.calls[:1])
    deliver(exporter, [trajectory.end(StatusCode.ERROR)])
    deliver(exporter, trajectory.calls[1:])
    exporter.announce([trajectory.root])

    (ended,) = stored(uri, project)
    assert_whole(ended, TraceState.ERROR)
    (root,) = (span for span in ended.data.spans if span.parent_id is None)
    assert root.status.status_code is SpanStatusCode.ERROR


def test_many_trajectories_of_two_projects_are_announced_at_once(uri, project, exporter_for):
    """Each is listed in its own project, in more than one request."""
    other = f"{project}-other"
    roots = []
    for name, count in ((project, 60), (other, 2)):
        rollouts = Rollouts(name)
        for number in range(count):
            rollouts.identity["rollout.sample_index"] = number
            root = rollouts.begin("rollout_trace", time.time_ns(), openinference__span__kind="AGENT")
            roots.append(root)

    exporter_for(uri).announce(roots)

    for name, count in ((project, 60), (other, 2)):
        listed = {(trace.info.state, trace.info.tags["mlflow.traceName"]) for trace in stored(uri, name)}
        assert listed == {(TraceState.IN_PROGRESS, f"1/{number}/0") for number in range(count)}
