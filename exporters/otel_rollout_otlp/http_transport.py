"""Send OTLP over HTTP: one POST per request, protobuf or JSON."""

from __future__ import annotations

import gzip
from typing import Final

import requests
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.http import HeaderAuth, HttpServer, HttpSession
from otel_rollout_otlp.settings import OtlpSettings, Protocol

MAX_REQUEST_BYTES: Final = 8 << 20
"""Default maximum bytes of a request. A Collector accepts 20 MiB by default."""
_CONTENT_TYPES: Final = {
    Protocol.HTTP_PROTOBUF: "application/x-protobuf",
    Protocol.HTTP_JSON: "application/json",
}
_GZIP_LEVEL: Final = 1
"""Compression level. Level 9 compresses rollouts little better, for forty times the CPU time."""
_CHECK_CREDENTIALS: Final = "check the credentials in OTEL_EXPORTER_OTLP_HEADERS"


class HttpTransport:
    """Connections to one address, for POST requests.

    Args:
        settings: the address and the options of requests.
    """

    default_max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        protocol = {"Content-Type": _CONTENT_TYPES[settings.protocol]}
        if settings.gzip:
            protocol["Content-Encoding"] = "gzip"
        key, certificate = settings.client_key, settings.client_certificate
        self._session = HttpSession(
            _server(settings),
            settings.timeout,
            auth=HeaderAuth(),
            verify=settings.certificate or True,
            client_certificate=(certificate, key) if certificate and key else None,
            headers={**settings.headers, **protocol},
        )

    def send(self, body: bytes) -> None:
        """Send an encoded request.

        Raises:
            UndeliveredError: the receiver did not accept the whole request.
        """
        body = gzip.compress(body, _GZIP_LEVEL) if self._settings.gzip else body
        response = self._session.send("POST", self._settings.url, data=body)
        self._session.check(response, "receiving spans", of_batch=True)
        self._check_partial_success(response)

    def close(self) -> None:
        """Close connections."""
        self._session.close()

    def _check_partial_success(self, response: requests.Response) -> None:
        try:
            if "json" in response.headers.get("Content-Type", ""):
                partial = (response.json() or {}).get("partialSuccess") or {}
                count, reason = int(partial.get("rejectedSpans") or 0), str(partial.get("errorMessage") or "")
            else:
                answer = ExportTraceServiceResponse.FromString(response.content).partial_success
                count, reason = answer.rejected_spans, answer.error_message
        except (ValueError, TypeError, AttributeError, DecodeError):
            return  # a success with a body that is not OTLP
        if count:
            raise partly_rejected(count, reason, self._settings.endpoint)


def _server(settings: OtlpSettings) -> HttpServer:
    return HttpServer(
        name=f"the OTLP endpoint {settings.endpoint}",
        address="OTEL_EXPORTER_OTLP_ENDPOINT",
        timeout="OTEL_EXPORTER_OTLP_TIMEOUT",
        ca="OTEL_EXPORTER_OTLP_CERTIFICATE",
        client_certificate="OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        advice={
            401: _CHECK_CREDENTIALS,
            403: _CHECK_CREDENTIALS,
            415: "set OTEL_EXPORTER_OTLP_PROTOCOL to what it takes: http/protobuf or http/json",
        },
        other_protocol="(a gRPC port, such as 4317, needs OTEL_EXPORTER_OTLP_PROTOCOL=grpc)",
    )


def partly_rejected(count: int, reason: str, endpoint: str) -> UndeliveredError:
    """Return the failure for a request whose spans were partly rejected.

    The receiver does not say which spans it rejected. So the forwarder halves the batch until it finds them,
    and sends accepted spans again, with unchanged ids.
    """
    return UndeliveredError(
        FailureKind.REJECTED, f"{endpoint} rejects {count} spans of a request: {reason or 'no reason given'}."
    )
