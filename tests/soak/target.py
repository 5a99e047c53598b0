"""Targets that misbehave as told: an OTLP/HTTP receiver, a way to a real server."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SENDER = "x-sender"
"""The header that says which process sends."""


@dataclass(frozen=True)
class Answer:
    """What a request is answered with."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Arrival:
    """A request whose spans the target has taken."""

    sender: int
    spans: tuple[int, ...]
    heard: bool
    """Whether the sender got the answer, as far as the target can tell."""


class Target(ABC):
    """Takes requests, or does something else.

    Its answers, for as long as they last:

    - ``take``: takes the spans and says so, as it does ever after
    - ``busy``: 503
    - ``reset``: breaks the connection, having taken nothing
    - ``slow``: takes its time
    - ``lost``: takes the request, and breaks the connection before it answers
    - ``half``: takes the request, and breaks the connection in the middle of its answer
    - ``kill instead``: takes nothing; the forwarder is killed
    - ``kill before``: takes the request; the forwarder is killed before it hears of it
    - ``kill after``: takes the request and says so; then the forwarder is killed

    Args:
        answers: what to do with the first requests.
        kill: kills the forwarder.
    """

    def __init__(self, answers: Sequence[str], kill: Callable[[], None]) -> None:
        self._answers = list(answers)
        self._kill = kill
        self._lock = threading.Lock()
        # Keeps the port ours while nobody listens there.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None
        self.listen()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    def listen(self) -> None:
        """Take connections."""
        if self._server is None:
            target = self

            class Handler(BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    target._answer(self)

                do_GET = do_PATCH = do_POST

                def log_message(self, *_: object) -> None:
                    """Say nothing."""

            self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
            self._server.daemon_threads = True
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def recover(self) -> None:
        """From now on take everything."""
        with self._lock:
            self._answers.clear()
        self.listen()

    def close(self) -> None:
        """Let go of the port."""
        self.refuse()
        self._reserved.close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with self._lock:
            how = self._answers.pop(0) if self._answers else "take"
        if how == "slow":
            time.sleep(0.7)
        if how in ("take", "slow", "kill after"):
            self._say(request, self._take(request, body, heard=True))
        elif how in ("lost", "half", "kill before"):
            self._take(request, body, heard=False)
        elif how == "busy":
            request.send_error(503)
        if how == "half":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nacc")
        if how.startswith("kill"):
            self._kill()
        if how in ("lost", "reset", "half"):
            _reset(request.connection)

    def _say(self, request: BaseHTTPRequestHandler, answer: Answer) -> None:
        with contextlib.suppress(OSError):  # who asked may be dead by now
            request.send_response(answer.status)
            request.send_header("Content-Type", answer.content_type)
            request.send_header("Content-Length", str(len(answer.body)))
            request.end_headers()
            request.wfile.write(answer.body)

    @abstractmethod
    def _take(self, request: BaseHTTPRequestHandler, body: bytes, heard: bool) -> Answer:
        """Do what is asked; ``heard`` says whether the answer will be given."""


class Keeper(Target):
    """Keeps the spans it takes, and knows who sent them and when."""

    def __init__(self, answers: Sequence[str], kill: Callable[[], None]) -> None:
        self.arrivals: list[Arrival] = []
        super().__init__(answers, kill)

    def taken(self) -> Counter[int]:
        """How often each span was taken."""
        return Counter(span for arrival in self.arrivals for span in arrival.spans)

    def needlessly_sent(self, killed: Collection[int]) -> list[int]:
        """Spans that were sent again although their sender knew that they had arrived.

        A sender that was killed may not have noted the answer to its last request.
        """
        last = {arrival.sender: arrival for arrival in self.arrivals}
        settled: set[int] = set()
        again = []
        for arrival in self.arrivals:
            again += [span for span in arrival.spans if span in settled]
            may_not_know = arrival.sender in killed and arrival is last[arrival.sender]
            if arrival.heard and not may_not_know:
                settled |= set(arrival.spans)
        return again

    def _take(self, request: BaseHTTPRequestHandler, body: bytes, heard: bool) -> Answer:
        spans = _span_ids(body, "json" in request.headers["Content-Type"])
        with self._lock:
            self.arrivals.append(Arrival(int(request.headers[SENDER]), spans, heard))
        return Answer(200, "application/json", b"")


class Relay(Target):
    """Passes requests on to a real server.

    Args:
        answers: what to do with the first requests.
        kill: kills the forwarder.
        server: host and port.
    """

    def __init__(self, answers: Sequence[str], kill: Callable[[], None], server: str) -> None:
        self._behind = server
        super().__init__(answers, kill)

    def _take(self, request: BaseHTTPRequestHandler, body: bytes, heard: bool) -> Answer:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "connection")}
        with contextlib.closing(HTTPConnection(self._behind, timeout=60)) as connection:
            connection.request(request.command, request.path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers.get("Content-Type", ""), response.read())


def _span_ids(body: bytes, is_json: bool) -> tuple[int, ...]:
    if is_json:
        return tuple(
            int(span["spanId"], 16)
            for of_resource in json.loads(body)["resourceSpans"]
            for of_scope in of_resource["scopeSpans"]
            for span in of_scope["spans"]
        )
    return tuple(
        int.from_bytes(span.span_id, "big")
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    )


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
