"""What the tests of the receiver share: requests, and a receiver inside this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rollout.record.receiver.app import ReceiverApplication
from otel_rollout.record.receiver.intake import JOURNAL_BYTES, Intake, Policy, Trajectories
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.spool.receiver_files import ReceiverCounts
from tests.spool_reader import Recorded, read_directory

TOKEN = "the-token"
HOST = "127.0.0.1:4318"
HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "application/x-protobuf", "host": HOST}
JSON_HEADERS = {**HEADERS, "content-type": "application/json"}
START = 1_800_000_000_000_000_000


def span(number: int = 1, **fields: Any) -> dict[str, Any]:
    """Return the fields of a span, numbered by its id."""
    ids = {"trace_id": bytes([1] * 16), "span_id": number.to_bytes(8, "big")}
    return {
        **ids,
        "name": f"span {number}",
        "kind": 1,
        "start_time_unix_nano": START,
        "end_time_unix_nano": START + 1,
        **fields,
    }


def request(
    spans: Sequence[Mapping[str, Any]], scope: str = "agent", resource: Mapping[str, str] | None = None
) -> bytes:
    """Return a request in protobuf, with one resource and one scope."""
    message = ExportTraceServiceRequest()
    of_resource = message.resource_spans.add()
    for key, value in (resource or {"service.name": "an agent"}).items():
        of_resource.resource.attributes.add(key=key).value.string_value = value
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = scope
    for fields in spans:
        of_scope.spans.add(**fields)
    return message.SerializeToString()


def message(field: int, content: bytes = b"") -> bytes:
    """Return a field of protobuf that holds a message."""
    length, size = len(content), b""
    while length > 0x7F:
        size += bytes([0x80 | length & 0x7F])
        length >>= 7
    return bytes([field << 3 | 2]) + size + bytes([length]) + content


def json_request(*spans: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in OTLP/JSON."""
    scopes = [{"scope": {"name": "by hand"}, "spans": list(spans)}]
    attributes = [{"key": "service.name", "value": {"stringValue": "curl"}}]
    return {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": scopes}]}


def json_span(number: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a span in OTLP/JSON."""
    return {
        "traceId": "01" * 16,
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": START + 1,
        **fields,
    }


def holder_of(lock: Path) -> int:
    """Return the process that holds a lock file; 0 without one."""
    inode = lock.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and "WRITE" in fields and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return 0


class InProcess:
    """A receiver's application in this process, with a real writer."""

    def __init__(
        self, node_dir: Path, policy: Policy, journal_bytes: int, host: str = HOST, **writer_options: Any
    ) -> None:
        self.node_dir = node_dir
        self.counts = ReceiverCounts()
        self.writer = SegmentWriter(
            node_dir,
            {"rollout.run.id": policy.run_id},
            journal_bytes=journal_bytes,
            is_resource_open=True,
            **writer_options,
        )
        self.trajectories = Trajectories(node_dir)
        intake = Intake(self.writer, self.trajectories, self.counts, policy)
        self.application = ReceiverApplication(intake, self.counts, TOKEN, frozenset({host}))

    async def post(
        self, body: Any, headers: Mapping[str, str] = HEADERS, path: str = "/v1/traces", method: str = "POST"
    ) -> httpx.Response:
        """Send a request past the network."""
        transport = httpx.ASGITransport(app=self.application)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            return await client.request(method, path, content=body, headers=headers)

    def recorded(self) -> list[Recorded]:
        """Return the spans in the segments."""
        assert self.writer.flush(10)
        return read_directory(self.node_dir)


@contextmanager
def in_process(
    node_dir: Path, policy: Policy | None = None, journal_bytes: int = JOURNAL_BYTES, **writer_options: Any
) -> Iterator[InProcess]:
    """Yield a receiver's application in this process."""
    node_dir.mkdir(mode=0o700, exist_ok=True)
    os.chmod(node_dir, 0o700)
    receiver = InProcess(node_dir, policy or Policy("the-run"), journal_bytes, **writer_options)
    try:
        yield receiver
    finally:
        receiver.writer.close(5)
