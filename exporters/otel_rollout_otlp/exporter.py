"""The exporter itself: settings and transport put together behind OpenTelemetry's ``SpanExporter``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol as Interface

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout_otlp import encoding, settings
from otel_rollout_otlp.over_http import HttpTransport
from otel_rollout_otlp.settings import Protocol, Settings
from otel_rollout_otlp.undelivered import UndeliveredError

_logger = logging.getLogger(__name__)


class Transport(Interface):
    """What carries requests."""

    default_max_request_bytes: int

    def send(self, body: bytes) -> None:
        """Send a request, encoded; raises UndeliveredError."""

    def close(self) -> None:
        """Close connections."""


class OtlpSpanExporter(SpanExporter):
    """Sends spans over OTLP, each request once: whoever drives it decides whether and when to try again.

    Every argument wins over its variable, and a variable ``OTEL_EXPORTER_OTLP_TRACES_…`` over the one for all
    signals. Nothing is connected before the first ``export``.

    Args:
        endpoint: where to (``OTEL_EXPORTER_OTLP_ENDPOINT``; port 4317 of localhost for gRPC, 4318 for HTTP).
            Over HTTP this argument and ``…_TRACES_ENDPOINT`` are the full address; ``/v1/traces`` is added to
            ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        protocol: ``http/protobuf`` (default), ``http/json`` or ``grpc`` (``OTEL_EXPORTER_OTLP_PROTOCOL``).
            With ``http/json`` recorded lines are sent as they are, which costs least here, and a Collector
            more.
        headers: sent with each request (``OTEL_EXPORTER_OTLP_HEADERS``, ``name=value,name=value``).
        timeout: seconds one request may take (``OTEL_EXPORTER_OTLP_TIMEOUT``; 10).
        compression: ``gzip`` or ``none`` (``OTEL_EXPORTER_OTLP_COMPRESSION``; none).
        certificate: PEM file of the CA that signed the server's certificate
            (``OTEL_EXPORTER_OTLP_CERTIFICATE``).
        client_key: PEM file with our key (``OTEL_EXPORTER_OTLP_CLIENT_KEY``).
        client_certificate: PEM file with our certificate (``OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE``).
        insecure: no TLS for a gRPC endpoint without a scheme (``OTEL_EXPORTER_OTLP_INSECURE``).
        max_request_bytes: bytes in one request before compression (8 MiB; 4 MiB less a little for gRPC). A
            larger span goes alone.

    Attributes:
        last_failure: why the last export returned FAILURE; None after a success.

    Raises:
        ValueError: an argument or environment variable is malformed or not supported.
    """

    last_failure: ExportFailure | None

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
        if max_request_bytes is not None and max_request_bytes <= 0:
            raise ValueError(
                f"max_request_bytes= is {max_request_bytes}; expected a positive number of bytes."
            )
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
        self._max_bytes = max_request_bytes or self._transport.default_max_request_bytes
        self._closed = False
        # A SimpleSpanProcessor exports from whichever thread ended the span.
        self._lock = threading.Lock()
        self.last_failure = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans. Never raises; ``last_failure`` says why it did not work."""
        bodies = encoding.bounded(spans, self._encode, self._max_bytes) if spans else iter(())
        return self._guarded(lambda: self._send(bodies, "A span cannot be encoded"))

    def export_lines(self, lines: Sequence[bytes]) -> SpanExportResult:
        """Send lines of OTLP JSON Lines; otherwise as :meth:`export`."""
        bodies = self._bodies_of_lines(lines, self._max_bytes)
        return self._guarded(lambda: self._send(bodies, "A line is no OTLP/JSON trace data"))

    def destination(self, project: str) -> str:
        """Return where the spans are sent, without credentials; a receiver does not know the project."""
        return f"the OTLP endpoint {self._settings.shown.partition(' (')[0]}"

    def check(self) -> ExportFailure | None:
        """Check by a request without spans that the receiver answers and accepts it; None if so."""
        self._guarded(lambda: self._transport.send(self._encode(())))
        return self.last_failure

    def shutdown(self) -> None:
        """Close connections. Later exports fail."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._transport.close()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """True at once: ``export`` keeps nothing back."""
        return True

    def _send(self, bodies: Iterator[bytes], problem: str) -> None:
        try:
            encoded = list(bodies)
        except Exception as error:  # whatever cannot be encoded is the batch's fault
            raise UndeliveredError(
                FailureKind.REJECTED, f"{problem} ({type(error).__name__}: {error})."
            ) from error
        for body in encoded:
            self._transport.send(body)

    def _guarded(self, work: Callable[[], None]) -> SpanExportResult:
        with self._lock:
            try:
                if self._closed:
                    raise UndeliveredError(FailureKind.REFUSED, "The OTLP exporter has been shut down.")
                work()
            except UndeliveredError as error:
                failure = error.failure
            except Exception as error:  # an exporter must not raise; what is kept can be sent again
                _logger.debug("Unexpected error in the OTLP exporter", exc_info=True)
                failure = ExportFailure(
                    FailureKind.UNAVAILABLE,
                    f"Unexpected {type(error).__name__} in the OTLP exporter: {error}",
                )
            else:
                self.last_failure = None
                return SpanExportResult.SUCCESS
            message = self._settings.redact(failure.message)
            self.last_failure = ExportFailure(failure.kind, message, failure.retry_after)
            return SpanExportResult.FAILURE


def _transport(chosen: Settings) -> Transport:
    if chosen.protocol is Protocol.GRPC:
        from otel_rollout_otlp.over_grpc import GrpcTransport  # grpcio is heavy, and not always wanted

        return GrpcTransport(chosen)
    return HttpTransport(chosen)
