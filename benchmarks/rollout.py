"""A rollout, traced by somebody: what other parts of the benchmark run in a process of its own.

    python -m benchmarks.rollout TRACER SECONDS    # so many trajectories per second, for so long

Prints a line of JSON for each second, as it goes, and one about the whole at the end: a tracer that does not
let go of its caller has said until when it went well.
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
"""Trajectories, where they follow each other as fast as they can."""
PER_SECOND = 10
_BETWEEN_TURNS = 0.05
"""Seconds of a trajectory that is paced, between its operations."""


class Rollout:
    """Trajectories, and what their operations took."""

    def __init__(self, tracing: Tracing, pause: float) -> None:
        self._tracing = tracing
        self._pause = pause
        self.taken: list[float] = []
        self.trajectories = 0

    async def trajectory(self, sample: int) -> None:
        """One of them; the pauses are no part of what its operations take."""
        with self._tracing.trajectory(1, sample):
            for _ in range(TURNS):
                began = time.perf_counter()
                await self._tracing.generate(PAYLOAD)
                self.taken.append((time.perf_counter() - began) * 1e6)
                await asyncio.sleep(self._pause)
        self.trajectories += 1

    async def burst(self, trajectories: int) -> None:
        """As fast as it goes."""
        samples = iter(range(trajectories))

        async def one_after_the_other() -> None:
            for sample in samples:
                await self.trajectory(sample)

        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))

    async def paced(self, seconds: float) -> None:
        """So many per second; none is begun when it is over."""
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
    """What there is to say about the second that has passed."""
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
    """What this process has in memory."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


async def run(tracing: Tracing, seconds: float) -> dict[str, Any]:
    """All of it, after a trajectory for connections and the like."""
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
    """Be that process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("tracer", choices=TRACERS)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    answers, sys.stdout = sys.stdout, sys.stderr  # clients greet
    tracing = TRACERS[given.tracer].start()
    sys.stdout = answers
    print(json.dumps(asyncio.run(run(tracing, given.seconds))), flush=True)


if __name__ == "__main__":
    main()
