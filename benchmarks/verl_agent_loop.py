"""``make bench-verl``: a trajectory of verl's agent loop, untraced, under its mlflow backend, under ours.

Each contestant has a process of its own with a real ``AgentLoopWorker``, tool agent and tool; only the engine
and the reward are objects of the tests that answer at once. Both tracers write to a SQLite file. What arrived
is read back from it after each contestant has had its time to finish: verl's by flushing its queue, which a
job that ends by ``ray.kill`` does not do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / "verl.json"
CONTESTANTS = {
    "untraced": {"VERL_USE_EXTERNAL_PLUGINS": "none"},
    "verl's mlflow backend": {"VERL_USE_EXTERNAL_PLUGINS": "none"},
    "otel-rollout": {"OTEL_TRACES_EXPORTER": "mlflow"},
}
BATCH = 8
"""Trajectories at once, as a worker runs its part of a batch."""


def main() -> None:
    """Run every contestant and print what it cost; or be one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--contestant", choices=CONTESTANTS)
    parser.add_argument("--batches", type=int, default=40)
    chosen = parser.parse_args()
    if chosen.contestant:
        print(json.dumps(asyncio.run(_run(chosen.contestant, chosen.batches))))
        return
    batches = 5 if chosen.quick else chosen.batches
    results = {name: _measured(name, batches) for name in CONTESTANTS}
    RESULTS.write_text(json.dumps({"batches": batches, "batch": BATCH, **results}, indent=1) + "\n")
    Console().print(_table(results))


def _measured(name: str, batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ,
            **CONTESTANTS[name],
            "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OTEL_ROLLOUT_SPOOL_DIR": f"{directory}/spool",
            "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "120",
        }
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--contestant", name]
        ran = subprocess.run(
            [*command, "--batches", str(batches)],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return found


async def _run(name: str, batches: int) -> dict[str, Any]:
    from tests.verl import local
    from tests.verl.configuration import configuration
    from tests.verl.script import rows

    backend = "mlflow" if name == "verl's mlflow backend" else "null"
    with tempfile.TemporaryDirectory() as directory:
        config = configuration(Path(directory), [f"actor_rollout_ref.rollout.trace.backend={backend}"])
        worker = local.worker(config)

        async def trajectory(step: int, n: int) -> None:
            described = {"step": step, "sample_index": 0, "rollout_n": n, "validate": False}
            await worker._run_agent_loop({"temperature": 1.0}, described, **rows([0], step, False, False)[0])

        await asyncio.gather(*(trajectory(0, n) for n in range(BATCH)))  # connections, caches, databases
        wall, cpu = [], []
        for step in range(1, batches + 1):
            began, spent = time.perf_counter(), time.process_time()
            await asyncio.gather(*(trajectory(step, n) for n in range(BATCH)))
            wall.append((time.perf_counter() - began) / BATCH * 1e3)
            cpu.append((time.process_time() - spent) / BATCH * 1e3)
    return {
        "wall_ms": statistics.median(wall),
        "wall_ms_worst_batch": max(wall),
        "process_cpu_ms": statistics.median(cpu),
        "trajectories": (batches + 1) * BATCH,
        **_arrived(name),
    }


def _arrived(name: str) -> dict[str, int]:
    """Traces and spans in the database, when the contestant says that it is done."""
    if name == "untraced":
        return {"traces": 0, "spans": 0}
    import mlflow

    if name == "otel-rollout":
        import otel_rollout

        otel_rollout.shutdown(120)
    else:
        mlflow.flush_trace_async_logging()
    client = mlflow.MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    traces, token = [], None
    while True:
        page = client.search_traces(locations=experiments, max_results=100, page_token=token)
        traces += page
        token = page.token
        if not token:
            return {"traces": len(traces), "spans": sum(len(trace.data.spans) for trace in traces)}


def _table(results: dict[str, dict[str, Any]]) -> Table:
    shown = Table(title="One trajectory of verl's tool agent: two model calls, one tool, one reward")
    for heading in ("", "wall, ms", "worst batch", "process CPU, ms", "traces", "of", "spans in a trace"):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, found in results.items():
        per_trace = found["spans"] / found["traces"] if found["traces"] else 0
        shown.add_row(
            name,
            f"{found['wall_ms']:.1f}",
            f"{found['wall_ms_worst_batch']:.1f}",
            f"{found['process_cpu_ms']:.1f}",
            str(found["traces"]),
            str(found["trajectories"]),
            f"{per_trace:.0f}",
        )
    return shown


if __name__ == "__main__":
    main()
