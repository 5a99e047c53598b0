"""Versions that meet: on the nodes of a cluster, and in a spool that an upgrade finds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.account.report import Report
from otel_rollout.record.launch import ray_nodes
from otel_rollout.rollout_table import open_table
from tests.ray_start import run_program
from tests.versions.older import THIS, unpack
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the PYTHONPATH of an older version."""
    return unpack(tmp_path_factory.mktemp("older"))


def package_of(pythonpath: str) -> str:
    """Return where a process with this PYTHONPATH finds the package."""
    return str(Path(pythonpath.partition(os.pathsep)[0], "otel_rollout", "__init__.py"))


@pytest.mark.parametrize("driver", ["older", "newer"])
def test_nodes_of_other_versions_than_the_drivers_are_traced_and_drained(
    tmp_path: Path, older: str, driver: str
) -> None:
    """Their own trajectories and their part of the driver's reach the table beside the driver."""
    versions = (older, THIS) if driver == "older" else (THIS, older)
    places = {"TMPDIR": tmp_path / "here", "OTHER_TMPDIR": tmp_path / "other"}
    for place in places.values():
        place.mkdir()
    inherited = {name: value for name, value in os.environ.items() if name != "OTEL_ROLLOUT_SPOOL_DIR"}
    ran = run_program(
        [sys.executable, "-m", "tests.versions.programs.cluster_job"],
        env={
            **inherited,
            **{name: str(place) for name, place in places.items()},
            "PYTHONPATH": versions[0],
            "OTHER_PYTHONPATH": versions[1],
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_TMPDIR": tempfile.gettempdir(),  # paths of its sockets must be short
            "TABLE": str(tmp_path / "table"),
        },
        cwd=tmp_path,  # python -m looks here first
        timeout=420,
    )
    found = re.search(r"^ACCOUNT (.*)$", ran.stdout, re.MULTILINE)
    assert found, ran.stdout + ran.stderr[-3000:]
    account: dict[str, Any] = json.loads(found[1])

    here, other = map(package_of, versions)
    assert account["versions"] == [here, here, other]
    assert account["delivered"] == {"delta": [account["recorded"], 0, None]}, ran.stderr
    assert (account["recorded"], account["lost"]) == (9, 0)
    assert "could not be drained" not in ran.stderr
    rows = open_table(tmp_path / "table").spans.dicts()
    tree = sorted((row["trace_id"], row["name"]) for row in rows)
    own = [(trace, name) for trace in account["own"] for name in ("rollout_trace", "score reward", "tool")]
    across = [(account["shared"], name) for name in ("remote tool", "remote tool", "rollout_trace")]
    assert tree == sorted(own + across)


def test_report_of_a_newer_node_is_read_by_an_older_driver(older: str) -> None:
    """Fields that the driver's version does not have are sent only if they say something."""
    fields = ray_nodes._fields_to_send(Report(3, 2, 1, {"full": 1}, {}, {}, {}, {}, "/spool", dict))
    older_driver = (
        f"from otel_rollout.account.report import Report; print(Report(**{fields!r}, count_steps=dict))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", older_driver],
        env={**os.environ, "PYTHONPATH": older},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "started=3, recorded=2, unfinished=1, dropped={'full': 1}" in ran.stdout


def test_report_of_a_node_with_a_later_version_is_read() -> None:
    """Its fields that this version does not have are left out."""
    sent = Report(3, 2, 1, {}, {}, {}, {}, {}, "/spool", dict)
    answer = ray_nodes._Answer({**ray_nodes._fields_to_send(sent), "later": 1}, {}, [], {})
    assert ray_nodes._report_in(answer) == sent


def test_spool_of_an_older_version_is_delivered_after_an_upgrade(tmp_path: Path, older: str) -> None:
    """The older forwarder has delivered a part of it to the table, and its writer was killed."""
    spool, table = tmp_path / "spool", tmp_path / "table"
    environment = {
        **os.environ,
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "OTEL_ROLLOUT_KEEP": "false",
        "TABLE": str(table),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.versions.programs.half_delivered"],
        env={**environment, "PYTHONPATH": older},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as recording:
        assert recording.stdin is not None
        assert recording.stdout is not None
        assert recording.stdout.readline().strip() == package_of(older)
        assert recording.stdout.readline() == "delivered\n"
        forwarder = wait_for(lambda: forwarder_of(spool), what="the older forwarder")
        os.kill(forwarder, signal.SIGSTOP)  # one that is killed would be started again
        recording.stdin.write("\n")
        recording.stdin.flush()
        assert recording.stdout.readline() == "recorded\n"
        recording.kill()
        os.kill(forwarder, signal.SIGKILL)
    wait_for(lambda: forwarder_of(spool) is None, what="the end of the older forwarder")
    assert len(open_table(table).trajectories) == 2

    forwarding = [sys.executable, "-m", "otel_rollout", "forward", "--spool", str(spool)]
    target = {"OTEL_TRACES_EXPORTER": "delta", "OTEL_ROLLOUT_DELTA_URI": str(table)}
    subprocess.run(forwarding, env={**environment, **target, "PYTHONPATH": THIS}, check=True, timeout=120)

    trajectories = open_table(table).trajectories.dicts()
    shown = {row["sample_index"]: (row["turns"], row["state"], row["reward"]) for row in trajectories}
    assert shown == {"0": (2, "ok", 0.0), "1": (2, "ok", 1.0), "2": (2, "ok", 2.0), "3": (1, "error", None)}
    assert len(open_table(table).spans) == 4 * 3 + 2


def forwarder_of(spool: Path) -> int | None:
    """Return the process id of the spool's forwarder."""
    listed = subprocess.run(
        ["ps", "-ww", "-e", "-o", "pid=", "-o", "args="], capture_output=True, text=True, check=True
    )
    found = [
        line
        for line in listed.stdout.splitlines()
        if "-m otel_rollout.forwarder" in line and str(spool) in line and "/bin/sh" not in line
    ]
    return int(found[0].split()[0]) if found else None
