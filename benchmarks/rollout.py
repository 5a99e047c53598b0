"""Run a traced rollout in its own process, for other parts of the benchmark.

    python -m benchmarks.rollout TRACER SECONDS    # a fixed number of trajectories per second

Prints a line of JSON for each second, and one for the whole at the end. If a tracer blocks its caller, the
lines show until when it worked.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.tracers import PAYLOAD, TRACERS, TURNS, Tracing

AT_ONCE = 8
"""Trajectories at once when they follow each other without pause."""
PER_SECOND = 10
_BETWEEN_TURNS = 0.05
"""Seconds between operations of a paced trajectory."""


class Rollout:
    """Runs trajectories and times their operations."""

    def __init__(self, tracing: Tracing, pause: float) -> None:
        self._tracing = tracing
        self._pause = pause
        self.taken: list[float] = []
        self.trajectories = 0

    async def trajectory(self, sample: int) -> None:
        """Run one trajectory; its pauses are not part of the operations' times."""
        with self._tracing.trajectory(1, sample):
            for _ in range(TURNS):
                began = time.perf_counter()
                await self._tracing.generate(PAYLOAD)
                self.taken.append((time.perf_counter() - began) * 1e6)
                await asyncio.sleep(self._pause)
        self.trajectories += 1

    async def burst(self, trajectories: int) -> None:
        """Run trajectories as fast as possible."""
        samples = iter(range(trajectories))

        async def one_after_the_other() -> None:
            for sample in samples:
                await self.trajectory(sample)

        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))

    async def paced(self, seconds: float) -> None:
        """Run a fixed number of trajectories per second; start none after the end."""
        began = time.perf_counter()
        running: set[asyncio.Task[None]] = set()
        for sample in itertools.count():
            wait = began + sample / PER_SECOND - time.perf_counter()
            await asyncio.sleep(max(wait, 0))
            if time.perf_counter() - began > seconds:
                break
            task = asyncio.create_task(self.trajectory(sample))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)


async def report_each_second(rollout: Rollout, began: float) -> None:
    """Return the figures of the past second."""
    seen = 0
    while True:
        await asyncio.sleep(1)
        taken = rollout.taken[seen:]
        seen += len(taken)
        said: dict[str, Any] = {
            "at": round(time.perf_counter() - began, 2),
            "operations": len(taken),
            "trajectories": rollout.trajectories,
            "mib": memory_mib(),
        }
        if len(taken) > 1:
            cuts = quantiles(taken, n=100, method="inclusive")
            said |= {"p50_us": round(cuts[49], 1), "p99_us": round(cuts[98], 1), "max_us": round(max(taken))}
        print(json.dumps(said), flush=True)


def memory_mib() -> float:
    """Return the memory of this process."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


async def run(tracing: Tracing, seconds: float) -> dict[str, Any]:
    """Run the rollout after one trajectory that opens connections."""
    rollout = Rollout(tracing, _BETWEEN_TURNS)
    await rollout.trajectory(-1)
    tracing.flush()
    rollout.taken.clear()
    began = time.perf_counter()
    reports = asyncio.create_task(report_each_second(rollout, began))
    await rollout.paced(seconds)
    reports.cancel()
    ended = time.perf_counter()
    tracing.finish()
    return {
        "finish_seconds": time.perf_counter() - ended,
        "trajectories": rollout.trajectories,
        "mib": memory_mib(),
    }


def main() -> None:
    """Run as that process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("tracer", choices=TRACERS)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    answers, sys.stdout = sys.stdout, sys.stderr  # clients print a greeting
    tracing = TRACERS[given.tracer].start()
    sys.stdout = answers
    print(json.dumps(asyncio.run(run(tracing, given.seconds))), flush=True)


if __name__ == "__main__":
    main()
