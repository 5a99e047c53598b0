"""Decide which hosts get the headers of a trajectory.

No name is resolved here: a look-up in DNS would block the caller. So a name counts as private only if public
DNS cannot have it.
"""

from __future__ import annotations

import fnmatch
import functools
import ipaddress
import re
from typing import Final

from otel_rollout.record.runs import membership
from otel_rollout.record.runs.state import state
from otel_rollout.settings import Settings

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
"""A name without a dot, as of a container or Kubernetes service; a number is an IPv4 address."""


def traceparent_allowed(host: str) -> bool:
    """Return whether requests to a host carry the current span."""
    return is_listed(host, _settings().traceparent_hosts)


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
    return state.settings or membership.decide()  # without the lock of decide(), which may be held
