"""Serve HTTP with the answers that a test chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

Answers: TypeAlias = Mapping[str, tuple[int, Mapping[str, str], bytes]]
"""Part of a path → status, headers and body of the answer. Status 0 closes the connection."""


class CannedAnswer(NamedTuple):
    """What the server answers.

    Attributes:
        status: the HTTP status; 0 closes the connection.
        headers: headers besides ``Content-Length``.
        body: the body.
    """

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b"{}"


class SentRequest(NamedTuple):
    """What the server received.

    Attributes:
        path: without the query.
        headers: the request's headers; their names have no case.
        body: the body.
    """

    path: str
    headers: Message
    body: bytes


class FakeServer:
    """A server of the loopback that gives the answers that a test sets.

    Args:
        answers: answers by part of the path. The longest part counts; other paths get ``{}``.

    Attributes:
        uri (str): address of the server.
        answers (dict): the answers; a test changes them.
        received (list): the requests, in order.
    """

    def __init__(self, answers: Answers) -> None:
        self.uri = ""
        self.answers = dict(answers)
        self.received: list[SentRequest] = []

    def answer(self, path: str) -> CannedAnswer:
        """Return the answer to a path."""
        parts = [part for part in self.answers if part in path]
        return CannedAnswer(*self.answers[max(parts, key=len)]) if parts else CannedAnswer()

    def requests(self, part: str) -> list[SentRequest]:
        """Return the requests whose path contains ``part``."""
        return [request for request in self.received if part in request.path]


@contextmanager
def serving(answers: Answers | None = None) -> Iterator[FakeServer]:
    """Run a server on the loopback, which answers in threads of its own.

    Args:
        answers: see ``FakeServer``.
    """
    fake = FakeServer(answers or {})

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            fake.received.append(SentRequest(path, self.headers, body))
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

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

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
