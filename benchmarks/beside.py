"""Measure what an operation costs beside other observability libraries.

    python -m benchmarks.beside [LIBRARY …] [--rounds N]

Runs in an environment with the libraries (``.venv-foreign``). For each library and each way of
``application_provider``, a process measures operations alone, then starts the library as an application does,
and measures again. So both figures are of one process. µs of the caller's CPU per operation, in a trajectory
of nine; median of the processes. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from benchmarks.tracers import PAYLOAD, ROOT, TURNS, generate

LIBRARIES = ("sentry", "sentry-otlp", "datadog", "logfire", "weave")
WAYS = ("auto", "share")
_TRAJECTORIES = 150
"""Trajectories per measurement."""
_WARM_UP = 20
_PROCESS_SECONDS = 300.0


def measure(library: str) -> dict[str, float]:
    """Measure in this process, before and after the library is started."""
    import otel_rollout
    from tests.foreign.libraries import LIBRARIES as STARTS

    otel_rollout.configure({"weave": {}} if library == "weave" else {"spool": {}}, project_name="beside")
    operation = otel_rollout.rollout_trace_op(generate)

    async def cpu_us(trajectories: int) -> float:
        taken = 0
        for number in range(trajectories):
            with otel_rollout.rollout_trace_attr(step=1, sample_index=number, rollout_n=0):
                began = time.thread_time_ns()
                for _ in range(TURNS):
                    await operation(PAYLOAD)
                taken += time.thread_time_ns() - began
        return taken / trajectories / TURNS / 1000

    async def plain_us() -> float:
        began = time.thread_time_ns()
        for _ in range(_TRAJECTORIES * TURNS):
            await generate(PAYLOAD)
        return (time.thread_time_ns() - began) / _TRAJECTORIES / TURNS / 1000

    def over_plain() -> float:
        asyncio.run(cpu_us(_WARM_UP))
        time.sleep(0.5)  # weave's entity is asked for; the flusher writes what is left
        return asyncio.run(cpu_us(_TRAJECTORIES)) - asyncio.run(plain_us())

    alone = over_plain()
    STARTS[library]()
    return {"alone": alone, "beside": over_plain()}


def run(libraries: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Measure libraries in turns, each in a process of its own."""
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as spool:
        for _ in range(rounds):
            for library in libraries:
                for way in WAYS:
                    variables = {
                        "OTEL_ROLLOUT_SPOOL_DIR": spool,
                        "OTEL_ROLLOUT_APPLICATION_PROVIDER": way,
                        "OTEL_ROLLOUT_FORWARDER_LINGER": "0",
                        "WANDB_ENTITY": "local-team",
                    }
                    ran = subprocess.run(
                        [sys.executable, "-m", __spec__.name, "--measure", library],
                        env={**os.environ, **variables},
                        cwd=ROOT,
                        capture_output=True,
                        text=True,
                        check=True,
                        timeout=_PROCESS_SECONDS,
                    )
                    figures = json.loads(ran.stdout.splitlines()[-1])
                    found.setdefault(f"{library}, {way}", []).append(figures)
    return {name: _summary(figures) for name, figures in found.items()}


def _summary(figures: list[dict[str, float]]) -> dict[str, float]:
    return {
        "alone_us": round(median(f["alone"] for f in figures), 1),
        "beside_us": round(median(f["beside"] for f in figures), 1),
        "ratio": round(median(f["beside"] / f["alone"] for f in figures), 2),
    }


def main() -> None:
    """Measure, or run as one of the measured processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("libraries", nargs="*", choices=[*LIBRARIES, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", choices=LIBRARIES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)), flush=True)
        os._exit(0)  # the backend's threads serve for ever
    print(json.dumps(run(given.libraries or list(LIBRARIES), given.rounds), indent=1))


if __name__ == "__main__":
    main()
