"""Measure a rollout step: 512 trajectories at once as tasks of one Ray actor.

    python -m benchmarks.rollout_step [--quick]

Traced and untraced steps alternate. Nine operations of a trajectory wait for a simulated inference server,
equally long in a traced step and in the untraced step next to it. Meanwhile, a task measures how late the
event loop runs it. Each tracer has its own process, Ray and actor, and sends to a real server. Then single
operations of ours with values of up to 1 MiB, including odd ones, show how long one operation holds the event
loop. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import tracers
from benchmarks.rollout import memory_mib
from benchmarks.tracers import PAYLOAD, TRACERS, TURNS, Tracing

FIELD = (
    "otel-rollout → MLflow",
    "verl, mlflow backend",
    "otel-rollout → Weave",
    "verl, weave backend",
    "OTel SDK, OTLP",
)
TRAJECTORIES = 512
_WARMING = 16
"""Trajectories of the first step, which is not measured."""
_PROBE_SECONDS = 0.01
_SIZES = {"2 KB": 2_000, "64 KB": 64_000, "1 MiB": 1_048_000}
"""Bytes of JSON of the largest value; the text around it must fit into 1 MiB too."""


class Actor:
    """Actor in Ray's worker; it starts the tracer, as verl's agent loop worker does."""

    def __init__(self, name: str, inference_seconds: float) -> None:
        logging.disable(logging.ERROR)
        self._inference = inference_seconds
        self._traced = tracers.TRACERS[name].start()
        self._untraced = tracers.TRACERS[tracers.UNTRACED].start()

    async def step(self, number: int, traced: bool, trajectories: int = TRAJECTORIES) -> dict[str, Any]:
        """Run one step."""
        tracing = self._traced if traced else self._untraced
        late: list[float] = []
        probe = asyncio.create_task(_probe(late))
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*(self._trajectory(tracing, number, sample) for sample in range(trajectories)))
        seconds = time.perf_counter() - began
        used = time.process_time() - cpu
        probe.cancel()
        with suppress(asyncio.CancelledError):
            await probe
        cuts = quantiles(late, n=100, method="inclusive")
        lags = {"lag_ms_p50": cuts[49] * 1e3, "lag_ms_p99": cuts[98] * 1e3, "lag_ms_max": max(late) * 1e3}
        return {"seconds": seconds, "cpu_seconds": used, **lags, "mib": memory_mib()}

    async def _trajectory(self, tracing: Tracing, step: int, sample: int) -> None:
        waits = random.Random(sample)  # equal random numbers in each step
        with tracing.trajectory(step, sample):
            for _ in range(TURNS):
                await tracing.generate(PAYLOAD, self._inference * waits.uniform(0.5, 1.5))

    def flush(self) -> None:
        """Deliver, so that the next step starts without a backlog."""
        self._traced.flush()


async def _probe(late: list[float]) -> None:
    """Run a task at fixed intervals; return by how many seconds each run is late."""
    while True:
        due = time.perf_counter() + _PROBE_SECONDS
        await asyncio.sleep(_PROBE_SECONDS)
        late.append(time.perf_counter() - due)


def measure(name: str, pairs: int, inference_seconds: float) -> dict[str, Any]:
    """In a separate process: run steps in turns, untraced and traced."""
    import ray

    ray.init("local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    actor: Any = ray.remote(Actor).remote(name, inference_seconds)
    for traced in (False, True):  # warm-up
        ray.get(actor.step.remote(0, traced, _WARMING))
    taken: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for pair in range(pairs):
        for traced in random.Random(pair).sample((False, True), 2):
            ray.get(actor.flush.remote())
            taken[traced].append(ray.get(actor.step.remote(pair + 1, traced)))
    ray.get(actor.flush.remote())
    ray.shutdown()
    return {
        "slower_by": median(
            traced["seconds"] / untraced["seconds"] - 1
            for traced, untraced in zip(taken[True], taken[False], strict=True)
        ),
        "untraced": _middle(taken[False]),
        "traced": _middle(taken[True]),
        "steps": {"untraced": taken[False], "traced": taken[True]},
    }


def stalls(quick: bool) -> dict[str, Any]:
    """In a separate process: measure single operations of ours with growing values.

    The operations are 2 ms apart. The thread's CPU is our share of the event loop; wall time includes other
    work of the machine.
    """
    tracing = TRACERS["otel-rollout → MLflow"].start()
    found = {}
    for size, length in _SIZES.items():
        for kind, value in {
            "text": "The lift carries at most 640 kilograms. " * (length // 40),
            "CJK": "电梯最多可载六百四十公斤。" * (length // 39),
            "token ids": [128_000 + index % 7 for index in range(length // 8)],
        }.items():
            found[f"{size}, {kind}"] = asyncio.run(_single(tracing, {"value": value}, 50 if quick else 300))
    for kind, value in _odd().items():
        found[f"1 MiB, {kind}"] = asyncio.run(_single(tracing, {"value": value}, 50 if quick else 300))
    tracing.finish()
    return found


def _odd() -> dict[str, Any]:
    """Return values of about 1 MiB that orjson refuses."""
    import numpy

    return {
        "plain objects": [object() for _ in range(60_000)],
        "sets": [{number, number + 1} for number in range(70_000)],
        "numpy scalars": [numpy.float32(number) for number in range(130_000)],
        "dict with tuples as keys": {(number, number + 1): number for number in range(43_000)},
        "dicts with numbers as keys": [{number: number} for number in range(65_000)],
        "messages, one with a number as key": [
            *({"role": "user", "content": "How many are there? " * 10} for _ in range(4300)),
            {1: 2},
        ],
    }


async def _single(tracing: Tracing, payload: dict[str, Any], times: int) -> dict[str, float]:
    walls, cpus = [], []
    with tracing.trajectory(1, 0):
        for _ in range(times):
            wall, cpu = time.perf_counter(), time.thread_time()
            await tracing.generate(payload)
            cpus.append((time.thread_time() - cpu) * 1e3)
            walls.append((time.perf_counter() - wall) * 1e3)
            await asyncio.sleep(0.002)
    return {
        "cpu_ms_p50": median(cpus),
        "cpu_ms_max": max(cpus),
        "wall_ms_p50": median(walls),
        "wall_ms_p99": quantiles(walls, n=100, method="inclusive")[98],
        "wall_ms_max": max(walls),
    }


def _middle(steps: list[dict[str, Any]]) -> dict[str, float]:
    return {name: round(median(step[name] for step in steps), 3) for name in steps[0]}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all tracers in turn; with ``--quick`` only ours.

    Ours runs more steps, because its difference is the smallest.
    """
    from benchmarks.targets import TARGETS, running

    pairs, of_others, inference = (1, 0, 0.2) if quick else (4, 1, 0.4)  # others deliver a step for a minute
    found = {}
    for name in FIELD[:1] if quick else FIELD:
        with running(TARGETS[TRACERS[name].target]) as (target, place):
            variables = tracers.environment(name, target.variables(target.port), place / "spool")
            number = pairs if name == FIELD[0] else of_others
            found[name] = tracers.run(name, __spec__.name, [name, str(number), str(inference)], variables)
    with tempfile.TemporaryDirectory(prefix="otel-rollout-bench-", ignore_cleanup_errors=True) as spool:
        variables = tracers.environment(FIELD[0], {}, Path(spool))
        variables["OTEL_TRACES_EXPORTER"] = "spool"  # delivering gigabytes would take minutes
        stalled = tracers.run(FIELD[0], __spec__.name, ["stalls", str(int(quick)), "0"], variables)
    return {"pairs": pairs, "inference_seconds": inference, "tracers": found, "stalls": stalled}


def main() -> None:
    """Measure, or run as one of the measured processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout_step", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps, for a first impression")
    parser.add_argument("tracer", nargs="?", choices=(*FIELD, "stalls"), help=argparse.SUPPRESS)
    parser.add_argument("amount", nargs="?", type=int, help=argparse.SUPPRESS)
    parser.add_argument("inference", nargs="?", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tracer is None:
        print(json.dumps(run(given.quick), indent=1))
        return
    answers, sys.stdout = sys.stdout, sys.stderr  # clients print a greeting
    measured = (
        stalls(bool(given.amount))
        if given.tracer == "stalls"
        else measure(given.tracer, given.amount, given.inference)
    )
    print(json.dumps(measured), file=answers, flush=True)


if __name__ == "__main__":
    main()
