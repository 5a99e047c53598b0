"""Serve HTTP, and record an operation for each request.

``traced_server.py`` prints its URL. It ends when its standard input is closed. The operation is part of the
trace that the request's headers name.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry import context as otel_context

import otel_rollout
from otel_rollout.http import extract_headers


@otel_rollout.rollout_trace_op(name="generate")
def generate(path: str) -> bytes:
    """Answer a request."""
    return f"answer to {path}".encode()


class Server(BaseHTTPRequestHandler):
    """Continues the trace of each request."""

    def do_GET(self) -> None:
        token = otel_context.attach(extract_headers(dict(self.headers)))
        try:
            body = generate(self.path)
        finally:
            otel_context.detach(token)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        sys.stdin.read()
        server.shutdown()
    otel_rollout.shutdown(0)
