"""Choose and bind the receiver's address, and make its token."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from pathlib import Path
from typing import Final

from otel_rollout.base.waits import waits
from otel_rollout.settings import Settings
from otel_rollout.spool.receiver_files import ReceiverAddress, read_address

_TOKEN_BYTES: Final = 24
_BACKLOG: Final = 512
_FIRST_PORT: Final = 20_000
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS: Final = 50


class ListenError(Exception):
    """Raised when the receiver cannot listen; the message is a sentence that names the variable."""


def is_loopback(host: str) -> bool:
    """Return whether a numeric address is reached from this machine alone."""
    return ipaddress.ip_address(host).is_loopback


def split_address(receive: str) -> tuple[str, int]:
    """Return host and port of the setting ``receive``."""
    host, _, port = receive.rpartition(":")
    return host.strip("[]"), int(port)


def check_address(configured: Settings) -> None:
    """Check the settings of the receiver.

    Raises:
        ListenError: the address is not allowed.
    """
    host, _ = split_address(configured.receive)
    if not is_loopback(host) and not configured.receive_token:
        raise ListenError(
            f"OTEL_ROLLOUT_RECEIVE={configured.receive} can be reached from other machines: set "
            "OTEL_ROLLOUT_RECEIVE_TOKEN to a secret of your own, or use an address of the loopback."
        )


def check_free(configured: Settings) -> None:
    """Check that a receiver could listen.

    Raises:
        ListenError: the address is taken.
    """
    _bound(*split_address(configured.receive)).close()


def listen(node_dir: Path, configured: Settings) -> tuple[socket.socket, ReceiverAddress]:
    """Bind the receiver's address, if possible that of an earlier receiver of this directory.

    Args:
        node_dir: the node directory, whose lock the caller holds.
        configured: settings of the run.

    Returns:
        The listening socket, and its address with the token.

    Raises:
        ListenError: the address is not allowed, or taken.
    """
    check_address(configured)
    host, port = split_address(configured.receive)
    earlier = read_address(node_dir)
    if not port and earlier is not None and earlier.host == host:
        port = earlier.port  # senders know it
    listening = _bound(host, port, waits().port) if port else _bound_somewhere(host)
    token = configured.receive_token or (earlier.token if earlier else "")
    token = token or secrets.token_urlsafe(_TOKEN_BYTES)
    return listening, ReceiverAddress(host, listening.getsockname()[1], token)


def _bound_somewhere(host: str) -> socket.socket:
    """Bind a free port, below those of outgoing connections: it has to be free after a restart, too."""
    try:
        lowest = int(_PORT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        lowest = 0
    for _ in range(_ATTEMPTS if lowest > _FIRST_PORT else 0):
        try:
            return _opened(host, _FIRST_PORT + secrets.randbelow(lowest - _FIRST_PORT))
        except OSError:
            continue
    return _bound(host, 0)


def _bound(host: str, port: int, timeout: float = 0.0) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _opened(host, port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ListenError(
                    f"OTEL_ROLLOUT_RECEIVE: port {port} of {host} cannot be used: "
                    f"{error.strerror or error}. Name a free port, or `true` for any."
                ) from error
        time.sleep(waits().poll)


def _opened(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
    except OSError:
        found.close()
        raise
    return found


def accepted_hosts(address: ReceiverAddress) -> frozenset[str]:
    """Return the values of ``Host`` that requests may have; empty if any is accepted.

    A request from a web page whose host name resolves to this machine (DNS rebinding) has another value. If
    the address is not a loopback one, the machine may have any name, and only the token decides.
    """
    if not is_loopback(address.host):
        return frozenset()
    host = f"[{address.host}]" if ":" in address.host else address.host
    return frozenset(f"{name}:{address.port}" for name in (host, "127.0.0.1", "localhost", "[::1]"))
