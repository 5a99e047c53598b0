"""Measure a rollout whose target is unreachable in the middle third.

    python -m benchmarks.outage [--quick]

Ten trajectories of ten spans per second, in a process per tracer (``benchmarks.rollout``), with a real
server. In the middle third the server's address refuses connections. After its last operation, the process
may deliver its backlog for a while. Measures the caller's times, memory and lost spans. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import tracers
from benchmarks.rollout import PER_SECOND
from benchmarks.targets import TARGETS, Gate, Target, running
from benchmarks.tracers import ROOT, SPANS, TRACERS

FIELD = (
    "otel-rollout → MLflow",
    "verl, mlflow backend",
    "otel-rollout → Weave",
    "verl, weave backend",
    "otel-rollout → Collector",
    "OTel SDK, OTLP",
)
_START_SECONDS = 300


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all tracers in turn; with ``--quick`` only those of the Collector."""
    seconds, patience = (6, 10) if quick else (18, 18)
    found: dict[str, Any] = {}
    for name in FIELD[-2:] if quick else FIELD:
        with running(TARGETS[TRACERS[name].target]) as (target, place):
            found[name] = _outage(name, target, place / "spool", seconds, patience)
    return {
        "seconds": seconds,
        "patience_seconds": patience,
        "trajectories_per_second": PER_SECOND,
        "tracers": found,
    }


def _outage(name: str, target: Target, spool: Path, seconds: int, patience: int) -> dict[str, Any]:
    """Measure one tracer."""
    with Gate(target.port) as gate:
        variables = tracers.environment(name, target.variables(gate.port), spool)
        command = [TRACERS[name].python, "-m", "benchmarks.rollout", name, str(seconds)]
        said: list[dict[str, Any]] = []
        with subprocess.Popen(
            command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            listener = threading.Thread(target=_listen, args=(process, said))
            listener.start()
            try:
                began = _first(said, process)
                for at, change in ((seconds / 3, gate.shut), (2 * seconds / 3, gate.open)):
                    time.sleep(max(began + at - time.monotonic(), 0))
                    change()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(began + seconds + patience - time.monotonic(), 0))
            finally:
                process.kill()
                listener.join()
        arrived = target.spans()
    # Subtract the trajectory before the first second.
    sent = (said[-1]["trajectories"]) * SPANS
    thirds = [_third([second for second in said if "operations" in second], n, seconds / 3) for n in range(3)]
    return {
        "spans": sent,
        "lost": max(sent - arrived, 0),
        "finish_seconds": said[-1].get("finish_seconds"),
        "thirds": thirds,
        "mib": [thirds[0]["mib"], max(third["mib"] for third in thirds)],
        "each_second": said,
    }


def _listen(process: subprocess.Popen[str], said: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            said.append(json.loads(line))


def _first(said: list[dict[str, Any]], process: subprocess.Popen[str]) -> float:
    """Return the rollout's start time, from its first line of output."""
    deadline = time.monotonic() + _START_SECONDS
    while not said:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the rollout does not begin")
        time.sleep(0.01)
    return time.monotonic() - float(said[0]["at"])


def _third(seconds: list[dict[str, Any]], number: int, length: float) -> dict[str, Any]:
    """Summarize a third of the rollout.

    Seconds without output were spent in one operation.
    """
    during = [second for second in seconds if number * length < second["at"] <= (number + 1) * length]
    timed = [second for second in during if "p50_us" in second]
    return {
        "operations_per_second": round(sum(second["operations"] for second in during) / length, 1),
        "p50_us": _middle([second["p50_us"] for second in timed]),
        "p99_us": _middle([second["p99_us"] for second in timed]),
        "max_us": max((second["max_us"] for second in timed), default=None),
        "mib": max((second["mib"] for second in during), default=0.0),
    }


def _middle(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter one, for a first impression")
    print(json.dumps(run(parser.parse_args().quick), indent=1))
