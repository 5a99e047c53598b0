"""Test that every ended span arrives once, however a job on Ray ends.

The spans arrive in a file and in MLflow. The processes, the kills and the MLflow server are real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import NamedTuple

import pytest

from otel_rollout import settings
from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from otel_rollout.record.launch import launcher
from otel_rollout.spool import layout
from tests.endings.job import ENDINGS
from tests.mlflow_server import stored
from tests.waiting import wait_for

JOB_SECONDS = 180
EXPORTERS = ("test-file", "mlflow")
SEEN_WITHIN = 30.0
"""Maximum seconds from the kill until MLflow shows the trajectory as an error."""
SUBREAPER = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"


class Ended(NamedTuple):
    """The numbers that a job prints at its end.

    Attributes:
        spans: number of spans that have certainly ended.
        unfinished: number of trajectories that never end.
    """

    spans: int
    unfinished: int


@pytest.fixture
def project() -> str:
    """Return the name of a project that only this test uses."""
    return f"endings-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def mlflow(server_uri: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs deliver to the test's project."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server_uri)
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", project)


@contextmanager
def running_job(ending: str, tmp_path: Path, **variables: str) -> Iterator[Ended]:
    """Run a job until it is about to end, yield, then wait for its end."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": ",".join(EXPORTERS),
        "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **variables,
    }
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.endings.job", ending, str(tmp_path / "acknowledged")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as job,
    ):
        stopped = Timer(JOB_SECONDS, job.kill)
        stopped.start()
        try:
            assert job.stdout is not None
            said = (re.fullmatch(r"ENDED (\d+) (\d+)\n", line) for line in job.stdout)
            found = next(filter(None, said), None)  # Ray prints there, too
            assert found, errors.read_text()[-3000:]
            yield Ended(int(found[1]), int(found[2]))
            job.communicate()
        finally:
            stopped.cancel()


def account_when_done(tmp_path: Path) -> Report:
    """Wait until everything is delivered and the forwarder ended; return the report."""
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    configured = settings.Settings(exporters={name: {} for name in EXPORTERS})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        report = node_report.report(node_dir, configured)
        # The forwarder may not run yet: a job can end before its forwarder has started.
        pending = sum(count.pending for count in report.exporters.values())
        if not pending and not launcher.forwarder_runs(node_dir):
            return node_report.report(node_dir, configured)
        time.sleep(0.2)
    raise AssertionError(f"not delivered, or the forwarder stays: {node_report.report(node_dir, configured)}")


def in_the_file(tmp_path: Path) -> Counter[tuple[str, str]]:
    lines = (tmp_path / "delivered.jsonl").read_text().splitlines()
    return Counter((span_id, name) for span_id, name, _ in map(json.loads, lines))


def in_mlflow(uri: str, project: str) -> Counter[tuple[str, str]]:
    return Counter((span.span_id, span.name) for trace in stored(uri, project) for span in trace.data.spans)


@pytest.mark.usefixtures("test_exporters")
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ended_span_arrives_once(ending: str, tmp_path: Path, server_uri: str, project: str) -> None:
    """Ended spans are delivered once, and killed trajectories end as errors."""
    with running_job(ending, tmp_path) as (ended, unfinished):
        if unfinished:
            failed = "tags.step = '2' AND trace.status = 'ERROR'"
            wait_for(lambda: stored(server_uri, project, failed), SEEN_WITHIN, "the trajectory as an error")
    report = account_when_done(tmp_path)
    counts = in_the_file(tmp_path)
    assert set(counts.values()) == {1}
    assert in_mlflow(server_uri, project) == counts
    for name in EXPORTERS:
        assert len(counts) == report.recorded == report.exporters[name].delivered
    # A killed worker may have ended one more span than it wrote to its file.
    assert ended + unfinished <= len(counts) <= ended + 2 * unfinished
    assert (report.lost, report.dropped, report.open) == (0, {}, 0)
    names = Counter(name for _, name in counts)
    assert names["rollout_trace"] % 5 == unfinished


@pytest.mark.usefixtures("test_exporters")
def test_every_ended_span_arrives_once_under_rays_subreaper(
    tmp_path: Path, server_uri: str, project: str
) -> None:
    """Ray kills a worker's forwarder; the driver starts another one at the end."""
    with running_job("kill", tmp_path, **{SUBREAPER: "true"}) as ended:
        pass
    report = account_when_done(tmp_path)
    counts = in_mlflow(server_uri, project)
    assert set(counts.values()) == {1}
    assert in_the_file(tmp_path) == counts
    assert len(counts) == ended.spans == report.recorded
