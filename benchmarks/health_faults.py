"""Measure whether ``otel-rollout health`` finds each planted fault, and raises no false alarm.

Each kind of fault is planted in a generated run, for several seeds. A row of the printed matrix is a fault, a
column a check:

    python -m benchmarks.health_faults                        # 5,000 trajectories, seeds 1, 2 and 3
    python -m benchmarks.health_faults --trajectories 1200 --seeds 7 --fault slow_worker
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_rollout.look.analysis.health.checks import BUILT_IN, health_of
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.query import Engine
from tests.analysis.generated_faults import (
    EXPECTED,
    FAULTS,
    FOLLOWING,
    LEFT_OUT_GROUPS,
    PASSED_OVER,
    SIX_CAUSES,
)
from tests.analysis.generated_run import Shape, written

CLEAN: Final = "(none)"
SIX: Final = "(six causes)"
_PLANTED: Final = (CLEAN, *FAULTS, LEFT_OUT_GROUPS, PASSED_OVER, SIX)


def findings(faults: tuple[str, ...], seed: int, trajectories: int) -> dict[str, str]:
    """Return check → status, for a generated run with faults."""
    with tempfile.TemporaryDirectory(prefix="otel-rollout-health-") as directory:
        store = written(Path(directory) / "table", Shape(trajectories, seed=seed, faults=faults))
        engine = Engine(store.open())
        found = health_of(engine, run_of(engine), BUILT_IN)
    return {finding.name: finding.status for finding in found.findings}


def wrong(faults: tuple[str, ...], status: dict[str, str]) -> list[str]:
    """Return what a run with faults should have shown and did not, and false alarms."""
    expected = {check for fault in faults for check in EXPECTED.get(fault, (fault,))}
    allowed = expected | {check for fault in faults for check in FOLLOWING.get(fault, ())}
    missed = [f"{check} is {status[check]}" for check in expected if status[check] != "unhealthy"]
    others = {check: found for check, found in status.items() if check not in allowed}
    return missed + [f"{check} is {found}" for check, found in others.items() if found != "healthy"]


def main(arguments: list[str]) -> int:
    """Print the matrix; return 1 if a fault was missed or an alarm is false."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health_faults")
    parser.add_argument("--trajectories", type=int, default=5000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--fault", action="append", choices=_PLANTED)
    given = parser.parse_args(arguments)
    print("\n".join(f"{number:2}  {check.name}" for number, check in enumerate(BUILT_IN, 1)))
    print(f"{'planted':24} seed " + "".join(f"{number:3}" for number in range(1, len(BUILT_IN) + 1)))
    mistakes = [
        mistake
        for fault in given.fault or _PLANTED
        for seed in given.seeds
        for mistake in _row(fault, seed, given.trajectories)
    ]
    print("\n".join(mistakes) or "all found, no false alarm")
    return bool(mistakes)


def _row(fault: str, seed: int, trajectories: int) -> Iterable[str]:
    """Print a row; return its mistakes."""
    faults = {CLEAN: (), SIX: tuple(SIX_CAUSES)}.get(fault, (fault,))
    status = findings(faults, seed, trajectories)
    marks = {"healthy": "  ·", "unhealthy": "  X", "unobserved": "  ?"}
    print(f"{fault:24} {seed:4} " + "".join(marks[status[check.name]] for check in BUILT_IN), flush=True)
    return [f"{fault}, seed {seed}: {mistake}" for mistake in wrong(faults, status)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
