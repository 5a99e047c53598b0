"""Serve the pages on this machine until Ctrl-C."""

from __future__ import annotations

import socket
from typing import Final

from otel_rollout.look.web.live import Live
from otel_rollout.look.web.security import HOST

_MAX_CONNECTIONS: Final = 200
"""Maximum connections and requests at once; others are refused."""
_KEEP_ALIVE: Final = 5
"""Seconds for which an idle connection stays open."""
_GRACE: Final = 2
"""Seconds for which the server waits for slow browsers at its end."""
_BACKLOG: Final = 128


class PortError(Exception):
    """The port cannot be used; the message is one sentence."""


def bound(port: int) -> socket.socket:
    """Return a socket that is bound to a port of the loopback.

    Args:
        port: the port; 0 for a free one.

    Raises:
        PortError: the port is taken, or not allowed.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        advice = "Name another one with --port, or 0 for a free one."
        raise PortError(f"Port {port} of {HOST} cannot be used: {reason}. {advice}") from error
    return found


def serve(live: Live, listening: socket.socket, run: str | None = None) -> None:
    """Serve pages until Ctrl-C or SIGTERM.

    Args:
        live: the versions of the table; it is started.
        listening: a socket of :func:`bound`.
        run: id or experiment of the run of an address without a run; by default the newest run.
    """
    import uvicorn

    from otel_rollout.look.web.app import Site
    from otel_rollout.look.web.security import Guard

    config = uvicorn.Config(
        Guard(Site(live, run).app(), listening.getsockname()[1]),
        http="h11",
        ws="none",
        loop="asyncio",
        access_log=False,
        log_level="critical",
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
    )
    uvicorn.Server(config).run(sockets=[listening])
