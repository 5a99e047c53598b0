"""The example: an agent behind LiteLLM's proxy and real vLLM, twice at once, once killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.black_box.support import EXAMPLE, LITELLM, ROOT, engine
from tests.mlflow_server import stored
from tests.ports import free_port

if TYPE_CHECKING:
    from mlflow.entities import Trace

# What MLflow's own store warns about.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)
MODEL = ROOT / "build" / "tiny-model"
TOKEN = "the-token-of-the-tests-receiver-0123456789"
PROJECT = "black-box"
PHASES = ("queue", "prefill", "decode")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Trace]:
    """Run the example with an engine and a database of MLflow; return its traces by sample."""
    directory = tmp_path_factory.mktemp("example")
    receiver = f"127.0.0.1:{free_port()}"
    tracing = ("OTEL_", "MLFLOW_", "WANDB_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(tracing)}
    environ |= {
        "OTEL_TRACES_EXPORTER": "mlflow",
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
        "OTEL_ROLLOUT_PROJECT": PROJECT,
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_RECEIVE": receiver,
        "OTEL_ROLLOUT_RECEIVE_TOKEN": TOKEN,
        "LITELLM": str(LITELLM),
        "NO_PROXY": "*",
    }
    with engine(MODEL, directory, receiver, TOKEN) as address:
        ran = subprocess.run(
            [sys.executable, EXAMPLE / "rollouts.py", address, "tiny"],
            env=environ, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines()[:2] == ["0 finished", "1 the agent ended with -9"]
    found = stored(environ["MLFLOW_TRACKING_URI"], PROJECT)
    return {
        int(trace.info.tags["sample_index"]): trace for trace in found if "sample_index" in trace.info.tags
    }


def tree(trace: Trace) -> list[Any]:
    """Return the spans of a trace as nested lists of names, in order of their start."""

    def below(parent: str | None) -> list[Any]:
        children = [span for span in trace.data.spans if span.parent_id == parent]
        children.sort(key=lambda span: (span.start_time_ns, span.end_time_ns))
        return [[span.name, *below(span.span_id)] for span in children]

    return below(None)


def calls_of(trace: Trace) -> list[Any]:
    """Return the model calls of a trace, in order."""
    calls = [span for span in trace.data.spans if span.name == "chat tiny"]
    return sorted(calls, key=lambda span: span.start_time_ns)


def without_phases(node: list[Any]) -> list[Any]:
    """Return a tree without the phases of the engine's requests, which must be all or none."""
    children = [child for child in node[1:] if child[0] not in PHASES]
    if node[0] == "llm_request":
        assert tuple(child[0] for child in node[1:]) in ((), PHASES)
    return [node[0], *(without_phases(child) for child in children)]


def test_agent_that_finishes_is_a_whole_trajectory(traces: dict[int, Trace]) -> None:
    """Its two turns are model calls with the engine's requests below; it has tool, result and reward."""
    trace = traces[0]
    (root,) = tree(trace)
    turn = ["chat tiny", ["llm_request"]]
    assert without_phases(root) == ["rollout_trace", turn, turn, ["score reward"]]
    assert trace.info.state.value == "OK"
    first, second = calls_of(trace)
    (call,) = first.outputs["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "calculator"
    assert json.loads(call["function"]["arguments"]) == {"expression": "3 + 4"}
    said = second.inputs["messages"][-1]
    assert (said["role"], said["content"], said["tool_call_id"]) == ("tool", "7", call["id"])
    assert second.outputs["choices"][0]["message"]["content"].strip() == "7"
    assert {assessment.name: assessment.value for assessment in trace.info.assessments} == {"reward": 1.0}


def test_tokens_are_the_engines_and_counted_once(traces: dict[int, Trace]) -> None:
    """The trace's tokens are the sum of its model calls', which are those of the engine."""
    trace = traces[0]
    calls = {span.span_id: span for span in calls_of(trace)}
    requests = [span for span in trace.data.spans if span.name == "llm_request"]
    for request in requests:
        call = calls[request.parent_id].attributes
        assert call["gen_ai.usage.input_tokens"] == request.attributes["gen_ai.usage.prompt_tokens"]
        assert call["gen_ai.usage.output_tokens"] == request.attributes["gen_ai.usage.completion_tokens"]
    total = sum(call.attributes["gen_ai.usage.output_tokens"] for call in calls.values())
    assert trace.info.token_usage["output_tokens"] == total


def test_killed_agent_is_an_error_with_the_turns_before(traces: dict[int, Trace]) -> None:
    """The trajectory ends as an error; the call before the kill is there with its tool call."""
    trace = traces[1]
    assert trace.info.state.value == "ERROR"
    first = calls_of(trace)[0]
    (call,) = first.outputs["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"expression": "6 * 2"}
    assert not trace.info.assessments


def test_no_other_traces_of_the_proxy_are_recorded(traces: dict[int, Trace]) -> None:
    """The proxy's own requests, such as health checks, leave no traces."""
    names = {span.name for trace in traces.values() for span in trace.data.spans}
    assert names <= {"rollout_trace", "chat tiny", "llm_request", "score reward", *PHASES}
    assert sorted(traces) == [0, 1]
