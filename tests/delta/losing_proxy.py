"""Stand between an object store and its users, and lose answers."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ENTRY = re.compile(r"^/[^/]+/[^/]+/_delta_log/\d+\.json")


class _Proxy(BaseHTTPRequestHandler):
    """Passes requests on; loses the first answer to each write of an entry of a table's log."""

    protocol_version = "HTTP/1.1"
    store = ""
    lost: set[str]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self.store, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)  # the signature covers the headers
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if self.command == "PUT" and _ENTRY.search(self.path) and self.path not in self.lost:
            self.lost.add(self.path)
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        size = answer.headers["Content-Length"] if self.command == "HEAD" else len(content)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        with suppress(BrokenPipeError):  # the client has what it wanted
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def losing_answers(url: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the proxy's URL, and the entries of logs whose answers it has lost.

    Args:
        url: the store's.
    """
    lost: set[str] = set()
    handler = type("Handler", (_Proxy,), {"store": urlsplit(url).netloc, "lost": lost})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", lost
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
