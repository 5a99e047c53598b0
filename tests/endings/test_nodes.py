"""Several nodes: every one is drained before Ray goes, and the driver's account covers the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run_job(**variables: str) -> dict[str, Any]:
    """The account that the job on two nodes prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.endings.two_nodes"],
        env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **variables},
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    found = re.search(r"^ACCOUNT (.*)$", ran.stdout, re.MULTILINE)
    assert found, ran.stdout + ran.stderr[-3000:]
    account: dict[str, Any] = json.loads(found[1])
    return account


@pytest.mark.usefixtures("test_exporters")
def test_all_nodes_are_drained_before_ray_goes(tmp_path: Path) -> None:
    """After ray.shutdown what both nodes recorded is delivered, and one report covers both."""
    target = tmp_path / "delivered.jsonl"
    account = run_job(OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_FILE=str(target))
    assert account["recorded"] == account["ended"] == 66
    assert account["exporters"] == {"test-file": [66, 0, None]}
    assert account["lost"] == 0
    assert account["steps"] == {"1": 66}
    assert len(account["places"]) == 2
    assert len(target.read_text().splitlines()) == 66


def test_only_the_drivers_node_writes_to_a_file(tmp_path: Path) -> None:
    """With SQLite as target, spans of other nodes stay where they are, and the account says so."""
    account = run_job(
        OTEL_TRACES_EXPORTER="mlflow",
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db",
        OTEL_ROLLOUT_SHUTDOWN_TIMEOUT="60",
    )
    delivered, pending, problem = account["exporters"]["mlflow"]
    assert (delivered, pending, account["lost"]) == (33, 33, 0)
    assert "a file of the machine" in problem
    assert any(place.endswith("/other") for place in account["places"])
