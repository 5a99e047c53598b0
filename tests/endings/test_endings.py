"""However a job on Ray ends, every span that has ended arrives, once. Real processes, real kills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from otel_rollout import settings, spool
from otel_rollout.deliver import drain, launch
from otel_rollout.deliver.report import Report
from tests.endings.job import ENDINGS

SUBREAPER = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"


def run_job(ending: str, tmp_path: Path, **variables: str) -> tuple[int, int]:
    """Run a job to its end; how many spans have ended at least, and how many trajectories never did."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "test-file",
        "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **variables,
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.endings.job", ending, str(tmp_path / "acknowledged")],
        env=environment,
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r"^ENDED (\d+) (\d+)$", ran.stdout, re.MULTILINE)  # Ray prints there, too
    assert found, ran.stdout + ran.stderr[-3000:]
    return int(found[1]), int(found[2])


def account_when_done(tmp_path: Path) -> Report:
    """The account once all is delivered and the forwarder has left by itself."""
    (node_dir,) = spool.node_directories(tmp_path / "spool")
    configured = settings.Settings(exporters={"test-file": {}})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        report = drain.report(node_dir, configured)
        # It may not have begun yet: a job can end sooner than a process starts.
        if not report.exporters["test-file"].pending and not launch.forwarder_runs(node_dir):
            return drain.report(node_dir, configured)
        time.sleep(0.2)
    raise AssertionError(f"not delivered, or the forwarder stays: {drain.report(node_dir, configured)}")


def delivered(tmp_path: Path) -> Counter[tuple[str, str]]:
    lines = (tmp_path / "delivered.jsonl").read_text().splitlines()
    return Counter((span_id, name) for span_id, name, _ in map(json.loads, lines))


@pytest.mark.usefixtures("test_exporters")
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ended_span_arrives_once(ending: str, tmp_path: Path) -> None:
    """Whatever ends the job, what was acknowledged is delivered, and killed trajectories end as errors."""
    ended, unfinished = run_job(ending, tmp_path)
    report = account_when_done(tmp_path)
    counts = delivered(tmp_path)
    assert set(counts.values()) == {1}
    assert len(counts) == report.recorded == report.exporters["test-file"].delivered
    # A worker killed at work may have ended one more span than it could tell of.
    assert ended + unfinished <= len(counts) <= ended + 2 * unfinished
    assert (report.lost, report.dropped, report.open) == (0, {}, 0)
    names = Counter(name for _, name in counts)
    assert names["rollout_trace"] % 5 == unfinished


@pytest.mark.usefixtures("test_exporters")
def test_every_ended_span_arrives_once_under_rays_subreaper(tmp_path: Path) -> None:
    """Where Ray kills everything a worker started, the driver starts another forwarder at the end."""
    ended, _ = run_job("kill", tmp_path, **{SUBREAPER: "true"})
    report = account_when_done(tmp_path)
    assert set(delivered(tmp_path).values()) == {1}
    assert len(delivered(tmp_path)) == ended == report.recorded
