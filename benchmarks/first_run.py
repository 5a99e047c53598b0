"""Measure how long a program waits for delivery at its end: MLflow on SQLite.

    python -m benchmarks.first_run [--rounds N]

Runs whole processes: a program of 0.5 s with ten trajectories, in a directory of its own, twice. The first
run also creates MLflow's tables. The measured time is that from the program's last statement to its exit.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PROGRAM: Final = """
import time
from otel_rollout import rollout_trace_attr, rollout_trace_op, score

@rollout_trace_op
def answer(question):
    time.sleep(0.05)
    return 2 * question

for sample in range(10):
    with rollout_trace_attr(step=1, sample_index=sample):
        answer(sample)
        score("reward", 1.0)
print(time.time())
"""


def seconds_to_exit(directory: Path) -> float:
    """Run the program; return the seconds from its last statement to its exit.

    Raises:
        RuntimeError: not everything was delivered.
    """
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "exporters")]),
        "OTEL_TRACES_EXPORTER": "mlflow",
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_SHUTDOWN_TIMEOUT": "120",
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    exited = time.time()
    if "30 spans delivered to MLflow experiment 'otel-rollout'" not in ended.stderr:
        raise RuntimeError(ended.stderr)
    return exited - float(ended.stdout)


def run(rounds: int = 5) -> dict[str, Any]:
    """Measure; return the medians of first and second runs in seconds."""
    first, second = [], []
    for _ in range(rounds):
        # A forwarder may still write its last file.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            first.append(seconds_to_exit(Path(directory)))
            second.append(seconds_to_exit(Path(directory)))
    return {
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "first_seconds": round(statistics.median(first), 2),
        "second_seconds": round(statistics.median(second), 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    print(json.dumps(run(parser.parse_args().rounds), indent=2))
