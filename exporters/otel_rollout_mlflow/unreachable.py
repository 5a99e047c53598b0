"""Why there was no answer, in one sentence that says what to do about it."""

from __future__ import annotations

import ssl
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Final

import requests

from otel_rollout.exporting.api import FailureKind, causes
from otel_rollout_mlflow.target import UndeliveredError

if TYPE_CHECKING:
    from otel_rollout_mlflow.settings import Settings

_NAME_MISMATCHES: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}
)


def unreachable(error: Exception, settings: Settings, request: str) -> UndeliveredError:
    """What an exception of ``requests`` means for what was to be delivered."""
    server = f"the MLflow server at {settings.shown_uri}"
    if isinstance(error, requests.exceptions.SSLError):
        return _tls(error, settings, server)
    if isinstance(error, requests.exceptions.Timeout):
        return UndeliveredError(
            FailureKind.UNAVAILABLE,
            f"{request} was not answered in time by {server} ({settings.timeout:g} s; "
            "MLFLOW_HTTP_REQUEST_TIMEOUT changes it).",
        )
    if isinstance(error, requests.exceptions.RequestException):
        return UndeliveredError(FailureKind.UNAVAILABLE, f"No connection to {server}: {_reason(error)}.")
    # How `requests` complains about certificate files it cannot read.
    return UndeliveredError(
        FailureKind.REFUSED,
        f"No TLS connection to {server} ({error}): check MLFLOW_TRACKING_SERVER_CERT_PATH and "
        "MLFLOW_TRACKING_CLIENT_CERT_PATH.",
    )


def _tls(error: Exception, settings: Settings, server: str) -> UndeliveredError:
    cause = next((e for e in causes(error) if isinstance(e, ssl.SSLError)), None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        if cause.verify_code in _NAME_MISMATCHES:
            fix = "put the name it was issued for into MLFLOW_TRACKING_URI"
        elif isinstance(settings.verify_tls, str):
            fix = f"MLFLOW_TRACKING_SERVER_CERT_PATH, {settings.verify_tls}, lacks the CA that signed it"
        else:
            fix = "set MLFLOW_TRACKING_SERVER_CERT_PATH to the file of the CA that signed it"
        why = cause.verify_message.rstrip(".")
        message = f"The certificate of {server} is not trusted ({why}): {fix}."
        return UndeliveredError(FailureKind.REFUSED, message)
    reason = (cause.reason if cause else None) or type(cause or error).__name__
    if reason in _NO_TLS:
        fix = "write http:// in MLFLOW_TRACKING_URI, or the port that does"
        return UndeliveredError(FailureKind.REFUSED, f"No TLS is spoken by {server} ({reason}): {fix}.")
    return UndeliveredError(FailureKind.UNAVAILABLE, f"The TLS connection to {server} failed ({reason}).")


def _reason(error: Exception) -> str:
    """What the operating system said; the HTTP libraries wrap it in words that differ each time."""
    for cause in causes(error):
        if isinstance(cause, RemoteDisconnected):
            return "it hung up (an HTTPS port wants https:// in MLFLOW_TRACKING_URI)"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return type(error).__name__
