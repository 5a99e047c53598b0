"""OTLP over HTTP: one POST per request, protobuf or JSON."""

from __future__ import annotations

import gzip
from typing import Final

import requests
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rollout.exporting.api import FailureKind, is_cut_off, retry_after
from otel_rollout_otlp.settings import Protocol, Settings
from otel_rollout_otlp.undelivered import UndeliveredError, partly_rejected

MAX_REQUEST_BYTES: Final = 8 << 20
"""Well under the 20 MiB that a Collector takes by default."""
_CONTENT_TYPES: Final = {
    Protocol.HTTP_PROTOBUF: "application/x-protobuf",
    Protocol.HTTP_JSON: "application/json",
}
_GZIP_LEVEL: Final = 1
"""Level 9 compresses rollouts little better, for forty times the CPU."""
_CONNECT_TIMEOUT: Final = 5.0
_BAD_BATCH: Final = frozenset({400, 413, 422})
_PATIENCE: Final = frozenset({408, 425, 429})
_WORDS: Final = 300
"""Characters of a receiver's explanation that are passed on."""


class HttpTransport:
    """Posts requests to one address.

    Args:
        settings: where to and how.
    """

    default_max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        session = requests.Session()
        session.auth = _leave_headers  # or ~/.netrc replaces an Authorization header of ours
        if settings.client_certificate and settings.client_key:
            session.cert = (settings.client_certificate, settings.client_key)
        session.headers.update(settings.headers)
        session.headers["Content-Type"] = _CONTENT_TYPES[settings.protocol]
        if settings.gzip:
            session.headers["Content-Encoding"] = "gzip"
        self._session = session

    def send(self, body: bytes) -> None:
        """Send a request, encoded.

        Raises:
            UndeliveredError: when it was not accepted as a whole.
        """
        response = self._post(gzip.compress(body, _GZIP_LEVEL) if self._settings.gzip else body)
        if 200 <= response.status_code < 300:
            self._check_partial_success(response)
        else:
            raise self._refusal(response)

    def close(self) -> None:
        """Close connections."""
        self._session.close()

    def _post(self, body: bytes) -> requests.Response:
        settings = self._settings
        timeouts = (min(_CONNECT_TIMEOUT, settings.timeout), settings.timeout)
        try:
            return self._session.post(
                settings.url,
                data=body,
                timeout=timeouts,
                verify=settings.certificate or True,  # here: REQUESTS_CA_BUNDLE would win over the session's
                allow_redirects=False,  # a redirected POST would become a GET, and a login page an answer
            )
        except requests.exceptions.SSLError as error:
            if is_cut_off(error):
                raise UndeliveredError(
                    FailureKind.UNAVAILABLE, f"The TLS connection to {settings.shown} was cut off."
                ) from None
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"No trusted TLS connection to {settings.shown}: {_reason(error)}. "
                "OTEL_EXPORTER_OTLP_CERTIFICATE names the CA that signed its certificate, "
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY what it wants to see of us.",
            ) from None
        except requests.exceptions.Timeout:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"{settings.shown} did not answer within {settings.timeout:g} s "
                "(OTEL_EXPORTER_OTLP_TIMEOUT, in seconds).",
            ) from None
        except requests.exceptions.RequestException as error:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE, f"{settings.shown} cannot be reached: {_reason(error)}."
            ) from None

    def _refusal(self, response: requests.Response) -> UndeliveredError:
        status, settings = response.status_code, self._settings
        answer = f"{settings.shown} answered {status} {response.reason}{_explanation(response)}"
        if status in _BAD_BATCH:
            return UndeliveredError(FailureKind.REJECTED, f"{answer}.")
        if status in _PATIENCE or status >= 500:
            return UndeliveredError(FailureKind.UNAVAILABLE, f"{answer}.", retry_after(response.headers))
        if status in (401, 403):
            advice = "check the credentials in OTEL_EXPORTER_OTLP_HEADERS"
        elif status == 415:
            advice = "set OTEL_EXPORTER_OTLP_PROTOCOL to what it takes: http/protobuf or http/json"
        else:
            asked = settings.bare_url
            advice = f"check the address; it should be that of OTLP over HTTP, and {asked} was posted to"
        return UndeliveredError(FailureKind.REFUSED, f"{answer}: {advice}.")

    def _check_partial_success(self, response: requests.Response) -> None:
        try:
            if "json" in response.headers.get("Content-Type", ""):
                partial = (response.json() or {}).get("partialSuccess") or {}
                count, reason = int(partial.get("rejectedSpans") or 0), str(partial.get("errorMessage") or "")
            else:
                told = ExportTraceServiceResponse.FromString(response.content).partial_success
                count, reason = told.rejected_spans, told.error_message
        except (ValueError, TypeError, AttributeError, DecodeError):
            return  # it said 200; what else it says need not be OTLP's
        if count:
            raise partly_rejected(count, reason, self._settings.shown)


def _leave_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _reason(error: BaseException) -> str:
    """What the operating system said; the HTTP libraries wrap it in words that differ each time."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {error}"[:_WORDS]


def _explanation(response: requests.Response) -> str:
    """The receiver's own words: the message of a ``google.rpc.Status``, or plain text."""
    kind = response.headers.get("Content-Type", "")
    try:
        if "json" in kind:
            words = str(response.json().get("message", ""))
        elif "protobuf" in kind:
            from google.rpc.status_pb2 import Status

            words = Status.FromString(response.content).message
        else:
            words = response.text if kind.startswith("text/plain") else ""
    except (ValueError, AttributeError, DecodeError):
        words = ""
    return f" ({words.strip()[:_WORDS]})" if words.strip() else ""
