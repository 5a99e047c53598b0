"""Measure delivery from the caller to the server under load.

    python -m benchmarks.delivery [--quick]

Each tracer has its own process. In turns, the tracers send equal trajectories of ten spans, with 2 KB of
input and 2 KB of output each, to the same real server. Connections and our forwarder exist before. The time
ends when the server has the last span. Lost spans are counted on the server after the tracer has had all the
time it asks for. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import tracers
from benchmarks.rollout import Rollout
from benchmarks.targets import TARGETS, WEAVE_THAT_KEEPS_NOTHING, Target, running
from benchmarks.tracers import SPANS, TRACERS

SERVERS = {
    "MLflow server": TARGETS["mlflow"],
    "Weave's server": TARGETS["weave"],
    "Weave's server, storing nothing": WEAVE_THAT_KEEPS_NOTHING,
    "Collector": TARGETS["otlp"],
}
FIELD = {
    "MLflow server": ("otel-rollout → MLflow", "verl, mlflow backend", "mlflow.trace"),
    "Weave's server": ("otel-rollout → Weave", "verl, weave backend"),
    "Weave's server, storing nothing": ("otel-rollout → Weave", "verl, weave backend"),
    "Collector": ("otel-rollout → Collector", "OTel SDK, OTLP"),
}
"""Server → its tracers; ours first, then the tracers it is compared with."""
TRAJECTORIES = {
    "MLflow server": 400,
    "Weave's server": 400,
    "Weave's server, storing nothing": 1000,
    "Collector": 1000,
}
"""Trajectories per round and tracer; a round takes seconds."""
_LOOK_SECONDS = 0.1


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all servers; with ``--quick`` MLflow's and the Collector only."""
    rounds, part = (1, 4) if quick else (2, 1)
    servers = {}
    for server, start in SERVERS.items():
        if quick and "Weave" in server:
            continue
        with running(start) as (target, place):
            servers[server] = _in_turns(target, FIELD[server], place, TRAJECTORIES[server] // part, rounds)
    return {"rounds": rounds, "servers": servers}


def _in_turns(
    target: Target, field: tuple[str, ...], place: Path, trajectories: int, rounds: int
) -> dict[str, Any]:
    order = random.Random(0)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in field}
    with ExitStack() as stack:
        processes = {}
        for name in field:
            variables = tracers.environment(name, target.variables(target.port), place / name)
            process = tracers.Process(name, __spec__.name, [name, str(trajectories)], variables)
            processes[name] = stack.enter_context(process)
        for _ in range(rounds):
            for name in order.sample(field, len(field)):
                samples[name].append(_delivered(processes[name], target, str(place / name)))
    return {name: _summary(taken) for name, taken in samples.items()}


def _delivered(process: tracers.Process, target: Target, spool: str) -> dict[str, float]:
    process.ask("connect")
    there, outside = target.spans(), forwarders_cpu_seconds(spool)
    with _Watch(target) as watch:
        found = process.ask("burst")
    outside = forwarders_cpu_seconds(spool) - outside
    arrived = target.spans() - there
    return {
        "spans": found["spans"],
        "lost": found["spans"] - arrived,
        "seconds": watch.seconds,
        "spans_per_second": arrived / watch.seconds,
        "operation_us": found["operation_us"],
        "cpu_us_inside": found["cpu_seconds"] / found["spans"] * 1e6,
        "cpu_us_outside": outside / found["spans"] * 1e6,
    }


class _Watch:
    """Return the seconds until a server has the last span, by its own fast count.

    Tracers cannot be asked: some check only now and then whether they have finished.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seconds = 0.0

    def __enter__(self) -> _Watch:
        self._began, self._count = time.monotonic(), self._target.arrived()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(_LOOK_SECONDS)
            count = self._target.arrived()
            if count != self._count:
                self._count, self.seconds = count, time.monotonic() - self._began


def start(name: str, trajectories: int) -> Mapping[str, Callable[[], Any]]:
    """Serve questions in a separate process."""
    tracing = TRACERS[name].start()

    def connect() -> None:
        asyncio.run(Rollout(tracing, 0).burst(1))
        tracing.flush()

    def burst() -> dict[str, float]:
        rollout = Rollout(tracing, 0)
        cpu = time.process_time()
        asyncio.run(rollout.burst(trajectories))
        tracing.flush()
        return {
            "cpu_seconds": time.process_time() - cpu,
            "operation_us": mean(rollout.taken),
            "spans": rollout.trajectories * SPANS,
        }

    return {"connect": connect, "burst": burst}


def forwarders(spool: str) -> list[int]:
    """Return the processes that deliver a spool."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "otel_rollout.forwarder" in command and any(part.startswith(spool) for part in command):
            found.append(int(process.name))
    return found


def forwarders_cpu_seconds(spool: str) -> float:
    """Return the CPU seconds that the forwarders of a spool have used."""
    return sum(_cpu_seconds(process) for process in forwarders(spool))


def _cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _summary(samples: list[dict[str, float]]) -> dict[str, Any]:
    middle = {name: round(median(sample[name] for sample in samples), 1) for name in samples[0]}
    return {**middle, "lost": sum(sample["lost"] for sample in samples), "samples": samples}


def main() -> None:
    """Measure, or run as one of the measured processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    parser.add_argument("tracer", nargs="?", choices=TRACERS, help=argparse.SUPPRESS)
    parser.add_argument("trajectories", nargs="?", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tracer:
        tracers.answer(partial(start, given.tracer, given.trajectories))
    else:
        print(json.dumps(run(given.quick), indent=1))


if __name__ == "__main__":
    main()
