"""Read a receiver of OTLP, to which OpenTelemetry's own exporter and ours send."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conformance.backend import Operation, Score, identity, inputs
from tests.spool_reader import plain_attributes

THEIRS, OURS = "otlp_proto_http", "otlp"
ERROR = 2
PROJECT = "rollout.project_name"


class OtlpAdapter:
    """Reads the spans that the receiver has kept."""

    def __init__(self, exporter: str, url: str, received: list[Any]) -> None:
        self.exporter = exporter
        self.variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        self._received = received

    def read(self, project: str) -> list[Operation]:
        traces = {
            span.trace_id
            for span, resource in self._received
            if plain_attributes(span.attributes).get(PROJECT, resource.get(PROJECT)) == project
        }
        return operations_of([span for span, _ in self._received if span.trace_id in traces])

    def shows(self, value: Any) -> Any:
        return value


def operations_of(spans: Iterable[Any]) -> list[Operation]:
    """Convert OTLP's messages to operations with their scores."""
    mine = [(span, plain_attributes(span.attributes)) for span in spans]
    operations = {span.span_id: _operation(span, given) for span, given in mine}
    scores = [(scored, name, score) for scored, name, score in _scores(mine) if scored in operations]
    for scored, name, score in sorted(scores, key=lambda one: (one[2].time_us, one[2].comment)):
        operations[scored].scores[name] = score
    return list(operations.values())


@contextmanager
def receiver() -> Iterator[list[OtlpAdapter]]:
    """Run an OTLP/HTTP receiver that tells two exporters apart by User-Agent."""
    received: dict[str, list[Any]] = {THEIRS: [], OURS: []}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            encoding = self.headers.get("Content-Encoding")
            body = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding or "", bytes)(body)
            theirs = self.headers["User-Agent"].startswith("OTel-OTLP-Exporter-Python")
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                of_resource = plain_attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    received[THEIRS if theirs else OURS].extend((span, of_resource) for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield [OtlpAdapter(name, url, spans) for name, spans in received.items()]
        server.shutdown()
        thread.join()


def _operation(span: Any, given: dict[str, Any]) -> Operation:
    raised = [plain_attributes(event.attributes) for event in span.events if event.name == "exception"]
    return Operation(
        id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        trace=span.trace_id.hex(),
        name=span.name,
        start_us=span.start_time_unix_nano // 1000,
        end_us=span.end_time_unix_nano // 1000,
        inputs=inputs(_payload(given, "input")),
        output=_payload(given, "output"),
        failed=span.status.code == ERROR,
        message=span.status.message if span.status.code == ERROR else "",
        exception=(raised[-1]["exception.type"], raised[-1]["exception.message"]) if raised else None,
        identity=identity(given, "rollout."),
        is_outside=given.get("rollout.score_origin") == "outside",
    )


def _payload(given: dict[str, Any], side: str) -> Any:
    value = given.get(f"{side}.value")
    with suppress(ValueError):  # another library's text that is no JSON, whatever it says
        return json.loads(value) if given.get(f"{side}.mime_type") == "application/json" else value
    return value


def _scores(spans: list[tuple[Any, dict[str, Any]]]) -> Iterator[tuple[bytes, str, Score]]:
    """Yield each score with its name and the id of the scored span."""
    for span, given in spans:
        if name := given.get("gen_ai.evaluation.name"):
            comment = given.get("gen_ai.evaluation.explanation", "")
            yield span.parent_span_id, name, Score(_value(given), span.start_time_unix_nano // 1000, comment)
        for key, value in given.items():
            name = key.removeprefix("rollout.score.")
            if name != key and not span.parent_span_id:
                yield span.span_id, name, Score(value, given[f"rollout.score_time.{name}"] // 1000, "")


def _value(given: dict[str, Any]) -> Any:
    """Return a score's value: a bool is both a label and a number, a text is a label."""
    label = given.get("gen_ai.evaluation.score.label")
    number = given.get("gen_ai.evaluation.score.value")
    return label if number is None else {"True": True, "False": False}.get(label, number)
