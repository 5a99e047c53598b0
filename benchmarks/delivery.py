"""From the caller to the server, under load: how many spans arrive per second, and what that takes where.

    python -m benchmarks.delivery [--quick]

Rollouts of one tracer each, in processes of their own (``benchmarks.rollout``), send the same trajectories of
ten spans, 2 KB in and 2 KB out, to the same real server in turns. Counted is what the server has
when the tracer has had all the time it asks for; timed until the tracer says it has delivered.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import tracers
from benchmarks.targets import TARGETS, WEAVE_THAT_KEEPS_NOTHING, Target, running
from benchmarks.tracers import SPANS

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
"""Who sends where; ours first, then what it is compared with."""


def run(quick: bool = False) -> dict[str, Any]:
    """All servers; in haste MLflow's, and the Collector."""
    trajectories, rounds = (30, 1) if quick else (200, 3)
    servers = {}
    for server, start in SERVERS.items():
        if quick and "Weave" in server:
            continue
        with running(start) as (target, place):
            servers[server] = _in_turns(target, FIELD[server], place, trajectories, rounds)
    return {"spans": (trajectories + 1) * SPANS, "rounds": rounds, "servers": servers}


def _in_turns(
    target: Target, field: tuple[str, ...], place: Path, trajectories: int, rounds: int
) -> dict[str, Any]:
    order = random.Random(0)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in field}
    for number in range(rounds):
        for name in order.sample(field, len(field)):
            spool = place / f"spool-{number}-{len(samples[name])}"
            samples[name].append(_deliver(name, target, spool, trajectories))
    return {name: _summary(taken) for name, taken in samples.items()}


def _deliver(name: str, target: Target, spool: Path, trajectories: int) -> dict[str, float]:
    before = target.spans()
    variables = tracers.environment(name, target.variables(target.port), spool)
    variables["OTEL_ROLLOUT_FORWARDER_LINGER"] = "60"  # until it was asked what it took
    found = tracers.run(name, "benchmarks.rollout", [name, "--trajectories", str(trajectories)], variables)
    outside = 0.0
    for process in forwarders(str(spool)):
        outside += _cpu_seconds(process)
        os.kill(process, signal.SIGTERM)
    sent = found["trajectories"] * SPANS
    arrived = target.spans() - before
    return {
        "spans": sent,
        "lost": sent - arrived,
        "seconds": found["seconds"],
        # The first trajectory, which opens connections, is not timed.
        "spans_per_second": (arrived - SPANS) / found["seconds"],
        "operation_us": found["operation_us"],
        "cpu_us_inside": found["cpu_seconds"] / sent * 1e6,
        "cpu_us_outside": outside / sent * 1e6,
    }


def forwarders(spool: str) -> list[int]:
    """The processes that deliver what is in a spool."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "otel_rollout.deliver" in command and any(part.startswith(spool) for part in command):
            found.append(int(process.name))
    return found


def _cpu_seconds(process: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _summary(samples: list[dict[str, float]]) -> dict[str, Any]:
    middle = {name: round(median(sample[name] for sample in samples), 1) for name in samples[0]}
    return {**middle, "lost": sum(sample["lost"] for sample in samples), "samples": samples}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    print(json.dumps(run(parser.parse_args().quick), indent=1))
