"""A target on the loopback that takes spans over OTLP/HTTP, and misbehaves as told."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SENDER = "x-sender"
"""The header that says which process sends."""


@dataclass
class Arrival:
    """A request whose spans the target has taken."""

    sender: int
    spans: tuple[int, ...]
    heard: bool
    """Whether the sender got the answer, as far as the target can tell."""


class Target:
    """Keeps what it takes.

    Its answers, for as long as they last:

    - ``take``: takes the spans and says so, as it does ever after
    - ``busy``: 503
    - ``reset``: breaks the connection, having taken nothing
    - ``slow``: takes its time
    - ``lost``: takes the spans, and breaks the connection before it answers
    - ``half``: takes the spans, and breaks the connection in the middle of its answer
    - ``kill instead``: takes nothing; the sender is killed
    - ``kill before``: takes the spans; the sender is killed before it hears of it
    - ``kill after``: takes the spans and says so; then the sender is killed

    Args:
        answers: what to do with the first requests.
        kill: kills a process that sends.
    """

    def __init__(self, answers: Sequence[str], kill: Callable[[int], None]) -> None:
        self.arrivals: list[Arrival] = []
        self.problems: list[str] = []
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
        """Where to post."""
        return f"http://127.0.0.1:{self._port}/v1/traces"

    def listen(self) -> None:
        """Take connections."""
        if self._server is None:
            target = self

            class Handler(BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    target._answer(self)

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

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        sender = int(request.headers[SENDER])
        with self._lock:
            how = self._answers.pop(0) if self._answers else "take"
        if how == "slow":
            time.sleep(0.7)
        if how in ("take", "slow", "lost", "half", "kill before", "kill after"):
            self._take(request, sender, body, heard=how in ("take", "slow", "kill after"))
        if how in ("take", "slow", "kill after"):
            request.send_response(200)
            request.send_header("Content-Length", "0")
            request.end_headers()
            request.wfile.flush()
        elif how == "busy":
            request.send_error(503)
        elif how == "half":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nacc")
        if how.startswith("kill"):
            self._kill(sender)
        if how in ("lost", "reset", "half"):
            _reset(request.connection)
            request.close_connection = True

    def _take(self, request: BaseHTTPRequestHandler, sender: int, body: bytes, heard: bool) -> None:
        try:
            spans = _span_ids(body, "json" in request.headers["Content-Type"])
        except Exception as error:
            self.problems.append(f"a request that cannot be read: {error!r}")
            raise
        with self._lock:
            self.arrivals.append(Arrival(sender, spans, heard))


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
