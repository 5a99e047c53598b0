"""Record what vLLM says of requests without a trace header: their spans, and the ids in its replies.

Run it in the environment with vLLM, after an upgrade of vLLM: ``python -m tests.vllm.record_requests``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.ports import free_port
from tests.vllm.tiny_model import MAX_TOKENS, make_tiny_model

RECORDED = Path(__file__).with_name("requests.json")
_MESSAGES = [{"role": "user", "content": "hello"}]
_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": _MESSAGES}),
    "chat with a request id": ("/v1/chat/completions", {"messages": _MESSAGES, "request_id": "mine"}),
    "chat, n = 3": ("/v1/chat/completions", {"messages": _MESSAGES, "n": 3}),
    "chat, streamed": ("/v1/chat/completions", {"messages": _MESSAGES, "stream": True}),
    "completion": ("/v1/completions", {"prompt": "hello"}),
    "completion of token ids": ("/v1/completions", {"prompt": [1, 2, 3]}),
    "completion of two prompts": ("/v1/completions", {"prompt": ["hello", "there"]}),
    "response": ("/v1/responses", {"input": "hello"}),
    "generate": ("/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}}),
    "message": ("/v1/messages", {"messages": _MESSAGES, "max_tokens": 4}),
}
"""Name of a request → route and body."""


class _Receiver(ThreadingHTTPServer):
    """Keeps the spans that it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for of_scope in of_resource.scope_spans:
                self.server.spans += [
                    {"scope": of_scope.scope.name, **_fields(span)} for span in of_scope.spans
                ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def _fields(span: Any) -> dict[str, Any]:
    ids = {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
    return {**MessageToDict(span), **ids, "parentSpanId": span.parent_span_id.hex()}


def _ids(port: int, route: str, body: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Send a request; return the ids in its reply, and the begin and end of the call."""
    start = time.time_ns()
    data = json.dumps({"model": "tiny", "max_tokens": 4, **body}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{route}", data, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        text = response.read().decode()
    end = time.time_ns()
    replies = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    found = [json.loads(reply) for reply in replies or [text]]
    return sorted({reply.get("id") or reply.get("request_id") for reply in found}), [start, end]


def record() -> None:
    """Write ``RECORDED``."""
    receiver, port = _Receiver(), free_port()
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder))
        command = f"""{sys.executable} -m vllm.entrypoints.openai.api_server --model {model}
            --served-model-name tiny --host 127.0.0.1 --port {port} --max-model-len {MAX_TOKENS}
            --enforce-eager --dtype float32 --distributed-executor-backend uni --enable-scale-out
            --otlp-traces-endpoint http://127.0.0.1:{receiver.server_port}/v1/traces"""
        with subprocess.Popen(command.split(), env={**os.environ, **variables}) as server:
            try:
                _wait(port, server)
                found = {name: _recorded(receiver, port, *given) for name, given in _REQUESTS.items()}
            finally:
                server.terminate()
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline or server.poll() is not None:
                raise
        time.sleep(0.5)


def _recorded(receiver: _Receiver, port: int, route: str, body: dict[str, Any]) -> dict[str, Any]:
    receiver.spans.clear()
    try:
        ids, times = _ids(port, route, body)
    except OSError as error:
        return {"problem": str(error)}
    time.sleep(8)  # vLLM exports every five seconds
    return {"ids": ids, "times": times, "spans": [s for s in receiver.spans if s["name"] == "llm_request"]}


if __name__ == "__main__":
    record()
