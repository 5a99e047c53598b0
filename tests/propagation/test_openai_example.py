"""The example with an OpenAI-compatible server."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.spool_reader import read_directory

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "openai_compatible.py"


def test_spans_of_a_tracing_server_join_the_trajectory(test_exporters, tmp_path):
    """A server that reads the headers, as vLLM does, continues the trace."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("server")

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            context = TraceContextTextMapPropagator().extract(headers)
            with tracer.start_as_current_span("llm_request", context):
                message = {"role": "assistant", "content": f"turn {len(asked['messages'])}"}
            usage = {"prompt_tokens": 9, "completion_tokens": 2}
            body = json.dumps({"choices": [{"message": message}], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE), f"http://127.0.0.1:{server.server_port}/v1", "tiny"],
            env={
                **os.environ,
                "OTEL_TRACES_EXPORTER": "test-file",
                "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        server.shutdown()
        serving.join()

    spans = read_directory(tmp_path / "spool")
    assert [s.name for s in spans] == ["chat", "chat", "rollout_trace"]
    assert spans[0].attributes["gen_ai.usage.output_tokens"] == 2
    assert spans[-1].output["messages"][-1]["content"] == "turn 3"
    served = exporter.get_finished_spans()
    assert {f"{s.context.trace_id:032x}" for s in served} == {ran.stdout.strip()}
    assert [f"{s.parent.span_id:016x}" for s in served] == [s.span.span_id.hex() for s in spans[:2]]
