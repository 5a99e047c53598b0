"""Measure a forwarder's CPU when it delivers to MLflow, Weave and OTLP at once.

    python -m benchmarks.three_targets [--quick] [--against CHECKOUT]

Records trajectories once, in two shapes: short text, and conversations in which every model call resends its
messages. Then a new forwarder delivers a copy of that spool, in several rounds. One process on 127.0.0.1
stands in for all three servers: it answers every request with 200 and stores nothing. With `--against`, the
forwarder of another checkout of this repository takes turns with this one. Prints JSON: CPU µs per span,
without the CPU of a forwarder that delivers one trajectory; medians, and this checkout's part of the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
SPANS_PER_TRAJECTORY = 10
_EXPORTERS = "mlflow,weave,otlp"

_RECORD = """
import sys, otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
shape, trajectories = sys.argv[1], int(sys.argv[2])
words = "The lift carries at most 640 kilograms, of which five people take 360. "

@rollout_trace_op(kind="LLM")
def generate(messages):
    return words * 28

for sample in range(trajectories):
    with rollout_trace_attr(sample_index=sample, step=sample // 64, rollout_n=0):
        messages = [{"role": "user", "content": words * 7}]
        for turn in range(9 if trajectories > 1 else 0):
            if shape == "text":
                generate(words * 28)
            else:
                answer = generate(messages)
                messages = [*messages, {"role": "assistant", "content": words * 7}]
otel_rollout.shutdown(60)
"""


def run(quick: bool = False, against: Path | None = None) -> dict[str, Any]:
    """Measure every shape of trajectory in rounds.

    In each round, one checkout follows the other.
    """
    spans, rounds = (2_000, 1) if quick else (10_000, 5)
    checkouts = {"this": ROOT} | ({"other": against} if against else {})
    result: dict[str, Any] = {"spans": spans}
    with (
        tempfile.TemporaryDirectory(prefix="otel-rollout-bench-") as directory,
        AcceptingServers() as servers,
    ):
        work = Path(directory)
        for shape in ("text", "conversation"):
            recorded = _record(work / shape, shape, spans // SPANS_PER_TRAJECTORY)
            single = _record(work / f"{shape}-single", shape, 1)
            samples: dict[str, list[float]] = {name: [] for name in checkouts}
            for round_ in range(rounds):
                names = list(checkouts)
                for name in names if round_ % 2 else reversed(names):
                    start = _cpu_seconds(checkouts[name], single, work / "copy", servers)
                    whole = _cpu_seconds(checkouts[name], recorded, work / "copy", servers)
                    samples[name].append((whole - start) / spans * 1e6)
            result[shape] = _summary(samples)
    return result


def _summary(samples: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {"cpu_us": round(median(values), 1), "samples": [round(value, 1) for value in values]}
        for name, values in samples.items()
    }
    if "other" in samples:
        found["ratio"] = round(median(samples["this"]) / median(samples["other"]), 3)
    return found


def _record(spool: Path, shape: str, trajectories: int) -> Path:
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
    }
    command = [sys.executable, "-c", _RECORD, shape, str(trajectories)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return spool


def _cpu_seconds(checkout: Path, spool: Path, copy: Path, servers: AcceptingServers) -> float:
    """Return the CPU seconds of a checkout's forwarder that delivers a spool copy."""
    shutil.copytree(spool, copy)
    environment = {
        **os.environ,
        **servers.variables,
        "PYTHONPATH": os.pathsep.join(str(checkout / part) for part in ("", "exporters", "examples")),
        "OTEL_ROLLOUT_SPOOL_DIR": str(copy),
    }
    arguments = ["forward", "--to", _EXPORTERS]
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", *arguments]
    with (copy.parent / "forwarder.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=copy, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError((copy.parent / "forwarder.log").read_text()[-2000:])
    shutil.rmtree(copy)
    return used.ru_utime + used.ru_stime


class AcceptingServers:
    """Stand-ins for the three servers, in one process of their own."""

    def __enter__(self) -> AcceptingServers:
        command = [sys.executable, "-m", "benchmarks.accepting_server"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.variables = {
            "MLFLOW_TRACKING_URI": url,
            "WANDB_BASE_URL": url,
            "WF_TRACE_SERVER_URL": url,
            "WANDB_API_KEY": "0" * 40,
            "WANDB_ENTITY": "bench",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.three_targets", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer spans, for a first impression")
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    given = parser.parse_args()
    print(json.dumps(run(given.quick, given.against), indent=1))
