"""Let other programs send spans to the run's receiver: ``python -m tests.conformance.received``.

One tree is sent by hand, in protobuf and in JSON. An agent in JavaScript makes others, in both.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import otel_rollout
from otel_rollout import child_environment, rollout_trace_attr
from tests.agents.local_server import EXAMPLES, running_server

PROJECT = "received"
QUESTION = "What do 3 apples and 4 pears cost?"
UNKNOWN_ITEM = "What do 3 lemons and 4 pears cost?"
TYPES = {"protobuf": "application/x-protobuf", "json": "application/json"}
VALUES: dict[str, Any] = {
    "text": {"string_value": '界 "quotes" \\ \n end'},
    "empty": {"string_value": ""},
    "yes": {"bool_value": True},
    "large": {"int_value": 2**62 + 1},
    "negative": {"int_value": -7},
    "number": {"double_value": 0.1},
    "whole": {"double_value": 3.0},
    "texts": {"array_value": {"values": [{"string_value": "a"}, {"string_value": "b"}]}},
    "integers": {"array_value": {"values": [{"int_value": 1}, {"int_value": 2}]}},
    "numbers": {"array_value": {"values": [{"double_value": 0.5}, {"double_value": -1.5}]}},
    "truths": {"array_value": {"values": [{"bool_value": True}, {"bool_value": False}]}},
}
"""Attributes of every type that each backend has."""
PLAIN: dict[str, Any] = {
    **{
        name: value
        for name, given in VALUES.items()
        for value in given.values()
        if "values" not in str(given)
    },
    "texts": ["a", "b"],
    "integers": [1, 2],
    "numbers": [0.5, -1.5],
    "truths": [True, False],
}
"""The values of ``VALUES``."""


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as fields of a message."""
    return [{"key": key, "value": value} for key, value in given.items()]


def tree(trace_id: bytes, parent_id: bytes, start: int) -> ExportTraceServiceRequest:
    """Return a request with a tree: an agent, a failed tool and a model call that links to it."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "by-hand"
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name, of_scope.scope.version = "hand", "1.0"
    agent, tool, call = (bytes([number]) + trace_id[:7] for number in (1, 2, 3))

    def add(span_id: bytes, above: bytes, name: str, after: int, **fields: Any) -> None:
        times = {"start_time_unix_nano": start + after, "end_time_unix_nano": start + after + 100_000}
        ids = {"trace_id": trace_id, "span_id": span_id, "parent_span_id": above}
        of_scope.spans.add(**ids, name=name, **{**times, **fields})

    raised = attributes(
        {"exception.type": {"string_value": "ValueError"}, "exception.message": {"string_value": "no item"}}
    )
    add(
        agent,
        parent_id,
        "agent",
        0,
        kind=2,
        attributes=attributes(VALUES),
        end_time_unix_nano=start + 900_000,
    )
    add(
        tool,
        agent,
        "tool",
        200_000,
        kind=1,
        events=[
            {"name": "asked", "time_unix_nano": start + 210_000, "attributes": attributes(VALUES)},
            {"name": "exception", "time_unix_nano": start + 220_000, "attributes": raised},
        ],
        status={"code": 2, "message": "no item"},
    )
    link = {
        "trace_id": trace_id,
        "span_id": tool,
        "attributes": attributes({"why": {"string_value": "retry"}}),
    }
    messages = {
        "gen_ai.operation.name": {"string_value": "chat"},
        "gen_ai.request.model": {"string_value": "tiny"},
        "input.value": {"string_value": json.dumps({"messages": [{"role": "user", "content": "Hi"}]})},
        "output.value": {"string_value": json.dumps({"role": "assistant", "content": "Yes"})},
    }
    add(
        call,
        agent,
        "call",
        400_000,
        kind=3,
        attributes=attributes(messages),
        links=[link],
        status={"code": 1},
    )
    return request


def as_json(request: ExportTraceServiceRequest) -> bytes:
    """Return a request in OTLP/JSON, made by protobuf's own library: ids are hex there."""
    found = MessageToDict(request, use_integers_for_enums=True)
    for of_resource in found["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            originals = request.resource_spans[0].scope_spans[0].spans
            for span, original in zip(of_scope["spans"], originals, strict=True):
                span["traceId"] = original.trace_id.hex()
                span["spanId"] = original.span_id.hex()
                span["parentSpanId"] = original.parent_span_id.hex()
                for link, of_original in zip(span.get("links", ()), original.links, strict=True):
                    link["traceId"], link["spanId"] = of_original.trace_id.hex(), of_original.span_id.hex()
    return json.dumps(found).encode()


def send(encoding: str) -> None:
    """Send the tree below the current span."""
    environ = child_environment()
    _, trace_id, parent_id, _ = environ["TRACEPARENT"].split("-")
    message = tree(bytes.fromhex(trace_id), bytes.fromhex(parent_id), time.time_ns())
    content = as_json(message) if encoding == "json" else message.SerializeToString()
    name, _, value = environ["OTEL_EXPORTER_OTLP_HEADERS"].replace("%20", " ").partition("=")
    url = f"{environ['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces"
    request = urllib.request.Request(url, content, {name: value, "content-type": TYPES[encoding]})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        assert answer.status == 200


def run_agent(protocol: str, model_url: str, question: str) -> str:
    """Run the example's agent and return its answer."""
    environ = {**os.environ, **child_environment(), "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    environ |= {"OPENAI_BASE_URL": model_url, "OPENAI_API_KEY": "unused"}
    command = ["node", str(Path(EXAMPLES) / "node" / "agent.mjs"), question]
    return subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    for encoding in TYPES:
        with rollout_trace_attr(step=1, sample_index=encoding, rollout_n=0):
            send(encoding)
    with running_server() as server:
        for protocol in ("http/protobuf", "http/json"):
            for index, question in enumerate((QUESTION, UNKNOWN_ITEM)):
                with rollout_trace_attr(step=2, sample_index=protocol, rollout_n=index) as trajectory:
                    trajectory.set_output(run_agent(protocol, server, question))
    print(otel_rollout.shutdown(60).summary())
