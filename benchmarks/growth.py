"""Measure whether a span's cost stays equal as spans and processes increase.

    python -m benchmarks.growth [--quick]

Our spans and spans of the bare SDK take turns in small windows, so that both meet the same conditions;
compare the ratio. ``spans``: cost after so many spans of this process. ``trajectory``: cost at the end of a
trajectory of so many spans. ``processes``: cost while so many processes record into one spool, and the
forwarder's cost per span. CPU time, with content of 1 KB, because a million larger spans would be gigabytes.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

import otel_rollout
from benchmarks.bounded import TARGET, TEXT
from benchmarks.hot_path import IDENTITY
from benchmarks.otlp_delivery import _free_port
from otel_rollout import rollout_trace_attr, rollout_trace_op

PROCESSES = (1, 2, 4, 8, 16)
MODULE = [sys.executable, "-m", "benchmarks.growth"]
_TRAJECTORY = 100
_WINDOW = 200
_WINDOWS = 15
_FIGURES = ("cpu_us", "sdk_cpu_us", "share_of_sdk_span")
_REST = 0.005
"""Seconds between bursts, because a real process does other work between spans."""

Spans = Callable[[int], float]
"""Function that records a number of spans and returns the CPU time of one in µs."""


@rollout_trace_op(kind="LLM")
def turn(text: str) -> str:
    """Return 1 KB; the operation that is recorded."""
    return text


def ours(spans: int) -> float:
    """Record spans within the current trajectory."""
    began = time.thread_time_ns()
    for _ in range(spans):
        turn(TEXT)
    return (time.thread_time_ns() - began) / spans / 1000


def bare(stack: ExitStack) -> Spans:
    """Create SDK spans without content, for an exporter that does nothing."""
    from benchmarks.hot_path import _sdk_tracer

    tracer = _sdk_tracer(stack)

    def record(spans: int) -> float:
        with tracer.start_as_current_span("root"):
            began = time.thread_time_ns()
            for _ in range(spans):
                with tracer.start_as_current_span("turn", attributes=IDENTITY):
                    pass
            return (time.thread_time_ns() - began) / spans / 1000

    return record


class Windows:
    """CPU times of spans in turns: ours and the SDK's."""

    def __init__(self, sdk: Spans) -> None:
        self._sdk = sdk
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def take(self) -> None:
        """Measure one window of each."""
        self.add(ours(_WINDOW))

    def add(self, cost: float) -> None:
        """Add the measurement of one window of ours and of one of the SDK's."""
        self.ours.append(cost)
        self.theirs.append(self._sdk(_WINDOW))

    def result(self) -> dict[str, Any]:
        """Return the medians, and the median ratio of neighbouring windows."""
        pairs = list(zip(self.ours, self.theirs, strict=True))
        return {
            "cpu_us": round(median(self.ours), 2),
            "sdk_cpu_us": round(median(self.theirs), 2),
            "share_of_sdk_span": round(median(one / other for one, other in pairs), 3),
            "samples": [[round(one, 2), round(other, 2)] for one, other in pairs],
        }


def by_spans(sdk: Spans, quick: bool) -> dict[str, Any]:
    """Measure after 10³, 10⁴, … spans."""
    found = {}
    recorded = 0
    for number in (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
        while recorded < number:
            with rollout_trace_attr(step=1):
                ours(_TRAJECTORY - 1)
            recorded += _TRAJECTORY
            if not recorded % 500:
                time.sleep(_REST)
        windows = Windows(sdk)
        for _ in range(_WINDOWS):
            with rollout_trace_attr(step=1):
                windows.take()
            recorded += _WINDOW + 1
        found[str(number)] = windows.result()
    return found


def by_length(sdk: Spans, quick: bool) -> dict[str, Any]:
    """Measure at the end of trajectories of 10, 100, … spans."""
    found = {}
    for length in (10, 100, 1000) if quick else (10, 100, 1000, 10_000):
        windows = Windows(sdk)
        measured = min(length // 2, _WINDOW)
        for _ in range(_WINDOWS):
            costs = []
            for _ in range(_WINDOW // measured):
                with rollout_trace_attr(step=1):
                    ours(length - measured)
                    costs.append(ours(measured))
            windows.add(mean(costs))
            time.sleep(_REST)
        found[str(length)] = windows.result()
    return found


def one_of_many(spool: str) -> None:
    """In a separate process: wait for the others, then record."""
    with ExitStack() as stack:
        otel_rollout.configure({"spool": {}}, spool_dir=spool, forwarder_linger=0)
        sdk = bare(stack)
        with rollout_trace_attr(step=1):
            Windows(sdk).take()
        print("ready", flush=True)
        sys.stdin.readline()
        windows = Windows(sdk)
        for _ in range(_WINDOWS):
            with rollout_trace_attr(step=1):
                windows.take()
        otel_rollout.shutdown(0)
    print(json.dumps(windows.result()), flush=True)


def by_processes(quick: bool) -> dict[str, Any]:
    """Measure while 1, 2, … processes record."""
    start = _start()
    found = {}
    for number in PROCESSES[:3] if quick else PROCESSES:
        with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-", ignore_cleanup_errors=True) as spool:
            commands = [[*MODULE, "--one-of-many", spool]] * number
            processes = [
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for command in commands
            ]
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            said = []
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in processes:
                out, _ = process.communicate(timeout=300)
                said.append(json.loads(out.splitlines()[-1]))
            found[str(number)] = {
                **{name: round(median(one[name] for one in said), 3) for name in _FIGURES},
                "forwarder_cpu_us": _forwarded(Path(spool), start),
                "samples": [one["samples"] for one in said],
            }
    return found


def _start() -> float:
    """Return the CPU seconds of a forwarder that delivers a single span."""
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-", ignore_cleanup_errors=True) as spool:
        script = "import sys; from benchmarks import growth; growth.one_span(sys.argv[1])"
        subprocess.run([sys.executable, "-c", script, spool], check=True)
        return _forward(Path(spool))


def one_span(spool: str) -> None:
    """Record a spool in a separate process."""
    otel_rollout.configure({"spool": {}}, spool_dir=spool, forwarder_linger=0)
    with rollout_trace_attr(step=1):
        pass
    otel_rollout.shutdown(0)


def _forwarded(spool: Path, start: float) -> float:
    """Return the forwarder's CPU per span of a spool, over OTLP, in µs."""
    spans = sum(path.read_bytes().count(b"\n") for path in spool.rglob("*.jsonl"))
    return round((_forward(spool) - start) / spans * 1e6, 1)


def _forward(spool: Path) -> float:
    """Return the CPU seconds of a forwarder that delivers a spool and exits."""
    port = _free_port()
    target = subprocess.Popen([sys.executable, "-c", TARGET, str(port)])
    try:
        endpoint = f"http://127.0.0.1:{port}"
        variables = {"OTEL_ROLLOUT_SPOOL_DIR": str(spool), "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward", "--to", "otlp"]
        process = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"otel-rollout forward failed: {process.returncode}")
    finally:
        target.kill()
        target.wait()
    return used.ru_utime + used.ru_stime


def in_one_process(quick: bool) -> dict[str, Any]:
    """Measure the parts that need a process without earlier spans."""
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        otel_rollout.configure({"spool": {}}, spool_dir=spool, forwarder_linger=0)
        sdk = bare(stack)
        found = {"spans": by_spans(sdk, quick), "trajectory": by_length(sdk, quick)}
        report = otel_rollout.shutdown(0)
    return {**found, "recorded": report.recorded, "dropped": dict(report.dropped)}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all three parts."""
    command = [*MODULE, "--in-one-process", *(["--quick"] if quick else [])]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return {**json.loads(ran.stdout.splitlines()[-1]), "processes": by_processes(quick)}


def main() -> None:
    """Measure, or run as one of the measured processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    parser.add_argument("--one-of-many", help=argparse.SUPPRESS)
    parser.add_argument("--in-one-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_of_many:
        one_of_many(given.one_of_many)
    elif given.in_one_process:
        print(json.dumps(in_one_process(given.quick)), flush=True)
    else:
        print(json.dumps(run(given.quick), indent=1))


if __name__ == "__main__":
    main()
