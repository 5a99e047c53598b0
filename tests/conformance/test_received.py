"""Spans that other programs send to the run's receiver, read back from every backend as whole trees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.conformance.backend import Adapter, differences, exact, trees
from tests.conformance.mlflow_adapter import MlflowAdapter
from tests.conformance.received import PLAIN, PROJECT
from tests.local_weave import LocalWeave
from tests.spool_reader import Recorded, plain_attributes, read_directory, tree

REFERENCE = "otlp_proto_http"
WITH_ANSWER = [
    "chat shop",
    "execute_tool price",
    "chat shop",
    "execute_tool price",
    "chat shop",
    "execute_tool calculate",
    "chat shop",
]
BY_HAND = {"rollout_trace": [{"agent": ["tool", "call"]}]}
IDENTITY = {"rollout.step": 1, "rollout.rollout_n": 0, "rollout.project_name": PROJECT}

# A warning that MLflow causes.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def backends(adapters: dict[str, Adapter], server_uri: str) -> dict[str, Any]:
    """Every backend, with MLflow's server in place of its database."""
    return {**adapters, "mlflow": MlflowAdapter(server_uri)}


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory, backends: dict[str, Any]) -> Path:
    """What other programs have sent, recorded by the receiver and delivered to every backend."""
    directory = tmp_path_factory.mktemp("received")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environ |= {"OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"), "OTEL_ROLLOUT_KEEP": "true"}
    recording = {
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_PROJECT": PROJECT,
        "OTEL_ROLLOUT_RECEIVE": "true",
    }
    record = [sys.executable, "-m", "tests.conformance.received"]
    done = subprocess.run(
        record, env=environ | recording, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "lost: 0" in done.stdout
    for adapter in backends.values():
        environ |= adapter.variables
    deliver = "from otel_rollout.cli import app; app()"
    forward = [sys.executable, "-c", deliver, "forward", "--to", ",".join(backends)]
    subprocess.run(forward, env=environ, check=True, timeout=300)
    return directory / "spool"


def traces_in(spool: Path) -> Iterator[list[Recorded]]:
    """Yield the spans of each trace."""
    spans = read_directory(spool)
    for trace_id in dict.fromkeys(span.span.trace_id for span in spans):
        yield [span for span in spans if span.span.trace_id == trace_id]


def by_hand(spool: Path, encoding: str) -> dict[str, Recorded]:
    """Return the spans of the tree that was sent by hand, by name."""
    found = [trace for trace in traces_in(spool) if trace[0].attributes["rollout.sample_index"] == encoding]
    assert [tree(trace) for trace in found] == [BY_HAND]
    return {span.name: span for span in found[0]}


def test_agent_in_javascript_joins_its_trajectory_in_either_encoding(spool: Path) -> None:
    """Its spans lie below the root in the order of the turns, with identity, messages, counts and errors."""
    found = {}
    for trace in traces_in(spool):
        if trace[0].attributes["rollout.step"] == 2:
            identities = {
                (span.attributes["rollout.sample_index"], span.attributes["rollout.rollout_n"])
                for span in trace
            }
            (identity,) = identities
            found[identity] = trace
    assert set(found) == {(protocol, n) for protocol in ("http/protobuf", "http/json") for n in (0, 1)}
    for (_, index), trace in found.items():
        assert tree(trace) == {"rollout_trace": [{"invoke_agent shop-agent": WITH_ANSWER}]}
        named = {span.name: span for span in trace}
        assert named["chat shop"].resource["telemetry.sdk.language"] == "nodejs"
        assert named["chat shop"].span.kind == Span.SPAN_KIND_CLIENT
        calls = [span.attributes for span in trace if span.name == "chat shop"]
        assert [call["gen_ai.response.finish_reasons"] for call in calls] == [["tool_calls"]] * 3 + [["stop"]]
        assert all(call["gen_ai.usage.input_tokens"] > 0 for call in calls)
        turns = named["invoke_agent shop-agent"].span.events
        assert [plain_attributes(event.attributes)["turn"] for event in turns] == [1, 2, 3, 4]
        failed = [span.name for span in trace if span.span.status.code == 2]
        assert failed == (["execute_tool price"] if index else [])
        if index == 0:
            assert named["rollout_trace"].output == "3 apples and 4 pears cost 18."


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_tree_in_the_spool_is_the_one_that_was_sent(spool: Path, encoding: str) -> None:
    """Attributes of every type, events, links, status, kinds, times and resource are as sent."""
    spans = by_hand(spool, encoding)
    agent, tool, call = (spans[name] for name in ("agent", "tool", "call"))
    assert exact({name: agent.attributes[name] for name in PLAIN}) == exact(PLAIN)
    assert [event.name for event in tool.span.events] == ["asked", "exception"]
    assert exact(plain_attributes(tool.span.events[0].attributes)) == exact(PLAIN)
    assert (tool.span.status.code, tool.span.status.message) == (2, "no item")
    (link,) = call.span.links
    assert (link.trace_id, link.span_id) == (tool.span.trace_id, tool.span.span_id)
    assert plain_attributes(link.attributes) == {"why": "retry"}
    assert [span.span.kind for span in (agent, tool, call)] == [2, 1, 3]
    assert agent.span.end_time_unix_nano - agent.span.start_time_unix_nano == 900_000
    assert agent.resource["service.name"] == "by-hand"
    for span in spans.values():
        assert {**span.attributes, **IDENTITY} == span.attributes


@pytest.mark.parametrize("name", ["mlflow", "weave", "delta", "otlp"])
def test_backend_shows_the_received_trees_that_otlp_shows(
    spool: Path, backends: dict[str, Any], name: str
) -> None:
    """All fields of the six trajectories are as over OTLP, types included."""
    adapter = backends[name]
    reference = trees(backends[REFERENCE].read(PROJECT), adapter.shows)
    assert len(reference) == 6
    assert not differences(trees(adapter.read(PROJECT)), reference)


def of_json_and_protobuf(operations: Mapping[str, Any]) -> list[Any]:
    """Return the trees that were sent by hand, without what differs: the times and the encoding's name."""

    def without(operation: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in operation.items() if key not in ("start_us", "end_us")}
        kept["identity"] = {key: v for key, v in operation["identity"].items() if key != "sample_index"}
        return {**kept, "children": [without(child) for child in operation["children"]]}

    roots = [trace[0] for trace in operations.values()]
    return [without(root) for root in roots if root["children"][0]["name"] == ("str", "'agent'")]


@pytest.mark.parametrize("name", ["mlflow", "weave", "delta", "otlp", REFERENCE])
def test_encodings_give_equal_trees(spool: Path, backends: dict[str, Any], name: str) -> None:
    """A backend shows the same tree for protobuf and for JSON."""
    found = of_json_and_protobuf(trees(backends[name].read(PROJECT)))
    assert len(found) == 2
    assert not differences(found[0], found[1])


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_mlflow_has_each_received_field(spool: Path, backends: dict[str, Any], encoding: str) -> None:
    """MLflow's client reads attributes of every type, events, links, status and identity from its server."""
    recorded = by_hand(spool, encoding)
    trace_id = f"tr-{recorded['agent'].span.trace_id.hex()}"
    (trace,) = [found for found in backends["mlflow"].traces(PROJECT) if found.info.trace_id == trace_id]
    spans = {span.name: span for span in trace.data.spans}
    assert {name: span.parent_id for name, span in spans.items()} == {
        name: span.span.parent_span_id.hex() or None for name, span in recorded.items()
    }
    assert exact({name: spans["agent"].attributes[name] for name in PLAIN}) == exact(PLAIN)
    asked, raised = spans["tool"].events
    assert exact(dict(asked.attributes)) == exact(PLAIN)
    assert asked.timestamp == recorded["tool"].span.events[0].time_unix_nano
    assert raised.attributes == {"exception.type": "ValueError", "exception.message": "no item"}
    assert (spans["tool"].status.status_code.value, spans["tool"].status.description) == ("ERROR", "no item")
    assert spans["call"].status.status_code.value == "OK"
    (link,) = spans["call"].links
    assert (link.trace_id, link.span_id, link.attributes) == (
        trace_id,
        spans["tool"].span_id,
        {"why": "retry"},
    )
    assert spans["call"].inputs == {"messages": [{"role": "user", "content": "Hi"}]}
    for name, span in spans.items():
        assert {**span.attributes, **IDENTITY, "rollout.sample_index": encoding} == span.attributes
        assert span.start_time_ns == recorded[name].span.start_time_unix_nano
        assert span.end_time_ns == recorded[name].span.end_time_unix_nano


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_weave_has_each_received_field(spool: Path, local_weave: LocalWeave, encoding: str) -> None:
    """Weave's client reads attributes of every type, events, links, status and identity from its server."""
    recorded = by_hand(spool, encoding)
    calls = {
        call["op_name"]: call
        for call in local_weave.calls(PROJECT)
        if call["trace_id"] == recorded["agent"].span.trace_id.hex()
    }
    assert set(calls) == set(recorded)
    assert exact({name: calls["agent"]["attributes"][name] for name in PLAIN}) == exact(PLAIN)
    otel = calls["tool"]["attributes"]["otel"]
    assert [event["name"] for event in otel["events"]] == ["asked", "exception"]
    assert exact(otel["events"][0]["attributes"]) == exact(PLAIN)
    assert otel["status_message"] == "no item"
    (link,) = calls["call"]["attributes"]["otel"]["links"]
    assert link["attributes"] == {"why": "retry"}
    for call in calls.values():
        found = call["attributes"]
        assert (found["step"], found["sample_index"], found["rollout_n"]) == (1, encoding, 0)
