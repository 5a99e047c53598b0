"""Serve the pages on this machine until Ctrl-C."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from otel_rollout.look.errors import ViewerError
from otel_rollout.look.web.live import Live

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MAX_CONNECTIONS: Final = 200
"""Maximum connections and requests at once; others are refused."""
_KEEP_ALIVE: Final = 5
"""Seconds for which an idle connection stays open."""
_GRACE: Final = 2
"""Seconds for which the server waits for slow browsers at its end."""
_BACKLOG: Final = 128


def bound(port: int) -> socket.socket:
    """Return a socket that listens at a port of the loopback interface.

    Args:
        port: the port; 0 for a free one.

    Raises:
        ViewerError: the port is taken, or not allowed.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or "a port is a number from 0 to 65535"
        advice = "Name another one with --port, or 0 for a free one."
        raise ViewerError(f"Port {port} of {HOST} cannot be used: {reason}. {advice}") from error
    return found


def serve(live: Live, listening: socket.socket, run: str | None = None) -> None:
    """Serve pages until Ctrl-C or SIGTERM.

    Args:
        live: the versions of the table, after :meth:`Live.start`.
        listening: a socket from :func:`bound`.
        run: id or experiment of the run that is shown for an address without a run; by default the newest.
    """
    import uvicorn

    from otel_rollout.look.web.app import Site

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


# --- what the server answers -------------------------------------------------------------------------------


HOST: Final = "127.0.0.1"
"""The address that the server listens at."""
_NAMES: Final = (HOST, "localhost", "[::1]")
"""Host names that a request may have. A foreign site that resolves to this machine has another name."""
_HTTP_PORT: Final = 80
_METHODS: Final = ("GET", "HEAD")
MAX_QUERY_BYTES: Final = 8192
"""Maximum bytes of an address."""
CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer."""


class Guard:
    """Refuses requests that no page of this server makes, and adds the headers to every answer.

    Args:
        app: the pages.
        port: the port that the server listens at.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port
        suffixes = (f":{port}", "") if port == _HTTP_PORT else (f":{port}",)
        self._hosts = {f"{name}{suffix}".encode() for name in _NAMES for suffix in suffixes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        else:
            from starlette.responses import PlainTextResponse

            status, sentence = refusal
            await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and sentence to refuse a request with; None for a request that is answered."""
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, f"This server answers at http://{HOST}:{self._port} only."
        if scope["method"] not in _METHODS:
            return 405, "This server only shows pages: GET and HEAD."
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_QUERY_BYTES:
            return 414, f"The address is longer than {MAX_QUERY_BYTES} bytes."
        return None
