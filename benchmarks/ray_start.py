"""Measure what tracing costs a program on Ray until its first task has ended.

    python -m benchmarks.ray_start [--rounds N]

Runs whole processes in turns: ``ray.init`` with a task, with and without the variable; and, without the
variable, the import of Ray, in environments with and without the file that Python reads at start. Prints
JSON; seconds are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FIRST_TASK: Final = """
import time, ray
began = time.perf_counter()
ray.init(include_dashboard=False, logging_level="ERROR")
assert ray.get(ray.remote(lambda: 1).remote()) == 1
print(time.perf_counter() - began)
"""


def first_task(directory: str, exporter: str) -> float:
    """Return the seconds of ``ray.init`` and the first task."""
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": exporter, "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", FIRST_TASK]
    ran = subprocess.run(
        command, cwd=directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    return float(ran.stdout)


def start(python: Path) -> float:
    """Return the seconds in which a driver without the variable imports Ray and ends."""
    environ = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]}
    environ.pop("OTEL_TRACES_EXPORTER", None)
    began = time.perf_counter()
    subprocess.run([python, "-c", "import ray"], env=environ, check=True)
    return time.perf_counter() - began


def interpreter(directory: Path, has_package: bool) -> Path:
    """Make an environment in which only the file that Python reads at start is installed, or nothing."""
    venv.create(directory, symlinks=True)
    if has_package:
        site = next(directory.glob("lib/python*/site-packages"))
        for file in (ROOT / "autoload").glob("otel_rollout_autoload.p*"):
            shutil.copy(file, site)
    return directory / "bin" / "python"


def run(rounds: int = 15) -> dict[str, Any]:
    """Measure in turns; return medians, and the quartiles of the rounds' ratios."""
    traced, untraced, with_package, without = [], [], [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        pythons = [interpreter(Path(directory) / str(has), has) for has in (True, False)]
        for _ in range(rounds):
            traced.append(first_task(directory, "spool"))
            untraced.append(first_task(directory, "none"))
            with_package.append(start(pythons[0]))
            without.append(start(pythons[1]))
    return {
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "first_task": _compared(traced, untraced),
        "start_without_the_variable": _compared(with_package, without),
    }


def _compared(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    low, _, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return {
        "seconds": round(statistics.median(ours), 3),
        "seconds_without": round(statistics.median(theirs), 3),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
        "quartiles_of_ratios": [round(low, 3), round(high, 3)],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    print(json.dumps(run(parser.parse_args().rounds), indent=2))
