"""Make lines of model calls, and of an engine's requests as the receiver records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_rollout.base import semconv
from otel_rollout.otlp import received, received_protobuf, writer
from otel_rollout.recording.identity import Identity
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName

START = 1_800_000_000_000_000_000
MS = 1_000_000
_HEAD = {semconv.RUN_ID: "the-run", semconv.SEGMENT_ID: "a segment", semconv.PROJECT_NAME: "p"}


def identity(trace: int) -> dict[str, Any]:
    """Return the identity of a trajectory."""
    return {semconv.EXPERIMENT_NAME: "e", semconv.STEP: 1, semconv.SAMPLE_INDEX: trace, semconv.ROLLOUT_N: 0}


def call_line(
    span: int,
    request_id: str,
    trace: int = 1,
    times: tuple[int, int] = (0, 100),
    by: str = semconv.GEN_AI_RESPONSE_ID,
    parent: int = 0,
    kind: str = "",
    is_known: bool = True,
) -> bytes:
    """Make the line of a model call.

    Args:
        span: the span's id.
        request_id: id of the request that the call made.
        trace: the trace's id.
        times: begin and end in ms.
        by: the attribute that has the id; in an output, it is the id of a reply.
        parent: the parent's id.
        kind: the span's kind; empty without one.
        is_known: whether the trace is a trajectory's.
    """
    reply = orjson.dumps({"choices": [{"index": 0}], "id": request_id}).decode()
    attributes = identity(trace) if is_known else {}
    attributes[by] = reply if by == semconv.OUTPUT_VALUE else request_id
    if kind:
        attributes[semconv.SPAN_KIND] = kind
    pieces = writer.line(
        writer.scope_head("a client", None, None, None),
        writer.head_below(b"%032x" % trace, b"%016x" % parent if parent else b"", 1),
        b"%016x" % span,
        b'"chat"',
        1,
        *(START + time * MS for time in times),
        [writer.attribute_list(attributes)],
    )
    return b"".join((writer.resource_head(_HEAD), *pieces))


def engine_lines(
    span: int,
    request_id: str,
    times: tuple[int, int] = (10, 90),
    trace: int = 0,
    parent: int = 0,
    is_known: bool = True,
) -> list[bytes]:
    """Make the lines of an engine's request and its phases.

    Args:
        span: the span's id.
        request_id: the request's id.
        times: begin and end in ms.
        trace: the trace's id; 0 for a trace of its own.
        parent: the parent's id, if the request came with a trace header.
        is_known: whether the trace of the header is a trajectory's of this machine.
    """
    seconds = (times[1] - times[0]) / 1000
    latencies = {
        semconv.LATENCY_FIRST_TOKEN: seconds / 2,
        semconv.LATENCY_TOTAL: seconds,
        semconv.LATENCY_QUEUE: seconds / 8,
        semconv.LATENCY_PREFILL: seconds / 8,
        semconv.LATENCY_DECODE: seconds / 4,
    }
    message = trace_pb2.Span(
        trace_id=(trace or (1 << 96) + span).to_bytes(16, "big"),
        span_id=span.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=semconv.ENGINE_REQUEST,
        kind=trace_pb2.Span.SPAN_KIND_SERVER,
        start_time_unix_nano=START + times[0] * MS,
        end_time_unix_nano=START + times[1] * MS,
    )
    for key, value in latencies.items():
        message.attributes.add(key=key).value.double_value = value
    message.attributes.add(key=semconv.GEN_AI_REQUEST_ID).value.string_value = request_id
    return lines_of_engine_span(message, identity(trace) if trace and is_known else {})


def lines_of_engine_span(span: trace_pb2.Span, known: Mapping[str, Any] | None = None) -> list[bytes]:
    """Make the lines that the receiver records of an engine's span.

    Args:
        span: the span.
        known: the identity of its trajectory; empty if the receiver does not know it.
    """
    of_resource = trace_pb2.ResourceSpans()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "vllm"
    of_resource.scope_spans.add(spans=[span]).scope.name = "vllm.tracing.otel"
    (scope,) = received_protobuf.scopes_of(type("Request", (), {"resource_spans": [of_resource]}))
    head = writer.open_resource_head(_HEAD) + scope.resource.head
    (decoded,) = map(scope.decode, scope.spans)
    line = received.line_of(scope, decoded, received.entries(known or {}))
    phases = received.phase_lines_of(decoded, Identity(known or {}).encode())
    return [head + each for each in (line, *phases)]


def write_segment(
    node_dir: Path, writer_number: int, lines: Sequence[bytes], sequence: int = 1
) -> SegmentName:
    """Append lines to a segment of a writer that is dead."""
    name = SegmentName(f"{writer_number}-{writer_number:016x}", sequence)
    with open(node_dir / name.file, "ab") as file:
        file.write(b"".join(lines))
    (node_dir / name.file).chmod(0o600)
    return name


def new_node_directory(spool: Path, node: str = "node") -> Path:
    """Make a node directory."""
    directory = layout.node_directory(spool, "the-run", node)
    layout.create_private(directory, spool)
    return directory


def fields_of(line: bytes) -> dict[str, Any]:
    """Return the ids, name and attributes of a line's span."""
    (of_resource,) = orjson.loads(line)["resourceSpans"]
    (span,) = of_resource["scopeSpans"][0]["spans"]
    attributes = {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}
    return {
        "trace": span["traceId"],
        "id": span["spanId"],
        "parent": span.get("parentSpanId", ""),
        "name": span["name"],
        "attributes": attributes,
    }
