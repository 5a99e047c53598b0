"""Resolve the exporter's settings.

Arguments win over ``OTEL_EXPORTER_OTLP_*``, and variables win over defaults. The constructor checks all
values.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from otel_rollout.exporting.arguments import Given, given, masked, seconds

VARIABLE: Final = "OTEL_EXPORTER_OTLP_"
TRACES_VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_"
TRACES_PATH: Final = "/v1/traces"
DEFAULT_TIMEOUT: Final = 10.0
_GRPC_PORT: Final = 4317
_HTTP_PORT: Final = 4318
_MIN_SECRET_CHARS: Final = 3
"""Minimum characters of a header's value that messages mask. A shorter value, such as ``1``, is no secret."""


class Protocol(enum.Enum):
    """The encoding and transport of OTLP."""

    GRPC = "grpc"
    HTTP_PROTOBUF = "http/protobuf"
    HTTP_JSON = "http/json"


@dataclass(frozen=True)
class OtlpSettings:
    """The constructor's arguments and the environment, resolved.

    Attributes:
        protocol: encoding and transport.
        url: for HTTP the full address; for gRPC ``host:port``. It has no user name and password.
        endpoint: the address without credentials, and the variable that set the address, for messages.
        headers: sent with every request; names in lower case.
        timeout: maximum seconds for one request.
        gzip: whether requests are compressed.
        tls: whether the connection is encrypted.
        certificate: PEM file with the CAs to trust, or None for the system's.
        client_key: PEM file with the client's key, or None.
        client_certificate: PEM file with the client's certificate, or None.
    """

    protocol: Protocol
    url: str
    endpoint: str
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    gzip: bool
    tls: bool
    certificate: str | None
    client_key: str | None
    client_certificate: str | None

    def redact(self, text: str) -> str:
        """Mask header values and the query of the address, which may be credentials."""
        values = [part for value in self.headers.values() for part in (value, value.rpartition(" ")[2])]
        secrets = [value for value in values if len(value) >= _MIN_SECRET_CHARS]
        return masked(text, [self.url.partition("?")[2], *secrets])


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
) -> OtlpSettings:
    """Combine arguments and environment, without touching the network.

    Raises:
        ValueError: a value is malformed or not supported; the message names its source.
    """
    chosen = _protocol(_given("protocol", protocol))
    url, tls, described = _endpoint(endpoint, chosen, insecure)
    key = _file(_given("client_key", client_key))
    presented = _file(_given("client_certificate", client_certificate))
    if (key is None) != (presented is None):
        raise ValueError(
            f"{VARIABLE}CLIENT_KEY and {VARIABLE}CLIENT_CERTIFICATE (client_key=, client_certificate=) go "
            "together: set both, or neither."
        )
    return OtlpSettings(
        protocol=chosen,
        url=url,
        endpoint=described,
        headers=_headers(headers),
        timeout=seconds("timeout", timeout, *_variables("timeout"), default=DEFAULT_TIMEOUT),
        gzip=_gzip(_given("compression", compression)),
        tls=tls,
        certificate=_file(_given("certificate", certificate)),
        client_key=key,
        client_certificate=presented,
    )


def _variables(argument: str) -> tuple[str, str]:
    """Return an argument's variables: for traces, then for all signals."""
    return TRACES_VARIABLE + argument.upper(), VARIABLE + argument.upper()


def _given(argument: str, value: str | None) -> Given:
    """Return an argument, else its variable for traces, else for all signals."""
    found = given(argument, value, *_variables(argument))
    return found._replace(value=found.value and found.value.strip())


def _protocol(name: Given) -> Protocol:
    if name.value is None:
        return Protocol.HTTP_PROTOBUF
    try:
        return Protocol(name.value)
    except ValueError:
        known = ", ".join(protocol.value for protocol in Protocol)
        raise ValueError(f"{name.source} is {name.value!r}; expected one of {known}.") from None


def _endpoint(argument: str | None, protocol: Protocol, insecure: bool | None) -> tuple[str, bool, str]:
    """Return the address, whether to encrypt, and the address for messages."""
    grpc = protocol is Protocol.GRPC
    address, source = _given("endpoint", argument)
    if address is None:
        port = _GRPC_PORT if grpc else _HTTP_PORT
        address, source = f"http://localhost:{port}", f"default; {VARIABLE}ENDPOINT"
    parts = _checked(address, source, grpc)
    if grpc:
        tls = parts.scheme == "https" if parts.scheme else not _insecure(insecure)
        url = f"{_host(parts)}:{parts.port or _GRPC_PORT}"
        return url, tls, f"{url} ({source})"
    path = parts.path
    if not source.startswith((TRACES_VARIABLE, "endpoint=")):  # these hold the full address
        path = path.rstrip("/") + TRACES_PATH
    netloc = _host(parts) + (f":{parts.port}" if parts.port else "")
    url = f"{parts.scheme}://{netloc}{path or '/'}" + (f"?{parts.query}" if parts.query else "")
    return url, parts.scheme == "https", f"{url.partition('?')[0]} ({source})"


def _checked(address: str, source: str, grpc: bool) -> SplitResult:
    schemes = ("http", "https", "") if grpc else ("http", "https")
    try:
        parts = urlsplit(f"//{address}" if grpc and "://" not in address else address)
        port = parts.port  # raises unless it is a number
    except ValueError as error:
        raise ValueError(f"{source} is no usable address: {error}.") from None
    if parts.username or parts.password:
        raise ValueError(f"{source} holds a user name; put credentials into {VARIABLE}HEADERS instead.")
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        example = "http://collector:4317" if grpc else "http://collector:4318"
        raise ValueError(f"{source} is {address!r}; expected an address such as {example}.")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _insecure(argument: bool | None) -> bool:
    if argument is not None:
        return argument
    return (_given("insecure", None).value or "").lower() == "true"


def _headers(argument: Mapping[str, str] | str | None) -> dict[str, str]:
    """Read ``name=value,…``, percent-encoded; the variable for traces wins."""
    if isinstance(argument, Mapping):
        return {name.lower(): value for name, value in argument.items()}
    if argument is not None:
        return _pairs(argument, "headers=")
    both: dict[str, str] = {}
    for prefix in (VARIABLE, TRACES_VARIABLE):
        both |= _pairs(os.environ.get(f"{prefix}HEADERS", ""), f"{prefix}HEADERS")
    return both


def _pairs(text: str, source: str) -> dict[str, str]:
    pairs = {}
    for number, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, separator, value = entry.partition("=")
        if not separator or not name.strip():
            # Do not show the entry: it may be a credential without a name.
            raise ValueError(f"{source}: entry {number} is not name=value.")
        pairs[unquote(name.strip()).lower()] = unquote(value.strip())
    return pairs


def _gzip(name: Given) -> bool:
    if name.value is None or name.value.lower() == "none":
        return False
    if name.value.lower() == "gzip":
        return True
    raise ValueError(f"{name.source} is {name.value!r}; expected gzip or none.")


def _file(path: Given) -> str | None:
    if path.value is not None and not os.path.isfile(path.value):
        raise ValueError(f"{path.source} is {path.value!r}, which is not a readable file here.")
    return path.value
