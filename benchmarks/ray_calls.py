"""Measure what propagation costs per Ray call, and what Ray's own tracing costs.

    python -m benchmarks.ray_calls [--quick]

Plain calls, instrumented calls outside a trajectory ("idle") and inside one ("active") take turns in a new
order each round, in one process, with one actor. Ray's own tracing needs a separate job, with its own plain
calls for comparison. Prints JSON; µs, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

Around = Callable[[], AbstractContextManager[Any]]
CALLS = 25
"""Calls of each kind per round."""


class Samples:
    """Times of one variant's calls: a median per round."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[float]] = {}

    def take(self, targets: dict[str, Callable[[int], Any]]) -> None:
        """Measure a round: each ``.remote()`` alone, and method calls with their result."""
        import ray

        for name, remote in targets.items():
            walls, cpus, results = [], [], []
            for index in range(CALLS):
                cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
                results.append(remote(index))
                walls.append((time.perf_counter_ns() - wall) / 1e3)
                cpus.append((time.thread_time_ns() - cpu) / 1e3)
            ray.get(results)
            self._keep(f"submit_{name}", walls)
            self._keep(f"submit_{name}_cpu", cpus)
        round_trips = []
        for index in range(CALLS):
            wall = time.perf_counter_ns()
            ray.get(targets["method"](index))
            round_trips.append((time.perf_counter_ns() - wall) / 1e3)
        self._keep("round_trip", round_trips)

    def _keep(self, name: str, samples: list[float]) -> None:
        self.rounds.setdefault(name, []).append(median(samples))

    def medians(self) -> dict[str, float]:
        """Return the median of all rounds."""
        return {name: round(median(kept), 1) for name, kept in self.rounds.items()}

    def over(self, other: Samples) -> dict[str, float]:
        """Return the median difference from another variant in the same round."""
        return {
            name: round(median(a - b for a, b in zip(kept, other.rounds[name], strict=True)), 1)
            for name, kept in self.rounds.items()
        }


def targets() -> dict[str, Callable[[int], Any]]:
    """Create an actor with a method, and a task; both have run once."""
    import ray

    class Actor:
        def method(self, value: int) -> int:
            return value

    def task(value: int) -> int:
        return value

    actor: Any = ray.remote(Actor).remote()
    found = {"method": actor.method.remote, "task": ray.remote(task).remote}
    ray.get([remote(index) for remote in found.values() for index in range(100)])
    return found


def start_ray(**arguments: Any) -> None:
    """Start a cluster for this process."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", **arguments)


def take_turns(rounds: int, variants: dict[str, tuple[Callable[[], None], Around]]) -> dict[str, Any]:
    """Run variants in turns; each has a set-up and a context manager."""
    called = targets()
    samples = {name: Samples() for name in variants}
    for _ in range(rounds):
        for name in random.sample(list(variants), len(variants)):
            set_up, around = variants[name]
            set_up()
            with around():
                samples[name].take(called)
    found: dict[str, Any] = {name: taken.medians() for name, taken in samples.items()}
    if "plain" in samples:
        found["over_plain"] = {
            name: taken.over(samples["plain"]) for name, taken in samples.items() if name != "plain"
        }
    return found


def ours(rounds: int) -> dict[str, Any]:
    """Measure plain, idle and active calls in one instrumented job."""
    from otel_rollout import rollout_trace_attr
    from otel_rollout.record.propagation.instrument import instrument, uninstrument
    from otel_rollout.record.runs import membership

    with tempfile.TemporaryDirectory() as spool:
        os.environ |= {"OTEL_TRACES_EXPORTER": "console", "OTEL_ROLLOUT_SPOOL_DIR": spool}
        membership.decide()
        instrument()
        start_ray()

        def trajectory() -> Any:
            return rollout_trace_attr(sample_index=1, step=2, rollout_n=3)

        found = take_turns(
            rounds,
            {
                "plain": (uninstrument, nullcontext),
                "idle": (instrument, nullcontext),
                "active": (instrument, trajectory),
            },
        )
        return {**found, "receive": receiving(trajectory)}


def receiving(trajectory: Around) -> float:
    """Measure what the receiver adds to a function that does nothing."""
    import orjson

    from otel_rollout.record.propagation import carrier
    from otel_rollout.record.propagation.ray_incoming_calls import receiving as wrapped
    from otel_rollout.record.propagation.ray_outgoing_calls import ARGUMENT

    def nothing() -> None:
        pass

    with trajectory():
        encoded = orjson.dumps(carrier.inject())
    receive = wrapped(nothing)
    costs = []
    for _ in range(5000):
        start = time.perf_counter_ns()
        nothing()
        middle = time.perf_counter_ns()
        receive(**{ARGUMENT: encoded})
        costs.append((time.perf_counter_ns() - middle - (middle - start)) / 1e3)
    return round(median(costs), 1)


def rays_own_tracing(rounds: int) -> dict[str, Any]:
    """Measure Ray's tracing with and without an active span.

    A job cannot switch it off.
    """
    from opentelemetry import trace

    start_ray(_tracing_startup_hook="ray.util.tracing.setup_local_tmp_tracing:setup_tracing")
    tracer = trace.get_tracer("benchmark")

    def span() -> Any:
        return tracer.start_as_current_span("root")

    return take_turns(rounds, {"idle": (lambda: None, nullcontext), "active": (lambda: None, span)})


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything, each job in a separate process."""
    return {
        part: json.loads(
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.ray_calls",
                    "--part",
                    part,
                    *(["--quick"] if quick else []),
                ],
                stdout=subprocess.PIPE,
                check=True,
            ).stdout.splitlines()[-1]
        )
        for part in ("ours", "rays_own_tracing")
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_calls", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    parser.add_argument("--part", choices=["ours", "rays_own_tracing"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is None:
        print(json.dumps(run(given.quick), indent=1))
    else:
        print(json.dumps(globals()[given.part](20 if given.quick else 100)), flush=True)
        import ray

        ray.shutdown()


if __name__ == "__main__":
    main()
