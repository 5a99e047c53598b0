"""Failures of OTLP receivers that other backends do not have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import FailureKind
from otel_rollout_otlp import OtlpSpanExporter
from tests.fake_server import FakeServer, serving
from tests.sdk_spans import spans_of

LINES = [
    b'{"resourceSpans":[{"resource":{},"scopeSpans":[{"scope":{"name":"t"},"spans":[{"traceId":"%032x",'
    b'"spanId":"%016x","name":"n","kind":1,"startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":['
    b'{"key":"text","value":{"stringValue":"%b"}}]}]}]}]}\n' % (n, n, b"x" * 100)
    for n in range(1, 11)
]  # fmt: skip
SPANS: list[ReadableSpan] = [span for line in LINES for span in spans_of(line)]


def spans_in(request: pb.ExportTraceServiceRequest) -> list[Any]:
    return [span for r in request.resource_spans for scope in r.scope_spans for span in scope.spans]


@pytest.fixture
def receiver() -> Iterator[FakeServer]:
    """A receiver that takes everything until a test says otherwise."""
    with serving({"/v1/traces": (200, {}, b"")}) as fake:
        yield fake


@pytest.fixture
def exporter_to() -> Iterator[Callable[..., OtlpSpanExporter]]:
    made: list[OtlpSpanExporter] = []

    def make(to: FakeServer | str, **arguments: Any) -> OtlpSpanExporter:
        url = to if isinstance(to, str) else f"{to.uri}/v1/traces"
        made.append(OtlpSpanExporter(endpoint=url, **arguments))
        return made[-1]

    yield make
    for exporter in made:
        exporter.shutdown()


@pytest.mark.parametrize("protocol", ["http/json", "http/protobuf"])
def test_partial_success_is_a_rejection(receiver, exporter_to, protocol):
    """Bisecting then finds the spans for the dead-letter file."""
    partial = pb.ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    content_type = {"Content-Type": "application/x-protobuf"}
    body = pb.ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    if protocol == "http/json":
        content_type = {"Content-Type": "application/json"}
        body = b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}'
    receiver.answers["/v1/traces"] = (200, content_type, body)
    exporter = exporter_to(receiver, protocol=protocol)
    assert exporter.export(SPANS) is SpanExportResult.FAILURE
    assert exporter.last_failure.kind is FailureKind.REJECTED
    assert "3 spans" in exporter.last_failure.message
    assert "too old" in exporter.last_failure.message


def test_receivers_words_are_quoted_with_credentials_masked(receiver, exporter_to):
    """~/.netrc does not replace our header."""
    receiver.answers["/v1/traces"] = (401, {"Content-Type": "text/plain"}, b"no such key: planted-secret")
    exporter = exporter_to(receiver, headers={"Authorization": "Bearer planted-secret"})
    exporter.export(SPANS)
    assert receiver.received[0].headers["Authorization"] == "Bearer planted-secret"
    assert "no such key: ***" in exporter.last_failure.message


def test_lines_go_undecoded_in_requests_of_bounded_size(receiver, exporter_to):
    """Over http/json requests hold the recorded bytes.

    Only a single line exceeds the limit.
    """
    exporter = exporter_to(receiver, protocol="http/json", max_request_bytes=4 * len(LINES[0]))
    big = LINES[0].replace(b'"n"', b'"%b"' % (b"n" * 5000))
    assert exporter.export_lines([*LINES, big]) is SpanExportResult.SUCCESS
    bodies = [request.body for request in receiver.received]
    assert [len(json.loads(body)["resourceSpans"]) for body in bodies] == [4, 4, 2, 1]
    assert all(line.strip()[len(b'{"resourceSpans":[') : -2] in b"".join(bodies) for line in LINES)


def test_too_large_line_is_cut_between_its_spans(receiver, exporter_to):
    """A line of many spans goes as several requests of protobuf."""
    data = json.loads(LINES[0])
    (of_scope,) = data["resourceSpans"][0]["scopeSpans"]
    of_scope["spans"] = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in LINES]
    exporter = exporter_to(receiver, max_request_bytes=1000)
    assert exporter.export_lines([LINES[0], json.dumps(data).encode()]) is SpanExportResult.SUCCESS
    bodies = [request.body for request in receiver.received]
    assert max(map(len, bodies)) <= 1000
    requests = map(pb.ExportTraceServiceRequest.FromString, bodies)
    ids = [int.from_bytes(span.span_id, "big") for request in requests for span in spans_in(request)]
    assert ids == [1, *range(1, 11)]


def test_lines_of_other_writers_are_joined_too(receiver, exporter_to):
    """Their order and spacing is free; the receiver refuses what is no trace data."""
    exporter = exporter_to(receiver, protocol="http/json")
    spaced = json.dumps({"x": 1, **json.loads(LINES[1])}).encode() + b"\n"
    assert exporter.export_lines([LINES[0], spaced]) is SpanExportResult.SUCCESS
    assert len(json.loads(receiver.received[0].body)["resourceSpans"]) == 2
    exporter.export_lines([b"garbage\n"])
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(receiver.received[1].body)


def test_sdk_spans_are_encoded_as_otlp_json(receiver, exporter_to):
    """Ids are hex and enums are numbers, as OTLP demands."""
    exporter = exporter_to(receiver, protocol="http/json", compression="gzip")
    assert exporter.export(SPANS[:1]) is SpanExportResult.SUCCESS
    _, headers, body = receiver.received[0]
    assert (headers["Content-Type"], headers["Content-Encoding"]) == ("application/json", "gzip")
    (span,) = json.loads(gzip.decompress(body))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["spanId"], span["kind"]) == (f"{1:032x}", f"{1:016x}", 1)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_refused_connection_is_an_outage_over_every_protocol(exporter_to, protocol):
    """`check` reports it too."""
    exporter = exporter_to("http://127.0.0.1:1", protocol=protocol, timeout=2)
    assert exporter.export(SPANS) is SpanExportResult.FAILURE
    assert exporter.last_failure.kind is FailureKind.UNAVAILABLE
    assert exporter.check().kind is FailureKind.UNAVAILABLE


class Servicer(TraceServiceServicer):
    """A gRPC receiver that answers as told."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.retry_delay: float | None = None
        self.rejected = 0
        self.received: list[tuple[dict[str, Any], pb.ExportTraceServiceRequest]] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.received.append((dict(context.invocation_metadata()), request))
        if self.retry_delay is not None:
            info = AnyMessage()
            info.Pack(RetryInfo(retry_delay=Duration(nanos=int(self.retry_delay * 1e9))))
            status = Status(code=self.code.value[0], details=[info])
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        if self.code is not None:
            context.abort(self.code, self.details)
        partial = pb.ExportTracePartialSuccess(rejected_spans=self.rejected, error_message="too old")
        return pb.ExportTraceServiceResponse(partial_success=partial if self.rejected else None)


@pytest.fixture
def grpc_server() -> Iterator[tuple[Servicer, str]]:
    servicer = Servicer()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "", FailureKind.UNAVAILABLE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", FailureKind.UNAVAILABLE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max", FailureKind.REJECTED),
        (grpc.StatusCode.INVALID_ARGUMENT, "", FailureKind.REJECTED),
        (grpc.StatusCode.UNAUTHENTICATED, "", FailureKind.REFUSED),
        (grpc.StatusCode.PERMISSION_DENIED, "", FailureKind.REFUSED),
        (grpc.StatusCode.UNIMPLEMENTED, "", FailureKind.REFUSED),
    ],
)
def test_grpc_code_has_its_kind_of_failure(grpc_server, exporter_to, code, details, kind):
    """Bad batches, refusals and outages are told apart, and nothing is sent twice."""
    servicer, url = grpc_server
    servicer.code, servicer.details = code, details
    exporter = exporter_to(url, protocol="grpc")
    assert exporter.export(SPANS) is SpanExportResult.FAILURE
    assert exporter.last_failure.kind is kind
    assert code.name in exporter.last_failure.message
    assert len(servicer.received) == 1


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_http_to_a_grpc_port_names_the_protocol_that_it_needs(grpc_server, exporter_to, protocol):
    """The port answers with other bytes, or resets the connection; a server that starts may still answer."""
    exporter = exporter_to(grpc_server[1], protocol=protocol)
    assert exporter.export(SPANS) is SpanExportResult.FAILURE
    assert exporter.last_failure.kind is FailureKind.UNAVAILABLE
    assert exporter.last_failure.message.endswith(
        "(a gRPC port, such as 4317, needs OTEL_EXPORTER_OTLP_PROTOCOL=grpc)."
    )


def test_grpc_carries_retry_delay_headers_and_partial_success(grpc_server, exporter_to):
    """RetryInfo is gRPC's Retry-After, and headers are metadata.

    Requests are bounded in bytes.
    """
    servicer, url = grpc_server
    exporter = exporter_to(url, protocol="grpc", headers="X-Key=v", max_request_bytes=1000)
    for send in (lambda: exporter.export(SPANS), lambda: exporter.export_lines(LINES)):
        servicer.received.clear()
        assert send() is SpanExportResult.SUCCESS
        assert servicer.received[0][0]["x-key"] == "v"
        sizes = [request.ByteSize() for _, request in servicer.received]
        assert len(sizes) > 1
        assert max(sizes) <= 1000
        assert sum(len(spans_in(request)) for _, request in servicer.received) == len(SPANS)
    servicer.rejected = 3
    exporter.export(SPANS)
    assert exporter.last_failure.kind is FailureKind.REJECTED
    servicer.rejected, servicer.code, servicer.retry_delay = 0, grpc.StatusCode.UNAVAILABLE, 0.25
    exporter.export(SPANS)
    assert exporter.last_failure.retry_after == pytest.approx(0.25)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_check_sends_no_span(receiver, exporter_to, protocol):
    """`check` sends a request without spans, which a receiver answers as any other."""
    assert exporter_to(receiver, protocol=protocol).check() is None
    (request,) = receiver.received
    assert request.body in (b"", b'{"resourceSpans":[]}')
