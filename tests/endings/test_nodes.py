"""Test jobs on several nodes: all are drained before Ray ends, in one report."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest


def run_job(tmp_path: Path, **variables: str) -> dict[str, Any]:
    """Run the job on two nodes with separate spools; return the counts it prints."""
    places = {"TMPDIR": tmp_path / "here", "OTHER_TMPDIR": tmp_path / "other"}
    for place in places.values():
        place.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "OTEL_ROLLOUT_SPOOL_DIR"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.endings.two_nodes"],
        env={
            **environment,
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_TMPDIR": tempfile.gettempdir(),  # paths of its sockets must be short
            **{name: str(place) for name, place in places.items()},
            **variables,
        },
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
def test_ray_shutdown_waits_until_all_nodes_have_delivered(tmp_path: Path) -> None:
    """After ray.shutdown the spans of both nodes are delivered, linked and counted."""
    target = tmp_path / "delivered.jsonl"
    account = run_job(tmp_path, OTEL_TRACES_EXPORTER="test-file", OTEL_TEST_FILE=str(target))
    assert account["recorded"] == account["ended"] == 66
    assert account["exporters"] == {"test-file": [66, 0, None]}
    assert account["lost"] == 0
    assert account["steps"] == {"1": 66}
    assert len(account["places"]) == 2
    assert len(target.read_text().splitlines()) == 66
    links = [json.loads(line) for line in Path(f"{target}.links").read_text().splitlines()]
    assert {run for run, _, _ in links} == {"run-7"}
    assert {directory for _, _, directory in links} == set(account["places"]), (
        "published on one node, linked by the forwarders of both; a forwarder that starts again links again"
    )


def test_spans_of_other_nodes_are_copied_to_the_node_with_the_target_file(tmp_path: Path) -> None:
    """Only the driver's node writes to SQLite, also traces of the other node."""
    database = f"sqlite:///{tmp_path}/mlflow.db"
    trainer = [sys.executable, "-c", "import mlflow; print(mlflow.start_run().info.run_id)"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": database}
    run_id = subprocess.run(
        trainer, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    account = run_job(
        tmp_path,
        OTEL_TRACES_EXPORTER="mlflow",
        MLFLOW_TRACKING_URI=database,
        OTEL_ROLLOUT_SHUTDOWN_TIMEOUT="60",
        TRACKERS_RUN=run_id,
    )
    assert account["recorded"] == account["ended"] == 66
    assert account["exporters"] == {"mlflow": [66, 0, None]}
    assert account["lost"] == 0
    assert account["steps"] == {"1": 66}
    assert any(place.endswith("/other.copy") for place in account["places"])
    with closing(sqlite3.connect(f"{tmp_path}/mlflow.db")) as mlflow:
        assert mlflow.execute("SELECT COUNT(*), COUNT(DISTINCT span_id) FROM spans").fetchone() == (66, 66)
        linked = "SELECT COUNT(DISTINCT source_id) FROM entity_associations WHERE destination_id = ?"
        assert mlflow.execute(linked, (run_id,)).fetchone() == (6,)


def test_spans_that_cannot_be_copied_stay_pending_with_the_reason(tmp_path: Path) -> None:
    """If the copy fails, spans stay pending, and the report says where they are."""
    run = tmp_path / "here" / f"otel-rollout-{os.getuid()}" / "run"
    account = run_job(
        tmp_path,
        OTEL_TRACES_EXPORTER="mlflow",
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db",
        OTEL_ROLLOUT_RUN_ID="run",
        OTEL_ROLLOUT_SHUTDOWN_TIMEOUT="60",
        BLOCK=str(run / "other.copy"),
    )
    delivered, pending, problem = account["exporters"]["mlflow"]
    assert (delivered, pending, account["lost"]) == (33, 33, 0)
    assert "a file of the machine" in problem
    assert any(place.startswith(f"{tmp_path}/other/") for place in account["places"])
