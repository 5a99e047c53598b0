"""Measure the receiver of OTLP: its cost per span, its memory, and what kills cost.

    python -m benchmarks.receiver [--quick] [--only throughput|kills]

``throughput``: processor time of the receiver per span of about 0.5 KB with eight attributes, in requests of
512 spans, for each encoding; spans per second and core; memory of the receiver after a tenth of the spans and
at the end. ``kills``: a million spans while the receiver is killed again and again. Senders repeat a request
until it is acknowledged. Counts acknowledged spans that the spool lacks, and spans that it has twice.
Prints JSON.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import otel_rollout
from benchmarks.machine import machine
from otel_rollout import rollout_trace_attr
from otel_rollout.spool import layout
from otel_rollout.spool.receiver_files import is_receiving, read_address

BATCH = 512
ATTRIBUTES = 8
_SENDERS = 2
_KILLS = 8
_POLL = 0.1
_DEADLINE = 1800
_SPAN_ID = re.compile(rb'"spanId":"([0-9a-f]{16})","name":"llm_request"')
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


class Bodies:
    """Bodies of requests whose spans have the ids that follow each other."""

    def __init__(self, trace_id: str) -> None:
        self._trace_id = bytes.fromhex(trace_id)

    def protobuf(self, first: int) -> bytes:
        """Return a request in protobuf."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        of_resource = request.resource_spans.add()
        of_resource.resource.attributes.add(key="service.name").value.string_value = "engine"
        of_scope = of_resource.scope_spans.add(scope={"name": "engine"})
        now = time.time_ns()
        for number in range(first, first + BATCH):
            span = of_scope.spans.add(
                trace_id=self._trace_id,
                span_id=number.to_bytes(8, "big"),
                parent_span_id=b"\1" * 8,
                name="llm_request",
                kind=2,
                start_time_unix_nano=now,
                end_time_unix_nano=now + 1,
            )
            for index in range(ATTRIBUTES):
                value = span.attributes.add(key=f"gen_ai.request.attribute_{index}").value
                if index % 2:
                    value.string_value = "a text of the usual length, as engines have it"
                elif index % 4:
                    value.double_value = index * 0.37
                else:
                    value.int_value = index * 1000
        return bytes(request.SerializeToString())

    def zipped(self, first: int) -> bytes:
        """Return a request in protobuf, compressed."""
        return gzip.compress(self.protobuf(first), 1)

    def json(self, first: int) -> bytes:
        """Return a request in OTLP/JSON."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        from otel_rollout.otlp import received, received_protobuf

        request = ExportTraceServiceRequest.FromString(self.protobuf(first))
        (scope,) = received_protobuf.scopes_of(request)
        lines = [received.line_of(scope, scope.decode(span), b"") for span in scope.spans]
        spans = b",".join(line[len(scope.head) : -len(b"]}]}]}\n")] for line in lines)
        return b'{"resourceSpans":[{%b%b]}]}]}' % (b'"scopeSpans":[{', scope.head + spans)


class Receiver:
    """The receiver of this process's run."""

    def __init__(self, node_dir: Path) -> None:
        address = read_address(node_dir)
        assert address is not None
        self.node_dir = node_dir
        self.address = address

    @property
    def pid(self) -> int:
        """Return its process id; 0 while none runs."""
        inode = str((self.node_dir / "receiver.lock").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "FLOCK" in fields and "WRITE" in fields and fields[5].rpartition(":")[2] == inode:
                return int(fields[4])
        return 0

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the receiver so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mib(self) -> float:
        """Return the receiver's memory without the pages of its journal."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return round(int(status.partition("RssAnon:")[2].split()[0]) / 1024, 1)

    def send(self, bodies: Callable[[], bytes | None], type_: str, encoding: str, sent: list[int]) -> None:
        """Send bodies until none is left, each until it is acknowledged."""
        headers = {"authorization": f"Bearer {self.address.token}", "content-type": type_}
        if encoding:
            headers["content-encoding"] = encoding
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=60)
        while (body := bodies()) is not None:
            while True:
                try:
                    connection.request("POST", "/v1/traces", body, headers)
                    answer = connection.getresponse()
                    answer.read()
                except (OSError, http.client.HTTPException):
                    connection.close()
                    time.sleep(0.05)
                    continue
                if answer.status == 200:
                    sent.append(BATCH)
                    break
                if answer.status != 429:
                    raise RuntimeError(f"{answer.status}")
                time.sleep(0.1)
        connection.close()


def _flow(
    receiver: Receiver, make: Callable[[int], bytes], spans: int, type_: str, encoding: str, first: int
) -> tuple[list[threading.Thread], list[int]]:
    """Start senders of ``spans`` spans; return their threads, and the list of acknowledged spans."""
    starts = iter(range(first, first + spans, BATCH))
    lock = threading.Lock()
    sent: list[int] = []

    def next_body() -> bytes | None:
        with lock:
            start = next(starts, None)
        return None if start is None else make(start)

    threads = [
        threading.Thread(target=receiver.send, args=(next_body, type_, encoding, sent), daemon=True)
        for _ in range(_SENDERS)
    ]
    for thread in threads:
        thread.start()
    return threads, sent


def _wait(threads: list[threading.Thread], sent: list[int], number: float) -> None:
    """Wait until so many spans are acknowledged, or all are."""
    deadline = time.monotonic() + _DEADLINE
    while len(sent) * BATCH < number and any(thread.is_alive() for thread in threads):
        if time.monotonic() > deadline:
            raise RuntimeError("the senders do not end")
        time.sleep(0.01)


def throughput(receiver: Receiver, bodies: Bodies, spans: int, first: int) -> dict[str, Any]:
    """Measure each encoding."""
    found = {}
    for name, make, type_, encoding in (
        ("protobuf", bodies.protobuf, _PROTOBUF, ""),
        ("protobuf, gzip", bodies.zipped, _PROTOBUF, "gzip"),
        ("json", bodies.json, _JSON, ""),
    ):
        before = receiver.cpu_seconds
        threads, sent = _flow(receiver, make, spans, type_, encoding, first)
        _wait(threads, sent, spans / 10)
        early = receiver.memory_mib
        _wait(threads, sent, float("inf"))
        seconds = receiver.cpu_seconds - before
        number = len(sent) * BATCH
        first += number
        found[name] = {
            "spans": number,
            "cpu_us_per_span": round(seconds / number * 1e6, 1),
            "spans_per_core_second": round(number / seconds),
            "memory_mib_early": early,
            "memory_mib_end": receiver.memory_mib,
        }
    return found


def kills(receiver: Receiver, bodies: Bodies, spans: int, first: int) -> dict[str, Any]:
    """Kill the receiver again and again while spans flow; compare the spool with what was acknowledged."""
    threads, sent = _flow(receiver, bodies.protobuf, spans, _PROTOBUF, "", first)
    for number in range(1, _KILLS + 1):
        _wait(threads, sent, spans * number / (_KILLS + 1))
        pid = receiver.pid
        if pid:
            os.kill(pid, signal.SIGKILL)
    _wait(threads, sent, float("inf"))
    otel_rollout.shutdown(600)
    acknowledged = len(sent) * BATCH
    recorded: set[bytes] = set()
    lines = 0
    for name in layout.segments(receiver.node_dir):
        with open(receiver.node_dir / name.file, "rb") as file:
            for line in file:
                for span_id in _SPAN_ID.findall(line):
                    if int(span_id, 16) >= first:
                        lines += 1
                        recorded.add(span_id)
    return {
        "acknowledged": acknowledged,
        "kills": _KILLS,
        "lost": acknowledged - len(recorded),
        "twice": lines - len(recorded),
    }


@contextmanager
def _receiving() -> Iterator[tuple[Receiver, Bodies]]:
    """Record a run with a receiver in a temporary spool."""
    with tempfile.TemporaryDirectory() as spool:
        otel_rollout.configure("spool", spool_dir=spool, receive="true", keep=True)
        with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
            environment = otel_rollout.child_environment()
            bodies = Bodies(environment["TRACEPARENT"].split("-")[1])
            (node_dir,) = layout.node_directories(Path(spool))
            yield Receiver(node_dir), bodies
        otel_rollout.shutdown(60)
        while is_receiving(node_dir):  # it writes into the directory that is removed next
            time.sleep(_POLL)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receiver", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans")
    parser.add_argument("--only", choices=("throughput", "kills"))
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": machine()}
    with _receiving() as (receiver, bodies):
        if arguments.only != "kills":
            found["throughput"] = throughput(receiver, bodies, 50_000 if arguments.quick else 300_000, 1)
        if arguments.only != "throughput":
            found["kills"] = kills(receiver, bodies, 100_000 if arguments.quick else 1_000_000, 1 << 32)
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
