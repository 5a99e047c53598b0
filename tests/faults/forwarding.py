"""Run the product's forwarder on a node directory, under a test's control."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from otel_rollout import settings, settings_reader
from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from otel_rollout.spool import layout
from otel_rollout.spool.locks import ForwarderLock
from tests.faults.inside import ONCE
from tests.faults.job import PATH, Job, names


def node_directory(variables: dict[str, str], node: str = "node") -> Path:
    """Create the node directory of a job, and name it in the job's variables."""
    variables |= {"OTEL_ROLLOUT_RUN_ID": "run", "OTEL_ROLLOUT_NODE": node}
    spool_dir = Path(variables["OTEL_ROLLOUT_SPOOL_DIR"])
    directory = layout.node_directory(spool_dir, "run", node)
    layout.create_private(directory, spool_dir)
    return directory


@contextmanager
def nobody_forwards(node_dir: Path) -> Iterator[None]:
    """Hold the forwarder's lock, so that started forwarders exit."""
    lock = ForwarderLock(node_dir)
    assert lock.acquire()
    try:
        yield
    finally:
        lock.close()


def record_and_die(variables: dict[str, str], node_dir: Path, count: int = 3) -> list[str]:
    """Record two trajectories and an open one, in a process that is killed.

    No forwarder runs meanwhile.
    """
    with nobody_forwards(node_dir), Job(variables) as job:
        recorded = [*job.record("first", count), *job.record("second", count)]
        job.ask("open", "unended")
    return [*recorded, *names("unended", 1)]


def forward(variables: dict[str, str], node_dir: Path, deaths: Sequence[str] = ()) -> Report:
    """Run forwarders: each dies at one of the points, the last one ends normally.

    A point of ``ONCE`` may be missed, if another thread dies just before it.

    Returns:
        The delivery report after the last forwarder.
    """
    directory = node_dir.parent.parent.parent / "deaths"
    directory.mkdir(exist_ok=True)
    for point in deaths:
        (directory / point).touch()
    command = [sys.executable, "-m", "otel_rollout.forwarder", str(node_dir)]
    environment = {**variables, "PYTHONPATH": PATH, "OTEL_TEST_DEATHS": str(directory)}
    environment[settings.CONFIG_VARIABLE] = "{}"  # as passed by the run's founder, which is another process
    for _ in range(len(deaths) + 1):  # two threads may each reach a point at the same instant
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert ended.returncode == 0
    assert {path.name for path in directory.iterdir()} <= ONCE, ended.stderr.decode()
    return node_report.report(node_dir, settings_reader.from_environment(environment)[0])


def replay(variables: dict[str, str], node_dir: Path, exporter: str) -> None:
    """Deliver a directory's lines once more, with the command ``replay``."""
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
    command += ["replay", str(node_dir), "--to", exporter]
    subprocess.run(command, env={**variables, "PYTHONPATH": PATH}, timeout=300, check=True)
