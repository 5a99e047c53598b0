"""Failing targets: a proxy with chosen faults, and a counting OTLP receiver."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

HOST = "localhost"
TOO_LATE = 10.0
"""Seconds that a slow target takes: longer than these tests' exporters wait."""


class Certificates:
    """Server certificates of a trusted and of an untrusted authority."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.trusted = str(directory / "ca.pem")
        authority.cert_pem.write_to_path(self.trusted)
        self.right = _server_context(authority)
        self.wrong = _server_context(trustme.CA())


def _server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    return context


class FaultyProxy:
    """Passes requests on to a real target, unless a fault is set.

    Faults of connections: ``refusing``, ``handshake cut``, ``wrong certificate``. Faults of requests that
    write spans: ``hanging`` (no answer), ``slow`` (stored, answered too late), ``cut before`` and ``cut
    after`` storing (half an answer, then the end), or an HTTP status, whose answer quotes the request's
    credentials.

    Args:
        upstream: address of the target.
        writes: part of the path of requests that write spans.
        certificates: certificates for TLS; None: no TLS.
    """

    def __init__(self, upstream: str, writes: str, certificates: Certificates | None = None) -> None:
        self._upstream = urlsplit(upstream)
        self._writes = writes
        self._certificates = certificates
        self._lock = threading.Lock()
        self._fault: str | int | None = None
        self._left = 0
        self._recovered = threading.Event()
        self._reserved = socket.socket()  # bound, never listening: the port is ours, and refuses
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind((HOST, 0))
        self.port = int(self._reserved.getsockname()[1])
        self.url = f"{'https' if certificates else 'http'}://{HOST}:{self.port}"
        self._listener: socket.socket | None = None
        self._listen()

    def fail(self, fault: str | int, times: int = 1 << 30) -> None:
        """Fail the next ``times`` requests."""
        self._recovered.clear()
        with self._lock:
            self._fault, self._left = fault, times
        if fault == "refusing":
            self._refuse()
        elif self._listener is None:
            self._listen()

    def recover(self) -> None:
        """Pass all requests on again."""
        with self._lock:
            self._fault = None
        self._recovered.set()
        if self._listener is None:
            self._listen()

    def close(self) -> None:
        """Release the port."""
        self._recovered.set()
        self._refuse()
        self._reserved.close()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((HOST, self.port))
        listener.listen(128)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # which ends accept()
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            if self._applies("handshake cut"):
                connection.recv(1)
                return
            if self._certificates is None:
                _Handler(connection, ("", 0), self)  # type: ignore[arg-type]
                return
            wrong = self._applies("wrong certificate")
            context = self._certificates.wrong if wrong else self._certificates.right
            with context.wrap_socket(connection, server_side=True) as secured:
                _Handler(secured, ("", 0), self)  # type: ignore[arg-type]

    def _applies(self, *faults: str) -> bool:
        return self._fault in faults

    def take_fault(self, path: str) -> str | int | None:
        """Return the fault of a request; None if it is passed on."""
        with self._lock:
            if self._fault is None or self._writes not in path or self._left <= 0:
                return None
            self._left -= 1
            return self._fault

    def wait_for_recovery(self, seconds: float) -> None:
        """Wait until the fault is over, at most that long."""
        self._recovered.wait(seconds)

    def ask_upstream(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the answer of the real target."""
        upstream = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(method, path, body, headers)
            answer = upstream.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection (HTTP/1.0: it is closed after the answer)."""

    server: FaultyProxy  # type: ignore[assignment]

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy, fault = self.server, self.server.take_fault(self.path)
        if fault == "hanging":
            proxy.wait_for_recovery(60)
            return
        if fault == "cut before":
            self._send(200, {}, b"half an answer", cut=True)
            return
        if isinstance(fault, int):
            self._send(fault, {"Content-Type": "application/json"}, self._quoted())
            return
        hop_by_hop = ("host", "connection", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hop_by_hop}
        status, told_headers, answer = proxy.ask_upstream(self.command, self.path, headers, body)
        if fault == "slow":
            time.sleep(TOO_LATE)
        kept = {name: told_headers[name] for name in ("Content-Type",) if name in told_headers}
        self._send(status, kept, answer, cut=fault == "cut after")

    def _quoted(self) -> bytes:
        """Return an explanation that quotes every credential of the request."""
        credential = self.headers.get("Authorization", "")
        readable = (
            base64.b64decode(credential[6:]).decode() if credential.startswith("Basic ") else credential
        )
        return json.dumps({"message": f"not so: {self.path} {credential} {readable}"}).encode()

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + (100 if cut else 0)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if cut:
            # Reset the connection instead of closing it; also over TLS.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Receiver:
    """An OTLP receiver (HTTP, protobuf) that counts received spans.

    Attributes:
        url: its address, without the path.
        names: name of a span → number of times the span was received.
        credentials: name of a span → the ``Authorization`` of its request.
        sizes: name of a span → bytes of its request.
        backwards: names of spans that end before they start.
        poison: name of spans for which the receiver answers 400 to the whole request.
        limit: bytes beyond which a request is answered with 413.
        required: the ``Authorization`` without which a request is answered with 401.
        refusals: number of requests without the required ``Authorization``.
    """

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        self.credentials: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.backwards: list[str] = []
        self.poison: str | None = None
        self.limit = float("inf")
        self.required: str | None = None
        self.refusals = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.take(body, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, body: bytes, credential: str) -> int:
        """Take a request and return the status of the answer."""
        if len(body) > self.limit:
            return 413
        if self.required not in (None, credential):
            self.refusals += 1
            return 401
        request = ExportTraceServiceRequest.FromString(body)
        spans = [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        if any(span.name == self.poison for span in spans):
            return 400
        for span in spans:
            self.names[span.name] += 1
            self.credentials[span.name] = credential
            self.sizes[span.name] = len(body)
            if span.end_time_unix_nano < span.start_time_unix_nano:
                self.backwards.append(span.name)
        return 200

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver for the block."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
