"""Send OTLP over gRPC: one unary call per request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout_otlp.http_transport import partly_rejected
from otel_rollout_otlp.settings import OtlpSettings

MAX_REQUEST_BYTES: Final = (4 << 20) - (64 << 10)
"""Default maximum bytes of a request. gRPC servers, also Collectors, accept 4 MiB by default."""

_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_BAD_BATCH: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT})
_REFUSALS: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "check the credentials in OTEL_EXPORTER_OTLP_HEADERS",
    grpc.StatusCode.PERMISSION_DENIED: "check the credentials in OTEL_EXPORTER_OTLP_HEADERS",
    grpc.StatusCode.UNIMPLEMENTED: "what listens there is not OTLP over gRPC",
    grpc.StatusCode.NOT_FOUND: "what listens there is not OTLP over gRPC",
}
_TOO_LARGE: Final = "larger than max"
_DETAILS: Final = "grpc-status-details-bin"


class GrpcTransport:
    """A connection to one server.

    Args:
        settings: the server's address and the options of requests.
    """

    default_max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),  # the forwarder tries again
        ]
        compression = grpc.Compression.Gzip if settings.gzip else grpc.Compression.NoCompression
        if settings.tls:
            self._channel = grpc.secure_channel(settings.url, _credentials(settings), options, compression)
        else:
            self._channel = grpc.insecure_channel(settings.url, options, compression)
        self._export = self._channel.unary_unary(  # not the generated stub: requests are encoded already
            _METHOD, response_deserializer=ExportTraceServiceResponse.FromString
        )

    def send(self, body: bytes) -> None:
        """Send an encoded request.

        Raises:
            UndeliveredError: the receiver did not accept the whole request.
        """
        settings = self._settings
        try:
            response: ExportTraceServiceResponse = self._export(
                body, timeout=settings.timeout, metadata=tuple(settings.headers.items())
            )
        except grpc.RpcError as error:
            raise self._failure(error) from None
        partial = response.partial_success
        if partial.rejected_spans:
            raise partly_rejected(partial.rejected_spans, partial.error_message, settings.endpoint)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _failure(self, error: grpc.RpcError) -> UndeliveredError:
        code, details = error.code(), str(error.details() or "")
        answer = f"{self._settings.endpoint} answered {code.name} ({details})"
        if code in _BAD_BATCH or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details):
            return UndeliveredError(FailureKind.REJECTED, f"{answer}.")
        if code in _REFUSALS:
            return UndeliveredError(FailureKind.REFUSED, f"{answer}: {_REFUSALS[code]}.")
        if "CERTIFICATE_VERIFY_FAILED" in details:
            advice = "OTEL_EXPORTER_OTLP_CERTIFICATE names the CA that signed its certificate"
            return UndeliveredError(FailureKind.REFUSED, f"{answer}: {advice}.")
        return UndeliveredError(FailureKind.UNAVAILABLE, f"{answer}.", _retry_delay(error))


def _credentials(settings: OtlpSettings) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(settings.certificate),
        private_key=_read(settings.client_key),
        certificate_chain=_read(settings.client_certificate),
    )


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _retry_delay(error: grpc.RpcError) -> float | None:
    """Return the delay in gRPC's ``RetryInfo`` in seconds; None if it is missing."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS:
            try:
                for detail in Status.FromString(value).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
            except DecodeError:
                return None
    return None
