"""Accept what exporters send to MLflow, Weave and OTLP, and store nothing.

Prints the port.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_EXPERIMENT = {"experiment_id": "1", "name": "bench", "lifecycle_stage": "active"}
_ANSWERS: dict[str, Any] = {
    "/version": "99.0.0",
    "/api/2.0/mlflow/experiments/get-by-name": {"experiment": _EXPERIMENT},
    "/api/2.0/mlflow/experiments/get": {"experiment": _EXPERIMENT},
    "/graphql": {"data": {"project": {"name": "bench"}}},
    "/calls/stream_query": "",
    "/feedback/query": {"result": []},
}
"""What exporters read from answers, by path."""


class Handler(BaseHTTPRequestHandler):
    """Answer every request with 200."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the body of an answer waits 40 ms for the head's receipt

    def received(self, body: bytes) -> None:
        """Do nothing with a request's body."""

    def _answer(self) -> None:
        self.received(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        answer = _ANSWERS.get(self.path.partition("?")[0], {})
        body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
