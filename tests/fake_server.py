"""An HTTP server that gives the answers that it was told to give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What the server answers. Status 0: it closes the connection."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b"{}"


class Request(NamedTuple):
    """What the server received."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class FakeServer:
    """Answers each path by its longest part with an answer, others by ``{}``."""

    def __init__(self, answers: Mapping[str, tuple[int, Mapping[str, str], bytes]]) -> None:
        self.uri = ""
        self.answers = dict(answers)
        self.received: list[Request] = []

    def answer(self, path: str) -> Answer:
        parts = [part for part in self.answers if part in path]
        return Answer(*self.answers[max(parts, key=len)]) if parts else Answer()

    def requests(self, part: str) -> list[Request]:
        """Return the requests whose path contains ``part``."""
        return [request for request in self.received if part in request.path]


@contextmanager
def serving(
    answers: Mapping[str, tuple[int, Mapping[str, str], bytes]] | None = None,
) -> Iterator[FakeServer]:
    """Run a fake server on the loopback."""
    fake = FakeServer(answers or {})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            fake.received.append(Request(path, self.headers, body))
            answer = fake.answer(path)
            if not answer.status:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.uri = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
