"""Measure the caller's cost of an operation under every tracer.

    python -m benchmarks.peers [--quick]

Each tracer has a process, in an environment that satisfies its requirements, and sends to a real server on
this machine. In each round, all tracers run equal trajectories in turn, in a new order: the plain call, a
span of the bare SDK without content, and their own. A process delivers its backlog before the next one's
turn. ``cpu``: of the thread in the operations. ``trajectory``: of the thread in whole trajectories, including
their root spans. ``process``: of all threads, until they have delivered; ours leave delivery to another
process, which ``benchmarks.delivery`` measures. µs per operation. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from statistics import median, quantiles
from typing import Any

from benchmarks import tracers
from benchmarks.hot_path import busy_thread, sdk_span
from benchmarks.tracers import PAYLOAD, TRACERS, TURNS, Tracing, generate, nothing

OURS = "otel-rollout → MLflow"
FIELD = (
    OURS,
    "otel-rollout, after weave.init",
    "OTel SDK, OTLP",
    "logfire.instrument",
    "mlflow.trace",
    "verl, mlflow backend",
    "weave.op",
    "verl, weave backend",
)
PLAIN, SDK, OWN = "plain call", "OTel SDK span, no content", "own"
_TRAJECTORIES = {PLAIN: 300, SDK: 60, OWN: 20}
"""Trajectories per round."""
_SETTLE_SECONDS = 0.1
"""Seconds in which our flusher writes what the operations left in the journal."""
_FIGURES = ("cpu", "trajectory", "process")


class Contestant:
    """One way to trace trajectories.

    Args:
        tracing: the tracer.
        trajectories: number per round.
        settle: returns when the threads of this process have finished their work.
    """

    def __init__(self, tracing: Tracing, trajectories: int, settle: Callable[[], object]) -> None:
        self._tracing = tracing
        self._trajectories = trajectories
        self._settle = settle
        self.samples: dict[str, list[float]] = {figure: [] for figure in _FIGURES}
        self.contended: list[float] = []

    async def round(self) -> None:
        """Measure a round in a hot loop."""
        generate, operations = self._tracing.generate, 0
        process, thread = time.process_time_ns(), time.thread_time_ns()
        for sample in range(self._trajectories):
            with self._tracing.trajectory(1, sample):
                began = time.thread_time_ns()
                for _ in range(TURNS):
                    await generate(PAYLOAD)
                operations += time.thread_time_ns() - began
        whole = time.thread_time_ns() - thread
        self._settle()
        for figure, taken in zip(
            _FIGURES, (operations, whole, time.process_time_ns() - process), strict=True
        ):
            self.samples[figure].append(taken / self._trajectories / TURNS / 1000)
        self._tracing.flush()

    async def contended_round(self) -> None:
        """Measure single operations while another thread computes; wall time in µs."""
        with busy_thread():
            for sample in range(self._trajectories):
                with self._tracing.trajectory(1, sample):
                    for _ in range(TURNS):
                        wall = time.perf_counter_ns()
                        await self._tracing.generate(PAYLOAD)
                        self.contended.append((time.perf_counter_ns() - wall) / 1000)
        self._settle()
        self._tracing.flush()

    def forget(self) -> None:
        """Discard the measurements so far."""
        for samples in self.samples.values():
            samples.clear()

    def _over(self, plain: Contestant, figure: str) -> list[float]:
        pairs = zip(self.samples[figure], plain.samples[figure], strict=True)
        return [cost - without for cost, without in pairs]

    def result(self, plain: Contestant, sdk: Contestant) -> dict[str, Any]:
        """Return medians and quartiles over the plain call of the same round.

        Shares are of the caller's CPU in an SDK span of the same round, when the machine had about the same
        speed.
        """
        over = {figure: self._over(plain, figure) for figure in _FIGURES}
        sdk_spans = sdk._over(plain, "cpu")
        shares = {
            figure: median(cost / sdk_span for cost, sdk_span in zip(costs, sdk_spans, strict=True))
            for figure, costs in over.items()
        }
        contended = quantiles(self.contended, n=100)
        return {
            **{f"{figure}_us": round(median(costs), 2) for figure, costs in over.items()},
            "cpu_us_quartiles": [round(cut, 2) for cut in quantiles(over["cpu"], n=4)[::2]],
            "beside_busy_thread_wall_us_p50": round(contended[49], 2),
            "beside_busy_thread_wall_us_p99": round(contended[98], 2),
            "share_of_sdk_span": round(shares["cpu"], 3),
            "process_share_of_sdk_span": round(shares["process"], 3),
            "samples": {figure: [round(cost, 3) for cost in costs] for figure, costs in self.samples.items()},
        }


def start(name: str) -> Mapping[str, Callable[[], Any]]:
    """Serve questions in a separate process."""
    order = random.Random(0)
    traced, root = sdk_span(ExitStack())
    tracings = {
        PLAIN: Tracing(generate, lambda step, sample: nullcontext(), nothing, nothing),
        SDK: Tracing(traced, lambda step, sample: root(), nothing, nothing),
        OWN: TRACERS[name].start(),
    }
    field = {of: Contestant(tracing, _TRAJECTORIES[of], nothing) for of, tracing in tracings.items()}
    own, number = tracings[OWN], _TRAJECTORIES[OWN]
    field[OWN] = (
        Contestant(own, number, partial(time.sleep, _SETTLE_SECONDS))
        if name.startswith("otel-rollout")
        else Contestant(own._replace(flush=nothing), number, own.flush)
    )

    def all_of_them(measure: Callable[[Contestant], Any]) -> None:
        for contestant in order.sample(list(field.values()), len(field)):
            asyncio.run(measure(contestant))

    def forget() -> None:
        for contestant in field.values():
            contestant.forget()

    def result() -> dict[str, Any]:
        costs = {of: contestant.result(field[PLAIN], field[SDK]) for of, contestant in field.items()}
        return {**costs[OWN], "versions": TRACERS[name].versions(), "beside": costs}

    return {
        "round": partial(all_of_them, Contestant.round),
        "contended": partial(all_of_them, Contestant.contended_round),
        "forget": forget,
        "result": result,
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all tracers in turns.

    ``--quick`` omits verl, which takes long to import.
    """
    from benchmarks.targets import TARGETS, running

    rounds = 3 if quick else 10
    names = [name for name in FIELD if not quick or "verl" not in TRACERS[name].packages]
    order = random.Random(0)
    with ExitStack() as stack:
        servers = {target: stack.enter_context(running(begin)) for target, begin in TARGETS.items()}
        processes = {}
        for name in names:
            server, place = servers[TRACERS[name].target]
            variables = tracers.environment(name, server.variables(server.port), place / name)
            process = tracers.Process(name, __spec__.name, [name], variables)
            processes[name] = stack.enter_context(process)
        questions = ["round", "forget", *["round"] * rounds, "contended"]  # the first round warms up
        for question in questions:
            for name in order.sample(names, len(names)):
                processes[name].ask(question)
        found = {name: process.ask("result") for name, process in processes.items()}
    return {"rounds": rounds, "tracers": found}


def main() -> None:
    """Measure, or run as one of the measured processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    parser.add_argument("tracer", nargs="?", choices=FIELD, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tracer:
        tracers.answer(partial(start, given.tracer))
    else:
        print(json.dumps(run(given.quick), indent=1))


if __name__ == "__main__":
    main()
