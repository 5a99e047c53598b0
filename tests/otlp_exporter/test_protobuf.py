"""Recorded lines as protobuf, compared with Google's own parser field by field."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import FailureKind
from otel_rollout.otlp import writer
from otel_rollout_otlp import OtlpSpanExporter
from otel_rollout_otlp.exporter import protobuf_of_lines
from tests.spool_reader import ids_to_base64, parse_line

NO_LIMIT = 1 << 30
text = st.text(st.characters(codec="utf-8"), max_size=5)
values = st.recursive(
    st.none() | text | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
attributes = st.dictionaries(text, values, max_size=4)
times = st.integers(0, 2**64 - 1)
bits_32 = st.integers(0, 2**32 - 1)
trace_ids, span_ids = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)
linked = st.integers(0, 2**64 - 1)
"""A link may lead nowhere: what matters are its attributes then (OpenTelemetry specification, "Link")."""
heads = st.builds(
    lambda resource, *scope: writer.resource_head({"service.name": resource}) + writer.scope_head(*scope),
    *(st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from([None, "1"])),
    *(st.sampled_from([None, {"k": b"\xff"}]), st.sampled_from([None, "https://schema"])),
)
details = st.builds(
    writer.Details,
    events=st.lists(st.builds(writer.event, text, times, attributes), max_size=2),
    links=st.lists(st.builds(writer.link, linked, linked, text, bits_32, attributes), max_size=2),
    dropped=st.lists(bits_32, min_size=3, max_size=3),
    status=st.integers(0, 2),
    status_message=st.none() | text,
)
lines = st.builds(
    lambda scope, head, details, state, **given: b"".join(
        writer.line(
            scope,
            writer.head_below(*head),
            details=details.encoded() + writer.trace_state(state),
            **given,
        )
    ),
    heads,
    st.tuples(trace_ids.map(b"%032x".__mod__), st.just(b"") | span_ids.map(b"%016x".__mod__), bits_32),
    details,
    text,
    span_id=span_ids.map(b"%016x".__mod__),
    name=text.map(writer.json_string),
    kind=st.integers(0, 5),
    start_ns=times,
    end_ns=times,
    attributes=attributes.map(lambda given: [writer.attribute_list(given)]),
)
"""As the recorder writes them."""


def sent(lines: list[bytes], max_bytes: int = NO_LIMIT) -> list[ExportTraceServiceRequest]:
    """The requests as a server reads them."""
    bodies = protobuf_of_lines(lines, max_bytes)
    return [ExportTraceServiceRequest.FromString(body) for body in bodies]


def spans_in(requests: Iterable[ExportTraceServiceRequest | TracesData]) -> list[tuple[bytes, ...]]:
    """Return each span, resource and scope as bytes, in which NaN equals itself."""
    return sorted(
        (
            *(of_resource.resource.SerializeToString(deterministic=True), of_resource.schema_url.encode()),
            *(of_scope.scope.SerializeToString(deterministic=True), of_scope.schema_url.encode()),
            span.SerializeToString(deterministic=True),
        )
        for request in requests
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    )


@given(st.lists(lines, min_size=1, max_size=6))
def test_recorded_line_equals_the_message_of_googles_parser(recorded):
    """Each field arrives as it was recorded.

    A resource and a scope are in a request once.
    """
    (request,) = sent(recorded)
    assert spans_in([request]) == spans_in(map(parse_line, recorded))
    resources = [of_resource.resource.SerializeToString() for of_resource in request.resource_spans]
    assert len(resources) == len(set(resources))
    for of_resource in request.resource_spans:
        scopes = [(s.scope.SerializeToString(), s.schema_url) for s in of_resource.scope_spans]
        assert len(scopes) == len(set(scopes))


FOREIGN = {
    "resourceSpans": [
        {
            "newer": {"attributes": 1},
            "schemaUrl": "https://resource",
            "resource": {
                "attributes": [{"key": "raw", "value": {"bytesValue": "_-8"}}],
                "droppedAttributesCount": 3,
                "newer": [1],
            },
            "scopeSpans": [
                {
                    "scope": {"name": "s", "droppedAttributesCount": 4, "newer": 1},
                    "schemaUrl": "https://scope",
                    "spans": [
                        {
                            "traceId": "0af7651916cd43dd8448eb211c80319c",
                            "spanId": "b7ad6b7169203331",
                            "name": None,
                            "kind": 77,
                            "flags": "257",
                            "startTimeUnixNano": 1700000000000000001,
                            "endTimeUnixNano": 1.7e18,
                            "newer": {"spanId": "x"},
                            "events": None,
                            "attributes": [
                                {"key": "unset"},
                                {"key": "null", "value": None},
                                {"key": "none", "value": {"stringValue": None}},
                                {"key": "newer", "value": {"newerValue": [1]}, "newer": 1},
                                {"key": "int", "value": {"newer": 1, "intValue": -5}},
                                {"key": "double", "value": {"doubleValue": "-Infinity"}},
                                {"key": "whole", "value": {"doubleValue": 5}},
                                {"key": "bytes", "value": {"bytesValue": "+/+_-w=="}},
                                {"key": "list", "value": {"arrayValue": {}}},
                                {"key": "map", "value": {"kvlistValue": {"values": None}}},
                            ],
                            "links": [
                                {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203332"}
                            ],
                            "status": {},
                        },
                        {"traceId": "1" * 32, "spanId": "1" * 16},
                    ],
                },
                {"spans": [{"traceId": "2" * 32, "spanId": "2" * 16}]},
                {"spans": None},
                {},
            ],
        },
        {"scopeSpans": [{"spans": [{"traceId": "3" * 32, "spanId": "3" * 16}]}]},
        {},
    ]
}


def test_line_of_another_writer_equals_the_message_of_googles_parser():
    """Several spans, numbers in place of text, nulls and unknown fields are read."""
    line = json.dumps(FOREIGN, indent=1).replace("\n", " ").encode() + b"\n"
    expected = ParseDict(ids_to_base64(copy.deepcopy(FOREIGN)), TracesData(), ignore_unknown_fields=True)
    assert len(spans_in([expected])) == 4
    assert spans_in(sent([line])) == spans_in([expected])


def test_parent_id_of_zeros_is_no_parent():
    """Some writers spell a missing parent so."""
    line = recorded(parentSpanId="0" * 16)
    (request,) = sent([line])
    assert request.resource_spans[0].scope_spans[0].spans[0].parent_span_id == b""


def test_too_deeply_nested_value_is_cut():
    """Protobuf's parsers stop at 100 levels, and would refuse the whole request."""
    value: dict = {"stringValue": "innermost"}
    for _ in range(100):
        value = {"kvlistValue": {"values": [{"key": "k", "value": {"arrayValue": {"values": [value]}}}]}}
    (request,) = sent([recorded(attributes=[{"key": "deep", "value": value}])])
    assert "nested too deeply" in str(request)
    assert "innermost" not in str(request)


@pytest.mark.parametrize("container", ["arrayValue", "kvlistValue"])
def test_value_is_exported_down_to_the_deepest_level_and_cut_below(container: str):
    """The 24th level inside an attribute is exported; the 25th is replaced by a note."""
    for levels, is_whole in ((24, True), (25, False)):
        value: dict = {"stringValue": "innermost"}
        for _ in range(levels):
            entry = {"key": "k", "value": value} if container == "kvlistValue" else value
            value = {container: {"values": [entry]}}
        (request,) = sent([recorded(attributes=[{"key": "deep", "value": value}])])
        assert ("innermost" in str(request)) is is_whole


def recorded(**changed: object) -> bytes:
    """Make a line of one span."""
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "n", **changed}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode() + b"\n"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(
    "changed",
    [
        {"traceId": None},
        {"traceId": "1" * 31},
        {"traceId": "0" * 32},
        {"spanId": "1" * 18},
        {"parentSpanId": "12"},
        {"links": [{"traceId": "x" * 32, "spanId": "1" * 16}]},
        {"kind": "SPAN_KIND_CLIENT"},
        {"kind": True},
        {"flags": 1.5},
        {"flags": 2**32},
        {"endTimeUnixNano": "-1"},
        {"name": 5},
        {"attributes": {"key": "k"}},
        {"attributes": [{"key": "k", "value": {"intValue": str(2**63)}}]},
        {"attributes": [{"key": "k", "value": {"boolValue": "true"}}]},
        {"attributes": [{"key": "k", "value": {"doubleValue": "x"}}]},
        {"attributes": [{"key": "k", "value": {"arrayValue": {"values": [None]}}}]},
        {"attributes": [{"key": "k", "value": "text"}]},
        {"status": 2},
    ],
)
def test_line_that_is_no_trace_data_is_rejected_before_anything_is_sent(protocol, changed):
    """A request that was sent would count as an outage, and be tried for ever."""
    exporter = OtlpSpanExporter(endpoint="http://127.0.0.1:1", protocol=protocol)
    try:
        assert exporter.export_lines([recorded(), recorded(**changed)]) is SpanExportResult.FAILURE
        assert exporter.last_failure.kind is FailureKind.REJECTED
        assert "no OTLP/JSON trace data" in exporter.last_failure.message
    finally:
        exporter.shutdown()
