"""The OTLP exporter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import ExportFailure
from otel_rollout.exporting.arguments import positive_bytes
from otel_rollout.exporting.base import GuardedExporter, rejecting
from otel_rollout.exporting.batching import halved
from otel_rollout.otlp.span import Span
from otel_rollout_otlp import encoding, settings
from otel_rollout_otlp.http_transport import HttpTransport
from otel_rollout_otlp.settings import OtlpSettings, Protocol

if TYPE_CHECKING:
    from otel_rollout_otlp.grpc_transport import GrpcTransport


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
            self._encode, self._bodies_of_lines = encoding.json_of_spans, encoding.json_of_lines
        else:
            self._encode, self._bodies_of_lines = encoding.protobuf_of_spans, encoding.protobuf_of_lines
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
