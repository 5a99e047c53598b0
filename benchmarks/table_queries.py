"""Time questions to a rollout table: the commands with their start-up, and an open process.

    python -m benchmarks.table_queries --trajectories 100000

Each figure is the median of several runs: seconds of wall time, and seconds of CPU time in brackets.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arro3.core import Table

from otel_rollout.rollout_table import open_table
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from tests.table.generated_table import Shape, batches

_COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
_COMMANDS = {
    "steps": (["steps"], 1.5),
    "filtered list": (
        ["list", "--step", "1-3", "--reward", "<0.1", "--tool-error", "--sort", "reward", "--limit", "20"],
        1.5,
    ),
    "show of one": (["show", "3/130/1"], 1.2),
    "compare": (["compare", "3/130/1", "3/130/2"], 1.5),
    "text search": (["query", "SELECT step, reply FROM turns WHERE reply LIKE '%search add two sum%'"], 4.0),
}
"""Question → arguments, and the figure in seconds that 100,000 trajectories have to reach on two cores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--table", type=Path, help="write the table here, or use the one that is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = options.table or Path(directory) / "table"
        if not path.exists():
            _write(path, Shape(options.trajectories))
        print(f"{options.trajectories} trajectories of 20 spans, {_megabytes(path):.0f} MB")
        for name, (arguments, goal) in _COMMANDS.items():
            _report(name, goal, [_command(arguments, path) for _ in range(options.runs)])
        _open_process(path, options.runs)


def _write(path: Path, shape: Shape) -> None:
    store = Store(location_of(str(path)))
    for number, rows in enumerate(batches(shape)):
        store.append(Table.from_arrow(rows).to_batches(), "benchmark", number)


def _megabytes(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6


def _command(arguments: list[str], path: Path) -> tuple[float, float]:
    before, start = _children_cpu(), time.perf_counter()
    ran = subprocess.run(
        [*_COMMAND, *arguments, "--from", str(path)],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(ran.stdout + ran.stderr)
    return time.perf_counter() - start, _children_cpu() - before


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _open_process(path: Path, runs: int) -> None:
    table = open_table(str(path))
    questions: dict[str, tuple[Callable[[], Any], float]] = {
        "open: steps": (lambda: table.steps.arrow(), 0.5),
        "open: widest groups": (lambda: table.groups.sort("-reward_spread").limit(5).arrow(), 0.5),
        "open: failed tool calls": (
            lambda: table.sql(
                "SELECT tool_name, count(*) AS n FROM tool_calls WHERE status = 'error' GROUP BY 1"
            ).arrow(),
            0.5,
        ),
        "open: one trajectory": (lambda: table.trajectory(3, 130, 1), 0.15),
    }
    for name, (ask, goal) in questions.items():
        ask()
        _report(name, goal, [_timed(ask) for _ in range(runs)])


def _timed(ask: Callable[[], Any]) -> tuple[float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    ask()
    return time.perf_counter() - start, time.process_time() - cpu


def _report(name: str, goal: float, times: list[tuple[float, float]]) -> None:
    wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:24} {wall:6.2f} s ({cpu:.2f} s CPU), goal {goal} s")


if __name__ == "__main__":
    main()
