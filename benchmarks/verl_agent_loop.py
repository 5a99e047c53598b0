"""Measure verl's agent loop untraced, under verl's backends, and under ours.

    python -m benchmarks --only verl_agent_loop

Each contestant has its own process with a real ``AgentLoopWorker``, tool agent and tool. Engine and reward
are test objects that answer at once. For MLflow both tracers write a SQLite file; for Weave they send to its
own server on this machine. Arrived spans are read back after each contestant has had time to finish: verl's
by flushing its queue, which a job that ends by ``ray.kill`` does not do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.tracers import ROOT, VERL, inherited
from tests.local_weave import LocalWeave

UNTRACED = "untraced"
CONTESTANTS = {
    UNTRACED: (None, None),
    "verl's mlflow backend": ("verl", "mlflow"),
    "otel-rollout, to MLflow": ("otel-rollout", "mlflow"),
    "verl's weave backend": ("verl", "weave"),
    "otel-rollout, to Weave": ("otel-rollout", "weave"),
}
"""Name → tracer and target."""
BATCH = 8
"""Trajectories at once, as a worker runs its part of a batch."""
PROJECT = "bench-verl"
FINISH_SECONDS = 300.0


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every contestant in turn."""
    batches = 3 if quick else 12
    contestants = {name: _measured(name, backend, batches) for name, (_, backend) in CONTESTANTS.items()}
    return {"batches": batches, "batch": BATCH, "contestants": contestants}


def _measured(name: str, backend: str | None, batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        environment = {
            **inherited(),
            "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OTEL_ROLLOUT_SPOOL_DIR": f"{directory}/spool",
        }
        weave = None
        if backend == "weave":
            weave = stack.enter_context(LocalWeave(Path(directory)))
            environment |= weave.environment
            # Do not measure a line of output per trajectory, or error reports to a host that does not exist.
            environment |= {"WEAVE_PRINT_CALL_LINK": "false", "WANDB_ERROR_REPORTING": "false"}
        python = str(ROOT / VERL / "bin" / "python")
        ran = subprocess.run(
            [python, "-W", "ignore", "-m", __spec__.name, name, str(batches)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            check=False,
            text=True,
        )
        if ran.returncode:
            raise RuntimeError(f"{name} failed:\n{ran.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        if weave is not None:
            calls = weave.told(PROJECT, "parent_id", "ended_at")
            found |= _counted([call["parent_id"] for call in calls if call["ended_at"]])
        elif backend == "mlflow":
            found |= _counted(_parents_in_mlflow(environment["MLFLOW_TRACKING_URI"]))
        return found


def _counted(parents: list[str | None]) -> dict[str, int]:
    """Return traces and spans from the parent ids of all spans."""
    return {"traces": parents.count(None), "spans": len(parents)}


async def _run(tracer: str | None, backend: str | None, batches: int) -> dict[str, Any]:
    if tracer == "otel-rollout":
        os.environ["OTEL_TRACES_EXPORTER"] = str(backend)
    else:
        os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    from tests.verl import local
    from tests.verl.configuration import configuration
    from tests.verl.script import rows

    flag = backend if tracer == "verl" else "null"
    with tempfile.TemporaryDirectory() as directory:
        overrides = [f"actor_rollout_ref.rollout.trace.backend={flag}", f"trainer.project_name={PROJECT}"]
        config = configuration(Path(directory), overrides)
        worker = local.worker(config)

        async def trajectory(step: int, n: int) -> None:
            described = {"step": step, "sample_index": 0, "rollout_n": n, "validate": False}
            await worker._run_agent_loop({"temperature": 1.0}, described, **rows([0], step, False, False)[0])

        await asyncio.gather(*(trajectory(0, n) for n in range(BATCH)))  # warm-up
        wall, cpu = [], []
        for step in range(1, batches + 1):
            began, spent = time.perf_counter(), time.process_time()
            await asyncio.gather(*(trajectory(step, n) for n in range(BATCH)))
            wall.append((time.perf_counter() - began) / BATCH * 1e3)
            cpu.append((time.process_time() - spent) / BATCH * 1e3)
    _finish(tracer, backend)
    return {
        "wall_ms": statistics.median(wall),
        "wall_ms_worst_batch": max(wall),
        "process_cpu_ms": statistics.median(cpu),
        "trajectories": (batches + 1) * BATCH,
    }


def _finish(tracer: str | None, backend: str | None) -> None:
    """Give the contestant time to deliver its backlog."""
    if tracer == "otel-rollout":
        import otel_rollout

        otel_rollout.shutdown(FINISH_SECONDS)
    elif backend == "mlflow":
        import mlflow

        mlflow.flush_trace_async_logging()
    elif backend == "weave":
        import weave

        weave.finish()  # flushes


def _parents_in_mlflow(uri: str) -> list[str | None]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(PROJECT)
    assert experiment is not None
    parents, token = [], None
    while True:
        page = client.search_traces(locations=[experiment.experiment_id], max_results=100, page_token=token)
        parents += [span.parent_id for trace in page for span in trace.data.spans]
        token = page.token
        if not token:
            return parents


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One of the processes measured.")
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("batches", type=int)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(_run(*CONTESTANTS[given.contestant], given.batches))))
