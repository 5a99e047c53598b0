"""Send HTTP requests of exporters once, and map answers to kinds of failure.

This module needs ``requests``, which every HTTP exporter's extra installs.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import FailureKind, UndeliveredError

_REJECTED: Final = frozenset({400, 409, 413, 422})
"""Statuses that blame the content of the request.

Weave answers 409 to a call whose content does not match its digest. Elsewhere 409 is a conflict. The
forwarder sends halves of the batch again, which outlasts a short conflict. A lasting conflict must not hold
up all other spans.
"""
_UNAVAILABLE: Final = frozenset({408, 425, 429, 499})
"""Statuses below 500 that ask for another attempt."""
_REFUSED: Final = frozenset({501})
"""Statuses from 500 for which another attempt is useless."""
_NEVER_STORED: Final = frozenset({425, 429})
"""Statuses of an unavailable target that has certainly not stored the request."""
_MAX_WORDS: Final = 300
"""Maximum characters of a server's explanation in a message."""
_NAME_MISMATCHES: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"}
)
"""OpenSSL's reasons for an error when the server does not speak TLS."""


def kind_of_status(status: int) -> FailureKind | None:
    """Return the kind of failure that an HTTP status means; None for a success."""
    if 200 <= status < 300:
        return None
    if status in _REJECTED:
        return FailureKind.REJECTED
    if status in _UNAVAILABLE or (status >= 500 and status not in _REFUSED):
        return FailureKind.UNAVAILABLE
    return FailureKind.REFUSED


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return ``Retry-After``, a number or a date, in seconds; None if it is missing or unreadable."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


@dataclass(frozen=True)
class HttpServer:
    """Name of a server and of its settings, for messages.

    Attributes:
        name: phrase without credentials: ``the MLflow server at http://127.0.0.1:5000``.
        address: name of the setting with the address, such as ``MLFLOW_TRACKING_URI``.
        timeout: name of the setting with the timeout.
        ca: name of the setting with the CA bundle.
        client_certificate: name of the setting with the client's certificate; empty if there is none.
        advice: HTTP status → what a person should do. The default is to check the address.
        other_protocol: in brackets, what to do if the port speaks another protocol; empty if none is likely.
    """

    name: str
    address: str
    timeout: str
    ca: str
    client_certificate: str = ""
    advice: Mapping[int, str] = field(default_factory=dict)
    other_protocol: str = ""

    @property
    def files(self) -> str:
        """The settings with files of certificates."""
        return " and ".join(filter(None, (self.ca, self.client_certificate)))


class HttpSession:
    """Connections to one server.

    Each request is sent once; the forwarder tries again.

    Args:
        server: names for messages.
        timeout: maximum seconds without a byte from the server in one request.
        auth: how requests authenticate; None for ``~/.netrc``, if that file names the host.
        verify: whether to check the server's certificate, or the CA bundle to check it with.
        client_certificate: file of the client's certificate, or files of certificate and key.
        headers: sent with each request.
    """

    def __init__(
        self,
        server: HttpServer,
        timeout: float,
        *,
        auth: AuthBase | None = None,
        verify: bool | str = True,
        client_certificate: str | tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._timeout = timeout
        self._verify = verify
        self._session = requests.Session()
        self._session.auth = auth
        self._session.cert = client_certificate
        self._session.headers.update(headers or {})

    def send(self, method: str, url: str, **request: Any) -> requests.Response:
        """Send a request and return the answer with any status.

        Args:
            method: HTTP method.
            url: full URL.
            request: further arguments of :meth:`requests.Session.request`.

        Raises:
            UndeliveredError: there was no answer.
        """
        try:
            return self._session.request(
                method,
                url,
                timeout=(min(waits().connect, self._timeout), self._timeout),
                # No redirects: a redirected POST becomes a GET, and a login page would pass for an answer.
                allow_redirects=False,
                # Given with each request: REQUESTS_CA_BUNDLE wins over the `verify` of a session.
                verify=self._verify,
                **request,
            )
        except (requests.exceptions.RequestException, OSError) as error:
            raise self._unreachable(error, f"{method} {urlsplit(url).path}") from None

    def check(self, response: requests.Response, action: str, *, of_batch: bool = False) -> None:
        """Raise the failure that an answer's status means.

        Args:
            response: the answer.
            action: what was tried, such as ``writing spans``.
            of_batch: whether the request held spans, which may be at fault. If the server rejects any other
                request, the set-up is wrong.

        Raises:
            UndeliveredError: unless the status is a success.
        """
        status = response.status_code
        kind = kind_of_status(status)
        if kind is None:
            return
        message = f"{self._server.name} answered {described(response)} when {action}"
        if kind is FailureKind.REJECTED and not of_batch:
            kind = FailureKind.REFUSED
        if kind is FailureKind.REFUSED:
            if 300 <= status < 400:
                message += f", pointing to {response.headers.get('Location', 'nowhere').partition('?')[0]}"
            message += f": {self._server.advice.get(status, f'check {self._server.address}')}"
        is_unavailable = kind is FailureKind.UNAVAILABLE
        raise UndeliveredError(
            kind,
            f"{_capitalized(message)}.",
            retry_after(response.headers) if is_unavailable else None,
            status=status,
            may_have_arrived=is_unavailable and status not in _NEVER_STORED,
        )

    @contextmanager
    def reading(self, response: requests.Response, protocol: str) -> Iterator[None]:
        """Read an answer in a block; an answer of another form means that another server answers.

        Args:
            response: the answer.
            protocol: the expected server, such as ``an MLflow tracking server``.

        Raises:
            UndeliveredError: the block raised an exception that a wrong value causes.
        """
        try:
            yield
        except (ValueError, LookupError, AttributeError, TypeError):
            message = f"{self._server.name} answers, but not as {protocol} ({described(response)})"
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"{_capitalized(message)}: check {self._server.address}.",
                status=response.status_code,
            ) from None

    def close(self) -> None:
        """Close connections."""
        self._session.close()

    def _unreachable(self, error: Exception, request: str) -> UndeliveredError:
        server = self._server
        if isinstance(error, requests.exceptions.SSLError):
            return self._tls_failure(error)
        if isinstance(error, requests.exceptions.Timeout):
            return UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"{request} was not answered in time by {server.name} ({self._timeout:g} s; {server.timeout} "
                "changes it).",
                may_have_arrived=not isinstance(error, requests.exceptions.ConnectTimeout),
            )
        if isinstance(error, requests.exceptions.RequestException):
            return UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"No connection to {server.name}: {self._reason(error)}.",
                may_have_arrived=True,
            )
        # `requests` raises a plain OSError for certificate files that it cannot read.
        return UndeliveredError(
            FailureKind.REFUSED, f"No TLS connection to {server.name} ({error}): check {server.files}."
        )

    def _tls_failure(self, error: Exception) -> UndeliveredError:
        server = self._server
        chain = list(causes(error))
        cause = next((found for found in chain if isinstance(found, ssl.SSLError)), None)
        reason = getattr(cause, "reason", None) or type(cause or error).__name__
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message.rstrip(".")
            if cause.verify_code in _NAME_MISMATCHES:
                fix = f"put the name it was issued for into {server.address}"
            elif isinstance(self._verify, str):
                fix = f"{server.ca}, {self._verify}, lacks the CA that signed it"
            else:
                fix = f"set {server.ca} to the file of the CA that signed it"
            message = f"The certificate of {server.name} is not trusted ({reason}): {fix}."
            return UndeliveredError(FailureKind.REFUSED, message)
        if reason in _NO_TLS:
            fix = f"write http:// in {server.address}, or the port that does"
            return UndeliveredError(
                FailureKind.REFUSED, f"{_capitalized(server.name)} does not speak TLS ({reason}): {fix}."
            )
        if any(isinstance(found, _CUT_OFF) for found in chain):
            return UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"The TLS connection to {server.name} was cut off ({reason}).",
                may_have_arrived=True,
            )
        message = f"No TLS connection to {server.name} ({reason}): check {server.files}."
        return UndeliveredError(FailureKind.REFUSED, message)

    def _reason(self, error: Exception) -> str:
        """Return the operating system's words for an error."""
        for cause in causes(error):
            if isinstance(cause, RemoteDisconnected):
                return f"it hung up (an HTTPS port wants https:// in {self._server.address})"
            if isinstance(cause, BadStatusLine | ConnectionResetError):  # which of them is a race
                said = getattr(cause, "strerror", "") or "it does not answer in HTTP/1.1"
                return f"{said} {self._server.other_protocol}".rstrip()
            if isinstance(cause, OSError) and cause.strerror:
                return cause.strerror
        return type(error).__name__


_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""OpenSSL's errors when a connection ends too early, as in an outage."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, as ``urllib3`` nests them."""
    cause: BaseException | None = error
    while isinstance(cause, BaseException):
        yield cause
        reason = getattr(cause, "reason", None)
        if not isinstance(reason, BaseException):
            reason = next((arg for arg in reversed(cause.args) if isinstance(arg, BaseException)), None)
        cause = reason or cause.__cause__ or cause.__context__


def described(response: requests.Response) -> str:
    """Describe an answer: status, reason, and the server's words but no web page."""
    status = f"{response.status_code} {response.reason}"
    words = _words_of(response).strip()
    return f"{status} ({words[:_MAX_WORDS]})" if words else status


def _words_of(response: requests.Response) -> str:
    content_type = response.headers.get("Content-Type", "")
    try:
        if "protobuf" in content_type:  # OTLP's `google.rpc.Status`
            from google.rpc.status_pb2 import Status

            return str(Status.FromString(response.content).message)
        if content_type.startswith("text/plain"):
            return response.text
        body = response.json()
        return str(body.get("reason") or body.get("message") or body.get("detail") or "")
    except Exception:  # noqa: BLE001 - the body does not match its content type, or a package is missing
        return ""


def _capitalized(message: str) -> str:
    return message[:1].upper() + message[1:]


class BearerAuth(AuthBase):
    """A bearer token as authentication. ``~/.netrc`` would replace a plain header."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token to a request."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class HeaderAuth(AuthBase):
    """Authentication by the session's headers, which keeps ``~/.netrc`` out."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Return the request unchanged."""
        return request
