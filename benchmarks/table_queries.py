"""Time questions to a rollout table: the commands with their start-up, and an open process.

    python -m benchmarks.table_queries --trajectories 10000 100000 1000000

Each figure is the median of several runs: seconds of wall time, with seconds of CPU time in brackets, and a
command's peak memory. Several sizes show the growth; a table is written in pieces of bounded memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arro3.core import Table

from otel_rollout.rollout_table import open_table
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from tests.table.generated_table import Shape, batches

_COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
COMMANDS = {
    "steps": ["steps"],
    "filtered list": [
        *("list", "--step", "1-3", "--reward", "<0.1", "--tool-error", "--sort", "reward", "--limit", "20")
    ],
    "show of one": ["show", "3/130/1"],
    "compare": ["compare", "3/130/1", "3/130/2"],
    "text search": ["query", "SELECT step, reply FROM turns WHERE reply LIKE '%search add two sum%'"],
}
"""Question → arguments of the command."""
_GOALS = {
    100_000: {
        "steps": 1.5,
        "filtered list": 1.5,
        "show of one": 1.2,
        "compare": 1.5,
        "text search": 4.0,
        **dict.fromkeys(["open: steps", "open: widest groups", "open: failed tool calls"], 0.5),
        "open: one trajectory": 0.15,
    },
    1_000_000: {"steps": 6.0, "show of one": 1.5},
}
"""Number of trajectories → question → the figure in seconds that two cores have to reach."""
_GOAL_MIB = 2048
"""Peak memory in MiB that a command may take at any size."""
_ROWS_EACH = 200_000
"""Rows that are in memory while a table is written."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, nargs="+", default=[100_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--table", type=Path, help="write the table here, or use the one that is there")
    options = parser.parse_args()
    if options.table and len(options.trajectories) > 1:
        parser.error("--table takes one size")
    for trajectories in options.trajectories:
        with tempfile.TemporaryDirectory() as directory:
            _measure(options.table or Path(directory) / "table", trajectories, options.runs)


def _measure(path: Path, trajectories: int, runs: int) -> None:
    if not path.exists():
        in_process(write, path, Shape(trajectories))
    print(f"{trajectories} trajectories of 20 spans, {_megabytes(path):.0f} MB")
    goals = _GOALS.get(trajectories, {})
    for name, arguments in COMMANDS.items():
        used = [command([*arguments, "--from", str(path)]) for _ in range(runs)]
        _report(name, goals.get(name), [(wall, cpu) for wall, cpu, _ in used])
        print(f"{'':24} {max(memory for *_, memory in used):6.0f} MiB, goal {_GOAL_MIB} MiB")
    in_process(_open_process, path, runs, goals)


def in_process(measure: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a process of its own: a command's peak memory counts that of its parent too."""
    process = multiprocessing.get_context("spawn").Process(target=measure, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def write(path: Path, shape: Shape) -> None:
    """Append generated trajectories to a table."""
    store = Store(location_of(str(path)))
    for number, rows in enumerate(batches(shape, _ROWS_EACH)):
        store.append(Table.from_arrow(rows).to_batches(), f"benchmark-{shape.seed}", number)


def _megabytes(path: Path) -> float:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6


def command(arguments: list[str]) -> tuple[float, float, float]:
    """Run a command; return its seconds of wall and CPU time, and its peak memory in MiB.

    `health` ends with 1 if something is unhealthy.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*_COMMAND, *arguments],
            env={**os.environ, "COLUMNS": "200"},
            stdout=output,
            stderr=output,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in ((0, 1) if arguments[0] == "health" else (0,)):
            output.seek(0)
            raise SystemExit(output.read().decode())
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _open_process(path: Path, runs: int, goals: Mapping[str, float]) -> None:
    table = open_table(str(path))
    failed = "SELECT tool_name, count(*) AS n FROM tool_calls WHERE status = 'error' GROUP BY 1"
    questions: dict[str, Callable[[], Any]] = {
        "open: steps": lambda: table.steps.arrow(),
        "open: widest groups": lambda: table.groups.sort("-reward_spread").limit(5).arrow(),
        "open: failed tool calls": lambda: table.sql(failed).arrow(),
        "open: one trajectory": lambda: table.trajectory(3, 130, 1),
    }
    for name, ask in questions.items():
        ask()
        _report(name, goals.get(name), [_timed(ask) for _ in range(runs)])


def _timed(ask: Callable[[], Any]) -> tuple[float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    ask()
    return time.perf_counter() - start, time.process_time() - cpu


def _report(name: str, goal: float | None, times: list[tuple[float, float]]) -> None:
    wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:24} {wall:6.2f} s ({cpu:.2f} s CPU)" + (f", goal {goal} s" if goal else ""))


if __name__ == "__main__":
    main()
