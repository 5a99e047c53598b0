"""Add ``traceparent`` to the requests of HTTP clients inside a trajectory.

The clients are urllib3 (and so requests and botocore), httpx, httpx2 and aiohttp. Each hook is below the
client's redirects, retries and choice of proxy. So the hook knows the host of each single request. The hook
leaves the application's own headers unchanged, so a redirect carries no trace headers to another host.

A header that the application or an instrumentor has set stays. If an instrumentor of OpenTelemetry is on, the
request carries the instrumentor's span.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import context as otel_context

from otel_rollout import settings_reader
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.patching import Function, Patches, when_imported
from otel_rollout.record.capture.context import is_in_trajectory
from otel_rollout.record.propagation import carrier
from otel_rollout.record.propagation.state import state
from otel_rollout.record.runs import membership
from otel_rollout.record.runs.state import state as runs
from otel_rollout.settings import Settings

_TRACEPARENT: Final = "traceparent"
_HEADERS: Final[tuple[str, ...]] = (_TRACEPARENT, "tracestate", carrier.IDENTITY_KEY)
_SUPPRESSED: Final = (getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", ""), "suppress_instrumentation")
"""Keys of a context in which an exporter of OpenTelemetry sends spans; the second is of older versions."""

_DOING: Final = "adding trace headers to a request"
Headers = Mapping[Any, Any]


def install() -> None:
    """Patch the clients that are imported, and each other one when it is imported.

    Nothing is patched if variables switch tracing off.
    """
    if state.http_patches is not None or settings_reader.switched_off(os.environ):
        return
    state.http_patches = Patches()
    for name in CLIENTS:
        when_imported(name, _patch)


def uninstall() -> None:
    """Undo :func:`install`."""
    if state.http_patches is not None:
        state.http_patches.undo()
        state.http_patches = None


def missing_headers(host: str | None, given: Headers) -> dict[str, str]:
    """Return the trace headers that a request should carry and does not.

    Args:
        host: host that the request is for; not the proxy that forwards it.
        given: headers of the request.
    """
    context = carrier.active_context()
    if context is None or not is_in_trajectory(context) or any(context.get(key) for key in _SUPPRESSED):
        return {}
    if not host or not is_listed(host, _settings().traceparent_hosts):
        return {}
    carried = carrier.inject() if identity_allowed(host) else carrier.inject_span()
    if carried is None or _TRACEPARENT not in carried:
        return {}
    present = {_text(name).lower(): value for name, value in given.items()}
    missing = {name: carried[name] for name in _HEADERS if name in carried and name not in present}
    if _TRACEPARENT in present:  # of an instrumentor's span, or of another trace
        is_same_trace = _text(present[_TRACEPARENT])[:36] == carried[_TRACEPARENT][:36]
        return {name: missing[name] for name in missing if name == carrier.IDENTITY_KEY and is_same_trace}
    return missing


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _with(given: Headers, added: Mapping[str, str]) -> Any:
    """Return a copy of headers with further ones: a dict, or the headers' type if it has ``copy``."""
    copied: Any = given.copy() if hasattr(given, "copy") else dict(given)
    copied.update(added)
    return copied


# --- The clients --------------------------------------------------------------------------------------------
#
# A hook calls ``original.__get__(self)`` in place of ``original(self, …)``: an instrumentor's wrapper (wrapt)
# needs to be bound to know the instance.


def _urlopen(patches: Patches, original: Any) -> Function:
    """Return a replacement of ``HTTPConnectionPool.urlopen``."""

    @internal_errors(_DOING)
    def traced(pool: Any, url: str, headers: Headers | None) -> Any:
        given = pool.headers if headers is None else headers
        added = missing_headers(_host_of(pool, url), given)
        return _with(given, added) if added else headers

    @functools.wraps(original)
    def urlopen(
        self: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if patches.active:
            headers = traced(self, url, headers) or headers
        return original.__get__(self)(method, url, body, headers, *args, **kwargs)

    return urlopen


def _host_of(pool: Any, url: str) -> str | None:
    """Return the host that a request of a pool is for; the pool may be a proxy's."""
    if url.startswith("/"):
        return str(pool.host)
    try:
        return urlsplit(url).hostname
    except ValueError:  # the request is about to fail
        return None


def _handle_request(patches: Patches, original: Any) -> Function:
    """Return a replacement of ``handle_request``, or of ``handle_async_request`` with its coroutine."""

    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        if patches.active:
            request = _traced_request(request) or request
        return original.__get__(self)(request)

    return handle_request


@internal_errors(_DOING)
def _traced_request(request: Any) -> Any:
    """Return a copy of a request with trace headers; None if it needs none."""
    added = missing_headers(request.url.host, request.headers)
    if not added:
        return None
    copied: Any = object.__new__(type(request))
    vars(copied).update(vars(request))  # `copy.copy` would leave out the body
    copied.headers = _with(request.headers, added)
    return copied


def _send(patches: Patches, original: Any) -> Callable[..., Awaitable[Any]]:
    """Return a replacement of ``ClientRequest.send``."""

    @internal_errors(_DOING)
    def add_to(request: Any) -> dict[str, str]:
        added = missing_headers(request.url.host, request.headers)
        request.headers.update(added)
        return added

    @functools.wraps(original)
    async def send(self: Any, conn: Any) -> Any:
        is_traced = patches.active and self.method != "CONNECT"  # which is for the proxy
        added = (add_to(self) if is_traced else None) or {}
        try:
            return await original.__get__(self)(conn)
        finally:
            for name in added:  # a middleware may send the request again, to another host
                self.headers.pop(name, None)

    return send


_HTTPX: Final = (
    ("HTTPTransport", "handle_request", "request", _handle_request),
    ("AsyncHTTPTransport", "handle_async_request", "request", _handle_request),
)
Replacement = Callable[[Patches, Any], Function]
_METHODS: Final[Mapping[str, tuple[tuple[str, str, str, Replacement], ...]]] = {
    "urllib3": (("HTTPConnectionPool", "urlopen", "headers", _urlopen),),
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "aiohttp": (("ClientRequest", "send", "conn", _send),),
}
"""Module of a client → class, method, a parameter of it, and what makes the replacement. Requests and
botocore send with urllib3."""
CLIENTS: Final = tuple(_METHODS)
"""Modules of the clients whose requests carry trace headers."""


def _patch(module: ModuleType) -> None:
    """Replace a client's methods, unless its version has no such method or parameter."""
    patches = state.http_patches
    if patches is None:  # uninstall() was called before the client was imported
        return
    for owner, method, parameter, replacement in _METHODS[module.__name__]:
        class_ = getattr(module, owner, None)
        function = vars(class_).get(method) if isinstance(class_, type) else None
        if callable(function) and parameter in inspect.signature(function).parameters:
            patches.replace(class_, method, functools.partial(replacement, patches))
            continue
        warn_once(
            f"requests of {module.__name__} {getattr(module, '__version__', '')} carry no traceparent, "
            f"because it has no {owner}.{method}({parameter}). Add the header with "
            "otel_rollout.http.inject_headers"
        )


# --- which hosts get the headers of a trajectory -----------------------------------------------------------


PRIVATE: Final = "private"
"""Entry of a list of hosts that stands for all private hosts."""
_PRIVATE_NETWORKS: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",  # shared address space (RFC 6598): Kubernetes pods, overlay networks
        "0.0.0.0/32",  # clients connect to this machine
        "::1/128",
        "::/128",
        "fc00::/7",
    )
)
"""Addresses of this machine and of private networks.

Link-local addresses are no part of them: metadata services of cloud providers have these addresses.
"""
_PRIVATE_DOMAINS: Final = (".localhost", ".local", ".internal", ".home.arpa")
"""Domains that are reserved for private networks (RFC 6761, 6762, 8375, and ICANN for ``.internal``)."""
_SINGLE_LABEL: Final = re.compile(r"(?!(?:[0-9]+|0x[0-9a-f]*)$)[a-z0-9_-]+")
"""Pattern of a name without a dot, for example of a Kubernetes service; a number is an IPv4 address."""


def identity_allowed(host: str) -> bool:
    """Return whether a host may get the trajectory's identity."""
    return is_listed(host, _settings().identity_hosts)


@functools.lru_cache(maxsize=1024)  # a trajectory talks to few hosts
def is_listed(host: str, hosts: str) -> bool:
    """Return whether a comma-separated list of hosts has a host.

    Args:
        host: name or address, as in a URL.
        hosts: names and addresses with wildcards, and :data:`PRIVATE`.
    """
    host = host.lower().strip("[]")
    name = host.removesuffix(".")
    entries = [entry.strip().lower() for entry in hosts.split(",")]
    return (PRIVATE in entries and is_private(host)) or any(fnmatch.fnmatchcase(name, e) for e in entries)


def is_private(host: str) -> bool:
    """Return whether a host is this machine or certainly in a private network.

    Args:
        host: name or address in lower case.
    """
    name = host.removesuffix(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        is_reserved = f".{name}".endswith(_PRIVATE_DOMAINS)
        return is_reserved or _SINGLE_LABEL.fullmatch(host) is not None  # "name." is a top-level domain
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in _PRIVATE_NETWORKS)


def _settings() -> Settings:
    return runs.settings or membership.decide()  # without the lock of decide(), which may be held
