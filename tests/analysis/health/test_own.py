"""Checks that users install as entry points run beside ours; one that fails harms no other."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import COMMAND
from tests.table.tables import root, row, score, written

_EXAMPLE = Path(__file__).parents[3] / "examples" / "health_checks.py"
_POINTS = {
    "answers_without_number": "health_checks:answers_without_number",
    "very_long_trajectories": "health_checks:VERY_LONG_TRAJECTORIES",
    "cannot_be_imported": "missing_package:check",
    "raises": "own_checks:raises",
    "returns_nothing_known": "own_checks:returns_text",
    "several": "own_checks:several",
    "sql_of_all_runs": "own_checks:ALL_RUNS",
    "sql_that_writes": "own_checks:WRITES",
    "sql_without_rows": "own_checks:NO_ROWS",
}
_OWN_CHECKS = """
from otel_rollout.look.analysis.health import Finding

ALL_RUNS = "SELECT * FROM trajectories"
WRITES = "COPY (SELECT 1 WHERE {run}) TO '/tmp/x.csv'"
NO_ROWS = "SELECT * FROM trajectories WHERE {run} AND turns > 1000"


def raises(table, run):
    raise RuntimeError("no model\\nanswers")


def returns_text(table, run):
    return "healthy"


def several(table, run):
    yield Finding("healthy", "First.", name="several_first")
    yield Finding("unobserved", "Second.", name="several_second")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables of a process that has the example and broken checks installed."""
    site = tmp_path / "site"
    info = site / "own_health_checks-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "health_checks.py").write_text(_EXAMPLE.read_text())
    (site / "own_checks.py").write_text(_OWN_CHECKS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-health-checks\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {value}" for name, value in _POINTS.items())
    (info / "entry_points.txt").write_text(f"[otel_rollout_health_check]\n{points}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with two trajectories: a long one without an answer, and one with."""
    rows: list[dict[str, Any]] = []
    for number, reply in enumerate(("I give up.", "#### 7")):
        seconds = 900 if number == 0 else 3
        rows += [
            root(f"{number}", step=number, sample_index="4", duration_ns=seconds * 1_000_000_000),
            row(f"{number}", f"b{number}", f"a{number}", kind="LLM", reply=reply, step=number),
            score(f"{number}", f"c{number}", float(number), step=number),
        ]
    written(tmp_path / "table", rows)
    return tmp_path / "table"


def test_installed_checks_run_and_report(environment: dict[str, str], table: Path) -> None:
    """The example's Python and SQL find the first trajectory; broken checks have observed nothing."""
    only = ",".join(_POINTS)
    ran = subprocess.run(
        [*COMMAND, "health", "--from", str(table), "--only", only, "--json"],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, "")
    found = {check.pop("name"): check for check in json.loads(ran.stdout)["checks"]}
    assert found == {
        "answers_without_number": {
            "status": "unhealthy",
            "steps": [0],
            "evidence": ["0/4/0"],
            "message": "In 1 of 2 steps, most trajectories end without a number.",
        },
        "very_long_trajectories": {
            "status": "unhealthy",
            "steps": [0],
            "evidence": ["0/4/0"],
            "message": "A trajectory took more than ten minutes (1 row).",
        },
        "cannot_be_imported": _failed("ModuleNotFoundError: No module named 'missing_package'"),
        "raises": _failed("RuntimeError: no model answers"),
        "returns_nothing_known": _failed("TypeError: expected a Finding, and got str"),
        "several_first": {"status": "healthy", "steps": [], "evidence": [], "message": "First."},
        "several_second": {"status": "unobserved", "steps": [], "evidence": [], "message": "Second."},
        "sql_of_all_runs": _failed(
            "ValueError: the SELECT has no {run}, which stands for the condition on the run"
        ),
        "sql_that_writes": _failed(
            "QueryError: Only a SELECT can be run, and this begins with "
            "\"COPY (SELECT 1 WHERE (run_id = 'run-1' A\": nothing was done."
        ),
        "sql_without_rows": {
            "status": "healthy",
            "steps": [],
            "evidence": [],
            "message": "The SELECT has no row.",
        },
    }


def _failed(message: str) -> dict[str, Any]:
    return {
        "status": "unobserved",
        "steps": [],
        "evidence": [],
        "message": f"The check has failed: {message}",
    }
