"""Measure the bounds of recording and delivery.

    python -m benchmarks.bounded [--quick] [--only outage|disk|limit|threads]

``outage``: a process records a million spans while no target listens; then the target returns. Memory of the
recording process and of the forwarder before, during and after the outage.
``disk``: times of single operations while gigabytes of a checkpoint are written beside the spool, with the
spool on that disk and in memory, each with and without the checkpoint.
``limit``: times of operations before and after the run has reached its spool limit.
``threads``: times of operations of 64 threads that compute in Python and wait for each other.

Writes ``results/bounded.json``. With ``--only`` it keeps the figures of the other parts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
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
from benchmarks.otlp_delivery import _free_port
from otel_rollout import Report, rollout_trace_attr, rollout_trace_op

RESULTS = Path(__file__).parent / "results" / "bounded.json"
TEXT = "The lift carries at most 640 kilograms, of which five people take 360. " * 8
_TRAJECTORY = 100
_PAUSE = 0.0005
"""Seconds between operations that are timed one by one."""
_DELIVERY_SECONDS = 3600

TARGET = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_): ...

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
CHECKPOINT = """
import os, sys
chunk = os.urandom(16 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(int(sys.argv[2]) * 64):
        file.write(chunk)
    os.fsync(file.fileno())
"""


@rollout_trace_op(kind="LLM")
def turn(text: str) -> str:
    """Return about 2 KB; the operation that is recorded."""
    return text


@rollout_trace_op(kind="EVALUATOR")
def grade(text: str) -> int:
    """Compute in Python for 0.1 ms."""
    total = 0
    for number in range(2000):
        total += number
    return total


def outage(quick: bool) -> dict[str, Any]:
    """Measure memory during an outage and during the delivery after it."""
    parts, spans = (10, 10_000) if quick else (10, 100_000)
    port = _free_port()
    with _tracing({"otlp": {"endpoint": f"http://127.0.0.1:{port}/v1/traces"}}):
        _record(1)
        memory = [_mebibytes("self", "VmRSS")]
        for _ in range(parts):
            _record(spans)
            memory.append(_mebibytes("self", "VmRSS"))
        pending = otel_rollout.status()
        forwarder = _forwarder(pending.directory)
        in_outage = _mebibytes(forwarder, "VmHWM")
        target = subprocess.Popen([sys.executable, "-c", TARGET, str(port)])
        began = time.monotonic()
        try:
            report = _wait_for_delivery()
            seconds = time.monotonic() - began
            in_delivery, after = _mebibytes(forwarder, "VmHWM"), _mebibytes(forwarder, "VmRSS")
        finally:
            target.kill()
            target.wait()
    return {
        **_account(report),
        "pending_after_the_outage": pending.exporters["otlp"].pending,
        "delivered": report.exporters["otlp"].delivered,
        "delivered_in_seconds": round(seconds),
        "recording_process_mib": memory,
        "forwarder_peak_mib_in_the_outage": in_outage,
        "forwarder_peak_mib_with_delivery": in_delivery,
        "forwarder_mib_after_delivery": after,
    }


def disk(quick: bool) -> dict[str, Any]:
    """Measure single operations with and without a checkpoint beside them."""
    place = Path(tempfile.gettempdir())
    gigabytes = 2 if quick else max(1, min(12, shutil.disk_usage(place).free // 4 >> 30))
    measured: dict[str, Any] = {"checkpoint_gigabytes": gigabytes}
    for name, directory in (("spool on the disk", place), ("spool in memory", Path("/dev/shm"))):
        with _tracing({"spool": {}}, directory):
            _record(1000)
            end = time.monotonic() + (5 if quick else 20)
            measured[name] = _times(lambda end=end: time.monotonic() > end)  # type: ignore[misc]
            with _checkpoint(place, gigabytes) as is_written:
                began = time.monotonic()
                beside = _times(is_written)
                beside["checkpoint_mib_per_second"] = round(gigabytes * 1024 / (time.monotonic() - began))
            measured[f"{name}, beside the checkpoint"] = beside | _account(otel_rollout.status())
    return measured


def limit(quick: bool) -> dict[str, Any]:
    """Measure an outage that lasts until the spool is full."""
    bound = 20_000_000 if quick else 200_000_000
    with _tracing({"otlp": {"endpoint": f"http://127.0.0.1:{_free_port()}/v1/traces"}}, spool_limit=bound):
        _record(1)
        end = time.monotonic() + 5
        before = _times(lambda: time.monotonic() > end)
        while not otel_rollout.status().dropped:
            _record(10_000)
        end = time.monotonic() + 5
        full = _times(lambda: time.monotonic() > end)
        report = otel_rollout.status()
        size = sum(path.stat().st_size for path in Path(report.directory).glob("*.jsonl"))
    return {"limit_bytes": bound, "bytes": size, **_account(report), "with_room": before, "full": full}


def threads(quick: bool) -> dict[str, Any]:
    """Measure threads that starve each other: their spans and operation times."""
    count, calls = 64, 1000 if quick else 10_000
    times: list[float] = []

    def rollout(number: int) -> None:
        took = []
        with rollout_trace_attr(step=1, sample_index=number):
            for _ in range(calls):
                began = time.perf_counter_ns()
                grade(TEXT)
                took.append((time.perf_counter_ns() - began) / 1000)
        times.extend(took)

    with _tracing({"spool": {}}):
        _record(1)
        running = [threading.Thread(target=rollout, args=(number,)) for number in range(count)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        report = otel_rollout.status()
    times.sort()
    return {
        "threads": count,
        "operations": len(times),
        **{f"p{share}": round(times[int(len(times) * share / 100)]) for share in (50, 99, 99.9)},
        "max": round(times[-1]),
        **_account(report),
    }


PARTS = {"outage": outage, "disk": disk, "limit": limit, "threads": threads}


@contextmanager
def _tracing(exporters: dict[str, Any], place: Path | None = None, **settings: Any) -> Iterator[None]:
    with tempfile.TemporaryDirectory(
        prefix="otel-rollout-bench-", dir=place, ignore_cleanup_errors=True
    ) as spool:
        otel_rollout.configure(exporters, spool_dir=spool, forwarder_linger=1, **settings)
        try:
            yield
        finally:
            otel_rollout.shutdown(0)


@contextmanager
def _checkpoint(place: Path, gigabytes: int) -> Iterator[Callable[[], bool]]:
    """Write a file in another process; return whether the file is synced to disk."""
    path = place / f"otel-rollout-bench-checkpoint-{os.getpid()}"
    process = subprocess.Popen([sys.executable, "-c", CHECKPOINT, str(path), str(gigabytes)])
    try:
        yield lambda: process.poll() is not None
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)


def _record(spans: int) -> None:
    """Record spans as fast as possible."""
    for _ in range(0, spans, _TRAJECTORY):
        with rollout_trace_attr(step=1):
            for _ in range(min(spans, _TRAJECTORY) - 1):
                turn(TEXT)


def _times(is_over: Callable[[], bool]) -> dict[str, Any]:
    """Return quantiles of operation times in µs.

    ``waited`` counts the operations whose thread waited for anything.
    """
    times: list[float] = []
    waited: list[float] = []
    with rollout_trace_attr(step=1):
        while not is_over():
            waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            began = time.perf_counter_ns()
            turn(TEXT)
            times.append((time.perf_counter_ns() - began) / 1000)
            if resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > waits:
                waited.append(times[-1])
            time.sleep(_PAUSE)
    times.sort()
    return {
        "operations": len(times),
        **{f"p{share}": round(times[int(len(times) * share / 100)]) for share in (50, 99, 99.9)},
        "max": round(times[-1]),
        "waited": len(waited),
        "waited_max": round(max(waited, default=0)),
    }


def _wait_for_delivery() -> Report:
    deadline = time.monotonic() + _DELIVERY_SECONDS
    while (report := otel_rollout.status()).undelivered - sum(report.dropped.values()):
        if time.monotonic() > deadline:
            raise TimeoutError(report.summary())
        time.sleep(1)
    return report


def _account(report: Report) -> dict[str, Any]:
    return {"started": report.started, "recorded": report.recorded, "dropped": dict(report.dropped)}


def _forwarder(node_dir: str) -> str:
    """Start the forwarder of a directory and return its process."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        if f"otel_rollout.forwarder\0{node_dir}\0" in command.read_text():
            return command.parent.name
    raise RuntimeError(f"nobody forwards {node_dir}")


def _mebibytes(process: str, field: str) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return round(int(status.partition(field + ":")[2].split()[0]) / 1024, 1)


def main() -> None:
    """Measure the parts and report their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounded", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything, for a first impression")
    parser.add_argument("--only", choices=PARTS, help="measure this part, and keep the others' figures")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    measured = {name: PARTS[name](options.quick) for name in ([options.only] if options.only else PARTS)}
    result = {**kept, "machine": machine(), **measured}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
