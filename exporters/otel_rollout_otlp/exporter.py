"""Export spans over OTLP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import ExportFailure
from otel_rollout.exporting.arguments import positive_bytes
from otel_rollout.exporting.base import GuardedExporter, rejecting
from otel_rollout.exporting.batching import batches, grouped, halved
from otel_rollout.exporting.protobuf import request_of
from otel_rollout.otlp.json_line import line_of
from otel_rollout.otlp.json_line import request_of as joined
from otel_rollout.otlp.line_protobuf import InLine, fields_of, spans_in
from otel_rollout.otlp.span import Span
from otel_rollout_otlp import settings
from otel_rollout_otlp.http_transport import HttpTransport
from otel_rollout_otlp.settings import OtlpSettings, Protocol

if TYPE_CHECKING:
    from otel_rollout_otlp.grpc_transport import GrpcTransport

_parse: Final = partial(Parse, ignore_unknown_fields=True)


class OtlpSpanExporter(GuardedExporter):
    """Sends spans over OTLP, each request once.

    The forwarder decides whether and when to try again.

    Every argument wins over its variable, and a variable ``OTEL_EXPORTER_OTLP_TRACES_…`` over the variable
    for all signals. The constructor opens no connection.

    Args:
        endpoint: address of the receiver (``OTEL_EXPORTER_OTLP_ENDPOINT``; port 4317 of localhost for gRPC,
            4318 for HTTP). Over HTTP this argument and ``…_TRACES_ENDPOINT`` are the full address;
            ``/v1/traces`` is added to ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        protocol: ``http/protobuf`` (default), ``http/json`` or ``grpc`` (``OTEL_EXPORTER_OTLP_PROTOCOL``).
            With ``http/json`` recorded lines are sent undecoded. That costs the forwarder least CPU time, but
            a Collector more.
        headers: sent with each request (``OTEL_EXPORTER_OTLP_HEADERS``, ``name=value,name=value``).
        timeout: seconds one request may take (``OTEL_EXPORTER_OTLP_TIMEOUT``; 10).
        compression: ``gzip`` or ``none`` (``OTEL_EXPORTER_OTLP_COMPRESSION``; none).
        certificate: PEM file of the CA that signed the server's certificate
            (``OTEL_EXPORTER_OTLP_CERTIFICATE``).
        client_key: PEM file with the client's key (``OTEL_EXPORTER_OTLP_CLIENT_KEY``).
        client_certificate: PEM file with the client's certificate
            (``OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE``).
        insecure: no TLS for a gRPC endpoint without a scheme (``OTEL_EXPORTER_OTLP_INSECURE``).
        max_request_bytes: maximum bytes in one request before compression (8 MiB; for gRPC 4 MiB less
            64 KiB). A larger span is sent alone.

    Raises:
        ValueError: an argument or environment variable is malformed or not supported.
    """

    takes_decoded = True

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        protocol: str | None = None,
        headers: Mapping[str, str] | str | None = None,
        timeout: float | None = None,
        compression: str | None = None,
        certificate: str | None = None,
        client_key: str | None = None,
        client_certificate: str | None = None,
        insecure: bool | None = None,
        max_request_bytes: int | None = None,
    ) -> None:
        super().__init__("OTLP")
        self._settings = settings.resolve(
            endpoint=endpoint,
            protocol=protocol,
            headers=headers,
            timeout=timeout,
            compression=compression,
            certificate=certificate,
            client_key=client_key,
            client_certificate=client_certificate,
            insecure=insecure,
        )
        self._transport = _transport(self._settings)
        if self._settings.protocol is Protocol.HTTP_JSON:
            self._encode, self._bodies_of_lines = json_of_spans, json_of_lines
        else:
            self._encode, self._bodies_of_lines = protobuf_of_spans, protobuf_of_lines
        default = self._transport.default_max_request_bytes
        self._max_bytes = positive_bytes(
            "max_request_bytes", default if max_request_bytes is None else max_request_bytes
        )

    def write(self, spans: Sequence[Span]) -> None:
        """Send spans."""
        if spans:
            self._send(halved(spans, self._encode, len, self._max_bytes), "A span cannot be encoded")

    def export_lines(self, lines: Sequence[bytes]) -> SpanExportResult:
        """Send OTLP JSON Lines as :meth:`export` sends spans."""
        bodies = self._bodies_of_lines(lines, self._max_bytes)
        return self.export_by(lambda: self._send(bodies, "A line is no OTLP/JSON trace data"))

    def destination(self, project: str) -> str:
        """Return where the spans are sent, without credentials."""
        return f"the OTLP endpoint {self._settings.endpoint.partition(' (')[0]}"

    def check(self) -> ExportFailure | None:
        """Send a request without spans; return None if the receiver accepts it."""
        return self.guarded(lambda: self._transport.send(self._encode(())))

    def close(self) -> None:
        """Close connections."""
        self._transport.close()

    def redact(self, text: str) -> str:
        """Mask credentials in a message."""
        return self._settings.redact(text)

    def _send(self, bodies: Iterator[bytes], problem: str) -> None:
        with rejecting(problem):
            encoded = list(bodies)
        for body in encoded:
            self._transport.send(body)


def _transport(chosen: OtlpSettings) -> HttpTransport | GrpcTransport:
    if chosen.protocol is Protocol.GRPC:
        from otel_rollout_otlp.grpc_transport import GrpcTransport  # grpcio is slow to import

        return GrpcTransport(chosen)
    return HttpTransport(chosen)


# --- bodies of requests, of bounded size -------------------------------------------------------------------


def protobuf_of_spans(spans: Sequence[Span]) -> bytes:
    """Encode one request of spans as protobuf."""
    encoded: bytes = request_of(spans).SerializeToString()
    return encoded


def json_of_spans(spans: Sequence[Span]) -> bytes:
    """Encode one request of spans as OTLP/JSON."""
    return joined(map(line_of, grouped(spans, lambda span: (span.resource, span.scope)).values()))


def protobuf_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Encode the spans of OTLP JSON Lines as bodies of protobuf.

    Protobuf is smaller than JSON, so lines within the limit make one body within the limit. Larger input is
    divided between spans; a span larger than the limit is a body alone.
    """
    for batch in batches(lines, len, max_bytes):
        if len(batch[0]) <= max_bytes:
            yield _protobuf(spans_in(batch))
        else:
            yield from halved(list(spans_in(batch)), _protobuf, len, max_bytes)


def _protobuf(spans: Iterable[InLine]) -> bytes:
    """Encode one request of spans, with each resource and scope once."""
    request = ExportTraceServiceRequest()
    resources: dict[bytes, ResourceSpans] = {}
    scopes: dict[tuple[bytes, bytes], ScopeSpans] = {}
    for resource, scope, span in spans:
        if (resource, scope) not in scopes:
            if resource not in resources:
                resources[resource] = _parse(resource, request.resource_spans.add())
            scopes[resource, scope] = _parse(scope, resources[resource].scope_spans.add())
        scopes[resource, scope].spans.add(**fields_of(span))
    encoded: bytes = request.SerializeToString()
    return encoded


def json_of_lines(lines: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join OTLP JSON Lines into bodies of JSON; a line larger than the limit is a body alone."""
    return map(joined, batches(lines, len, max_bytes))
