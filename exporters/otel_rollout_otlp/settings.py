"""Where and how the exporter sends: arguments over ``OTEL_EXPORTER_OTLP_*`` over defaults, checked early."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

VARIABLE: Final = "OTEL_EXPORTER_OTLP_"
TRACES_VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_"
TRACES_PATH: Final = "/v1/traces"
DEFAULT_TIMEOUT: Final = 10.0
_DEFAULT_PORT: Final = {True: 4317, False: 4318}


class Protocol(enum.Enum):
    """How OTLP is carried."""

    GRPC = "grpc"
    HTTP_PROTOBUF = "http/protobuf"
    HTTP_JSON = "http/json"


@dataclass(frozen=True)
class Settings:
    """What the constructor's arguments and the environment come to.

    Attributes:
        protocol: how OTLP is carried.
        url: for HTTP what is posted to; for gRPC ``host:port``. Without user name and password.
        shown: the endpoint as a person may see it, and the variable it came from.
        headers: sent with every request; names in lower case.
        timeout: seconds one request may take.
        gzip: whether requests are compressed.
        tls: whether the connection is encrypted.
        certificate: PEM file with the CAs to trust, or None for the system's.
        client_key: PEM file with our key, or None.
        client_certificate: PEM file with our certificate, or None.
    """

    protocol: Protocol
    url: str
    shown: str
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    gzip: bool
    tls: bool
    certificate: str | None
    client_key: str | None
    client_certificate: str | None

    @property
    def bare_url(self) -> str:
        """What is posted to, without a query, which may hold a credential."""
        return self.url.partition("?")[0]

    def redact(self, text: str) -> str:
        """Mask the values of headers and the query of the address, which hold credentials, for a person."""
        query = self.url.partition("?")[2]
        if query:
            text = text.replace(query, "***")
        for value in self.headers.values():
            for secret in {value, value.rpartition(" ")[2]}:
                if len(secret) > 2:
                    text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class _Given:
    """A value, and where it came from."""

    value: str
    source: str


def resolve(
    *,
    endpoint: str | None,
    protocol: str | None,
    headers: Mapping[str, str] | str | None,
    timeout: float | None,
    compression: str | None,
    certificate: str | None,
    client_key: str | None,
    client_certificate: str | None,
    insecure: bool | None,
) -> Settings:
    """Combine arguments and environment, without touching the network.

    Raises:
        ValueError: a value is malformed or not supported; the message names where it came from.
    """
    chosen = _protocol(_given("protocol", protocol))
    url, tls, shown = _endpoint(endpoint, chosen, insecure)
    key = _file(_given("client_key", client_key))
    presented = _file(_given("client_certificate", client_certificate))
    if (key is None) != (presented is None):
        raise ValueError(
            f"{VARIABLE}CLIENT_KEY and {VARIABLE}CLIENT_CERTIFICATE (client_key=, client_certificate=) go "
            "together: set both, or neither."
        )
    return Settings(
        protocol=chosen,
        url=url,
        shown=shown,
        headers=_headers(headers),
        timeout=_timeout(_given("timeout", None if timeout is None else str(timeout))),
        gzip=_gzip(_given("compression", compression)),
        tls=tls,
        certificate=_file(_given("certificate", certificate)),
        client_key=key,
        client_certificate=presented,
    )


def _given(argument: str, value: str | None) -> _Given | None:
    """The argument, else its variable for traces, else the one for all signals. Empty counts as unset."""
    if value is not None:
        return _Given(value, f"{argument}=")
    for prefix in (TRACES_VARIABLE, VARIABLE):
        found = os.environ.get(prefix + argument.upper(), "").strip()
        if found:
            return _Given(found, prefix + argument.upper())
    return None


def _protocol(given: _Given | None) -> Protocol:
    if given is None:
        return Protocol.HTTP_PROTOBUF
    try:
        return Protocol(given.value)
    except ValueError:
        known = ", ".join(protocol.value for protocol in Protocol)
        raise ValueError(f"{given.source} is {given.value!r}; expected one of {known}.") from None


def _endpoint(argument: str | None, protocol: Protocol, insecure: bool | None) -> tuple[str, bool, str]:
    """What to connect to, whether encrypted, and how to show it."""
    grpc = protocol is Protocol.GRPC
    given = _given("endpoint", argument)
    if given is None:
        given = _Given(f"http://localhost:{_DEFAULT_PORT[grpc]}", f"default; {VARIABLE}ENDPOINT")
    value = given.value if "://" in given.value or not grpc else "//" + given.value
    parts = _checked(value, given, grpc)
    if grpc:
        tls = parts.scheme == "https" if parts.scheme else not _insecure(insecure)
        url = f"{_host(parts)}:{parts.port or _DEFAULT_PORT[True]}"
        return url, tls, f"{url} ({given.source})"
    path = parts.path
    if not given.source.startswith((TRACES_VARIABLE, "endpoint=")):  # those name the full address
        path = path.rstrip("/") + TRACES_PATH
    netloc = _host(parts) + (f":{parts.port}" if parts.port else "")
    url = f"{parts.scheme}://{netloc}{path or '/'}" + (f"?{parts.query}" if parts.query else "")
    return url, parts.scheme == "https", f"{url.partition('?')[0]} ({given.source})"


def _checked(value: str, given: _Given, grpc: bool) -> SplitResult:
    schemes = ("http", "https", "") if grpc else ("http", "https")
    try:
        parts = urlsplit(value)
        port = parts.port  # raises where it is no number
    except ValueError as error:
        raise ValueError(f"{given.source} is no usable address: {error}.") from None
    if parts.username or parts.password:
        raise ValueError(f"{given.source} holds a user name; put credentials into {VARIABLE}HEADERS instead.")
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        example = "http://collector:4317" if grpc else "http://collector:4318"
        raise ValueError(f"{given.source} is {given.value!r}; expected an address such as {example}.")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _insecure(argument: bool | None) -> bool:
    if argument is not None:
        return argument
    given = _given("insecure", None)
    return given is not None and given.value.lower() == "true"


def _headers(argument: Mapping[str, str] | str | None) -> dict[str, str]:
    """``key=value,key=value``, percent-encoded, of both variables; those for traces win."""
    if isinstance(argument, Mapping):
        return {name.lower(): value for name, value in argument.items()}
    if argument is not None:
        return _pairs(_Given(argument, "headers="))
    both: dict[str, str] = {}
    for prefix in (VARIABLE, TRACES_VARIABLE):
        both |= _pairs(_Given(os.environ.get(f"{prefix}HEADERS", ""), f"{prefix}HEADERS"))
    return both


def _pairs(given: _Given) -> dict[str, str]:
    pairs = {}
    for number, entry in enumerate(filter(None, (part.strip() for part in given.value.split(","))), 1):
        name, separator, value = entry.partition("=")
        if not separator or not name.strip():
            # The entry itself is not shown: it may be a credential that lacks its name.
            raise ValueError(f"{given.source}: entry {number} is not name=value.")
        pairs[unquote(name.strip()).lower()] = unquote(value.strip())
    return pairs


def _timeout(given: _Given | None) -> float:
    """Seconds, as OpenTelemetry's Python exporters read the same variable."""
    if given is None:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(given.value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{given.source} is {given.value!r}; expected a positive number of seconds.")
    return seconds


def _gzip(given: _Given | None) -> bool:
    if given is None or given.value.lower() == "none":
        return False
    if given.value.lower() == "gzip":
        return True
    raise ValueError(f"{given.source} is {given.value!r}; expected gzip or none.")


def _file(given: _Given | None) -> str | None:
    if given is None:
        return None
    if not os.path.isfile(given.value):
        raise ValueError(f"{given.source} is {given.value!r}, which is no file that can be read here.")
    return given.value
