"""The examples run as their first lines say: every span recorded and delivered, whole and once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.local_server import EXAMPLES
from tests.agents.rollouts import (
    LIBRARIES,
    MODEL_CALLS,
    TOOL_CALLS,
    KeepingReceiver,
    Library,
    Rollout,
    has_messages,
    input_tokens,
    is_model_call,
    model_calls,
    roll_out,
)
from tests.ray_start import add_node
from tests.spool_reader import tree

TRAJECTORIES = 100
ON_RAY = 8
EVERY_LIBRARY = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.instrument)


@pytest.fixture
def receiver() -> Iterator[KeepingReceiver]:
    """Run an OTLP receiver."""
    receiver = KeepingReceiver()
    try:
        yield receiver
    finally:
        receiver.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Start a Ray cluster, to which the examples connect; return its address."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")
        started = Cluster()
        add_node(started, num_cpus=2, include_dashboard=False)
        yield started.address
        started.shutdown()


def check(library: Library, rollout: Rollout, count: int) -> None:
    """Check that each of ``count`` trajectories is one tree with all calls, and was delivered."""
    assert "internal error" not in rollout.printed
    assert f"{len(rollout.spans)} spans delivered" in rollout.printed
    assert len(rollout.traces) == count
    rows = set()
    for trace in rollout.traces:
        assert len(trace) == library.spans
        (root,) = tree(trace)
        assert root == "rollout_trace"
        identities = {(s.attributes["rollout.step"], s.attributes["rollout.sample_index"]) for s in trace}
        assert len(identities) == 1
        rows |= identities
        calls = model_calls(trace)
        assert len(calls) == MODEL_CALLS
        tokens = [input_tokens(call.attributes) for call in calls]
        assert tokens == sorted(set(tokens)), "each call resends the conversation"
        assert all(has_messages(call.attributes) for call in calls)
    assert rows == {(1, index) for index in range(count)}


def check_delivered(rollout: Rollout) -> None:
    """Check that the backend received each recorded span, and model calls with our attributes."""
    assert set(rollout.delivered) == {span.span.span_id.hex() for span in rollout.spans}
    for span in rollout.spans:
        received = rollout.delivered[span.span.span_id.hex()]
        assert received["rollout.sample_index"] == span.attributes["rollout.sample_index"]
        if is_model_call(span.attributes):
            assert input_tokens(received)


@EVERY_LIBRARY
def test_every_span_is_recorded_and_delivered(
    library: Library, openai_server: str, receiver: KeepingReceiver, tmp_path: Path
) -> None:
    """A hundred trajectories of four model calls each, in one process."""
    rollout = roll_out(library, tmp_path, receiver, "--trajectories", str(TRAJECTORIES))
    check(library, rollout, TRAJECTORIES)
    check_delivered(rollout)
    assert not receiver.repeated


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
@EVERY_LIBRARY
def test_every_span_is_recorded_and_delivered_on_ray(
    library: Library, openai_server: str, receiver: KeepingReceiver, tmp_path: Path, cluster: str
) -> None:
    """The same on Ray workers, which get the setting from the driver."""
    variables = {"RAY_ADDRESS": cluster, "RAY_AUTH_MODE": "disabled"}
    rollout = roll_out(library, tmp_path, receiver, "--trajectories", str(ON_RAY), "--ray", **variables)
    check(library, rollout, ON_RAY)
    check_delivered(rollout)
    assert not receiver.repeated


@pytest.mark.parametrize("library", LIBRARIES[2:5:2], ids=lambda library: library.instrument)
def test_without_the_setting_only_decorated_spans_are_recorded(
    library: Library, openai_server: str, receiver: KeepingReceiver, tmp_path: Path
) -> None:
    """Nobody's spans are switched on unasked, and the example runs the same."""
    variables = {"OTEL_ROLLOUT_INSTRUMENT": ""}
    rollout = roll_out(library, tmp_path, receiver, "--trajectories", "2", **variables)
    assert {span.scope for span in rollout.spans} == {"otel_rollout"}


@EVERY_LIBRARY
def test_example_has_few_lines_and_no_tracing_code(library: Library) -> None:
    """An agent needs the trajectory around it, and nothing else."""
    text = (EXAMPLES / f"{library.example}.py").read_text()
    assert len(text.splitlines()) < 80
    assert "opentelemetry" not in text.replace("OTEL_", "")
    assert "tracer" not in text


def test_tools_of_a_trajectory_are_spans(
    openai_server: str, receiver: KeepingReceiver, tmp_path: Path
) -> None:
    """Each of the model's tool calls has a span with its result, beside the model's."""
    rollout = roll_out(LIBRARIES[4], tmp_path, receiver, "--trajectories", "1")
    names = [span.name for span in rollout.spans if span.name.startswith("execute_tool")]
    assert len(names) == TOOL_CALLS
