"""Spans that other programs sent become lines as a recording process writes them."""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from otel_rollout.base import semconv
from otel_rollout.otlp import received, received_json, received_protobuf, scan, writer
from tests.sdk_spans import spans_of
from tests.spool_reader import parse_line

HEAD = writer.open_resource_head({"rollout.segment.id": "1-a.000001"})
texts = st.text(max_size=8)
# Hypothesis draws constants of the program too, among them the beginning of the names that are not taken.
keys = texts.filter(lambda text: not text.startswith(semconv.EXTRA_PREFIX))
values = st.recursive(
    st.one_of(
        st.just({}),
        texts.map(lambda text: {"string_value": text}),
        st.booleans().map(lambda value: {"bool_value": value}),
        st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: {"int_value": value}),
        st.floats(allow_nan=False).map(lambda value: {"double_value": value}),
        st.binary(max_size=8).map(lambda value: {"bytes_value": value}),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda entries: {"array_value": {"values": entries}}),
        st.dictionaries(keys, inner, max_size=3).map(
            lambda entries: {"kvlist_value": {"values": [{"key": k, "value": v} for k, v in entries.items()]}}
        ),
    ),
    max_leaves=6,
)
attributes = st.dictionaries(keys, values, max_size=4).map(
    lambda entries: [{"key": key, "value": value} for key, value in entries.items()]
)
trace_ids = st.binary(min_size=16, max_size=16).filter(any)
span_ids = st.binary(min_size=8, max_size=8).filter(any)
times = st.integers(1, (1 << 63) - 1)
counts = st.integers(0, (1 << 32) - 1)
events = st.fixed_dictionaries(
    {
        "time_unix_nano": times,
        "name": texts,
        "attributes": attributes,
        "dropped_attributes_count": counts,
    }
)
links = st.fixed_dictionaries(
    {"trace_id": trace_ids, "span_id": span_ids, "trace_state": st.just("a=b"), "attributes": attributes}
)


def acceptable(span: dict[str, Any]) -> dict[str, Any]:
    start, end = sorted((span["start_time_unix_nano"], span["end_time_unix_nano"]))
    parent = b"" if span["parent_span_id"] == span["span_id"] else span["parent_span_id"]
    return {**span, "parent_span_id": parent, "start_time_unix_nano": start, "end_time_unix_nano": end}


spans = st.fixed_dictionaries(
    {
        "trace_id": trace_ids,
        "span_id": span_ids,
        "parent_span_id": st.just(b"") | span_ids,
        "trace_state": st.sampled_from(["", "vendor=value"]),
        "flags": st.integers(0, 0x3FF),
        "name": texts,
        "kind": st.integers(0, 5),
        "start_time_unix_nano": times,
        "end_time_unix_nano": times,
        "attributes": attributes,
        "dropped_attributes_count": counts,
        "events": st.lists(events, max_size=2),
        "links": st.lists(links, max_size=2),
        "status": st.fixed_dictionaries({"code": st.integers(0, 2), "message": texts}),
    }
).map(acceptable)
"""Spans that the receiver takes; those it refuses are in tests/receiver."""


def request_of(span: dict[str, Any]) -> ExportTraceServiceRequest:
    scope = {"name": 'a "scope"', "version": "1", "attributes": [text_attribute("in", "scope")]}
    resource = {"attributes": [text_attribute("service.name", "agent")]}
    return ExportTraceServiceRequest(
        resource_spans=[
            {
                "resource": resource,
                "schema_url": "https://example.org/1",
                "scope_spans": [{"scope": scope, "spans": [span], "schema_url": "https://example.org/2"}],
            }
        ]
    )


def text_attribute(key: str, text: str) -> dict[str, Any]:
    return {"key": key, "value": {"string_value": text}}


def as_otlp_json(message: Any) -> Any:
    """Return a message as OTLP/JSON: protobuf's own JSON, with ids in hex."""

    def with_hex(node: Any) -> Any:
        if isinstance(node, list):
            return [with_hex(entry) for entry in node]
        if not isinstance(node, dict):
            return node
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64decode(value).hex() if key in ids and isinstance(value, str) else with_hex(value)
            for key, value in node.items()
        }

    return with_hex(MessageToDict(message, use_integers_for_enums=True))


def lines(scopes: Any, identity: bytes = b"") -> list[bytes]:
    return [
        HEAD + scope.resource.head + received.line_of(scope, scope.decode(span), identity)
        for scope in scopes
        for span in scope.spans
    ]


@given(spans)
def test_line_holds_every_field_of_the_span(span: dict[str, Any]) -> None:
    """An independent parser of OTLP/JSON reads the message that was sent."""
    sent = request_of(span)
    (line,) = lines(received_protobuf.scopes_of(sent))
    (found,) = parse_line(line).resource_spans
    expected = ResourceSpans()
    expected.CopyFrom(sent.resource_spans[0])
    own = found.resource.attributes.pop(0)
    assert own.key == "rollout.segment.id"
    if expected.scope_spans[0].spans[0].status.ByteSize() == 0:
        expected.scope_spans[0].spans[0].ClearField("status")
    assert found == expected


@given(spans)
def test_line_is_read_by_every_reader_of_lines(span: dict[str, Any]) -> None:
    """A received line has ids, step and scope where a recorded line has them."""
    identity = writer.attribute_list({"rollout.step": 7, "rollout.validate": True})[1:-1]
    span["attributes"] = [*span["attributes"], text_attribute("rollout.step", "of the sender")]
    (line,) = lines(received_protobuf.scopes_of(request_of(span)), identity)
    (decoded,) = spans_of(line)
    assert decoded.attributes is not None
    assert decoded.attributes["rollout.step"] == 7
    assert scan.step_of(line) == ("7", True)
    assert scan.ids_of(line) == (span["trace_id"].hex().encode(), span["span_id"].hex().encode())
    assert scan.scope_of(line) == 'a "scope"'
    assert scan.end_time_of(line) == span["end_time_unix_nano"]
    assert line.count(b"\n") == 1


@given(spans)
def test_json_and_protobuf_give_one_line(span: dict[str, Any]) -> None:
    """The encoding in which a span arrived leaves no trace."""
    request = request_of(span)
    parsed = orjson.loads(orjson.dumps(as_otlp_json(request)))
    assert lines(received_json.scopes_of(parsed)) == lines(received_protobuf.scopes_of(request))


@pytest.mark.parametrize("encoding", ["protobuf", "JSON"])
def test_attributes_of_ours_are_not_taken_from_senders(encoding: str) -> None:
    """Identity, scores, batches and phases are the run's to give, wherever a line has attributes.

    Facts of a model call stay.
    """
    ours = ("rollout.validate", "rollout.score.reward", "rollout.score_batch.data", "rollout.engine.phase")
    kept = ("rollout.policy_version_max", "rollouts", "of the sender")
    given = [text_attribute(key, "x") for key in (*ours, *kept)]
    span = {
        "trace_id": b"\1" * 16,
        "span_id": b"\1" * 8,
        "start_time_unix_nano": 1,
        "end_time_unix_nano": 2,
        "attributes": [*given, {"key": "nested", "value": {"kvlist_value": {"values": given}}}],
        "events": [{"name": "rollout.event", "attributes": given}],
        "links": [{"trace_id": b"\2" * 16, "span_id": b"\2" * 8, "attributes": given}],
    }
    sent = request_of(span)
    sent.resource_spans[0].resource.MergeFrom(Resource(attributes=given))
    sent.resource_spans[0].scope_spans[0].scope.MergeFrom(InstrumentationScope(attributes=given))
    if encoding == "JSON":
        scopes = received_json.scopes_of(orjson.loads(orjson.dumps(as_otlp_json(sent))))
    else:
        scopes = received_protobuf.scopes_of(sent)
    (line,) = lines(scopes)
    found = Counter(key.decode() for key in re.findall(rb'"key":"([^"]*)"', line))
    others = Counter(["rollout.segment.id", "service.name", "in", "nested"])
    assert found == others + Counter(kept * len(("resource", "scope", "span", "nested", "event", "link")))


def test_deeply_nested_value_is_cut() -> None:
    """A value that no reader follows to its end ends in a text that says so."""
    value: dict[str, Any] = {"string_value": "end"}
    for _ in range(30):
        value = {"array_value": {"values": [value]}}
    span = {
        "trace_id": b"\1" * 16,
        "span_id": b"\1" * 8,
        "start_time_unix_nano": 1,
        "end_time_unix_nano": 2,
        "attributes": [{"key": "deep", "value": value}],
    }
    (line,) = lines(received_protobuf.scopes_of(request_of(span)))
    assert b"nested too deeply" in line
    assert spans_of(line)
