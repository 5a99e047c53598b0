"""Measure delivery to a Collector: the forwarder's cost and the Collector's.

    python -m benchmarks.otlp_delivery [--quick]

Spans of about 5 KB are recorded once. Then a new forwarder delivers copies of that spool over each protocol
in turn, to an agent (base.yaml, agent.yaml) whose gateway is unreachable: the Collector accepts spans and
writes them into its queue on disk. The cost of a forwarder that delivers a single span is subtracted. Then a
gateway receives the spans; it redacts secrets, derives metrics, samples and writes a file. Prints JSON; CPU
per span in µs, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
CONFIGURATIONS = ROOT / "collector-config"
PROTOCOLS = {
    "http/json": {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
    "http/json, gzip": {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
    "http/protobuf": {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
    "grpc": {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
}
_START_SECONDS = 30
_DECISION_SECONDS = 5

RECORD = """
import sys, otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
words = "The lift carries at most 640 kilograms, of which five people take 360. "

@rollout_trace_op(kind="LLM")
def turn(messages): return words * 28

for sample in range(int(sys.argv[1]) // 10 or 1):
    with rollout_trace_attr(sample_index=sample, step=1, rollout_n=0):
        for _ in range(9 if int(sys.argv[1]) > 1 else 0):
            turn(words * 28)
otel_rollout.shutdown(60)
"""


class Collector:
    """A Collector with configurations of this repository, on free ports."""

    def __init__(self, place: Path, *configurations: str) -> None:
        found = subprocess.run(
            [sys.executable, str(CONFIGURATIONS / "get_collector.py")],
            capture_output=True,
            text=True,
            check=True,
        )
        self.grpc, self.http, health, self._own, prometheus = (_free_port() for _ in range(5))
        variables = {
            "COLLECTOR_GRPC": f"127.0.0.1:{self.grpc}",
            "COLLECTOR_HTTP": f"127.0.0.1:{self.http}",
            "COLLECTOR_HEALTH": f"127.0.0.1:{health}",
            "COLLECTOR_METRICS_PORT": str(self._own),
            "COLLECTOR_STORAGE": str(place / "storage"),
            "GATEWAY_ENDPOINT": "http://127.0.0.1:1",
            "PROMETHEUS_ENDPOINT": f"127.0.0.1:{prometheus}",
            "SPANS_FILE": str(place / "spans.jsonl"),
            "DECISION_AFTER_ROOT": "1s",
            "COLLECTOR_MEMORY_MIB": "4096",
        }
        command = [found.stdout.strip()]
        for name in ("base", *configurations):
            command += ["--config", str(CONFIGURATIONS / f"{name}.yaml")]
        with (place / "collector.log").open("wb") as log:
            self._process = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{health}", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError((place / "collector.log").read_text()[-2000:])

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def accepted_spans(self) -> int:
        """Return the number of accepted spans, by the Collector's own count."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._own}/metrics", timeout=10) as answer:
            counts = re.findall(r"^otelcol_receiver_accepted_spans\S* (\S+)$", answer.read().decode(), re.M)
        return round(sum(map(float, counts)))

    @property
    def memory_bytes(self) -> int:
        """Return the peak of memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def stop(self) -> None:
        """Stop the Collector."""
        self._process.terminate()
        self._process.wait(30)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every protocol, in rounds."""
    spans, rounds = (5_000, 1) if quick else (20_000, 3)
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-") as directory:
        place = Path(directory)
        recorded, single = _record(place / "recorded", spans), _record(place / "single", 1)
        size = sum(path.stat().st_size for path in recorded.rglob("*.jsonl"))
        count = sum(path.read_bytes().count(b"\n") for path in recorded.rglob("*.jsonl"))
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in PROTOCOLS}
        memory = 0
        for number in range(rounds):
            for name, variables in PROTOCOLS.items():
                target = place / f"collector-{number}-{name.replace('/', '-')}"
                target.mkdir()
                collector = Collector(target, "agent")
                try:
                    nothing, _ = _deliver(single, place / "copy", variables, collector)
                    forwarder, receiving = _deliver(recorded, place / "copy", variables, collector)
                    costs[name].append(((forwarder - nothing) / count * 1e6, receiving / count * 1e6))
                    memory = max(memory, collector.memory_bytes)
                finally:
                    collector.stop()
                shutil.rmtree(target)
        gateway = _gateway(recorded, place, count)
    return {
        "span_bytes": size // count,
        "spans": count,
        "agent_memory_mib": memory >> 20,
        "gateway": gateway,
        "protocols": {
            name: {
                "forwarder_cpu_us": round(median(f for f, _ in samples), 1),
                "collector_cpu_us": round(median(c for _, c in samples), 1),
                "samples": [[round(f, 1), round(c, 1)] for f, c in samples],
            }
            for name, samples in costs.items()
        },
    }


def _gateway(recorded: Path, place: Path, count: int) -> dict[str, float]:
    """Measure CPU and memory of a gateway that samples, until its decisions."""
    target = place / "gateway"
    target.mkdir()
    collector = Collector(target, "gateway", "sampling", "to-file")
    try:
        before = collector.cpu_seconds
        _deliver(recorded, place / "copy", PROTOCOLS["http/protobuf"], collector)
        time.sleep(_DECISION_SECONDS)
        used = collector.cpu_seconds - before
        return {"cpu_us": round(used / count * 1e6, 1), "memory_mib": collector.memory_bytes >> 20}
    finally:
        collector.stop()


def _record(spool: Path, spans: int) -> Path:
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "spool", "OTEL_ROLLOUT_SPOOL_DIR": str(spool)}
    subprocess.run([sys.executable, "-c", RECORD, str(spans)], env=environment, check=True)
    return spool


def _deliver(spool: Path, copy: Path, variables: dict[str, str], collector: Collector) -> tuple[float, float]:
    """Return the CPU seconds of a forwarder that delivers a copy of the spool.

    And those of the Collector meanwhile.
    """
    shutil.copytree(spool, copy)
    port = collector.grpc if variables["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc" else collector.http
    environment = {
        **os.environ,
        **variables,
        "OTEL_ROLLOUT_SPOOL_DIR": str(copy),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
    }
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward", "--to", "otlp"]
    before = collector.cpu_seconds
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"otel-rollout forward failed: {process.returncode}")
    receiving = collector.cpu_seconds - before
    shutil.rmtree(copy)
    return used.ru_utime + used.ru_stime, receiving


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.otlp_delivery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    print(json.dumps(run(parser.parse_args().quick), indent=1))
