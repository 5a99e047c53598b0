"""Receivers on Ray nodes: their addresses reach workers, and each serves its node."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.ray_start import run_program
from tests.receiver.conftest import PROGRAMS, ROOT
from tests.spool_reader import Recorded, read_directory, tree


def test_agent_of_a_ray_worker_joins_the_drivers_trajectory(tmp_path: Path) -> None:
    """An actor starts an agent in another process, whose spans lie in the driver's trace."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environ |= {
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path),
        "OTEL_ROLLOUT_RECEIVE": "true",
        "OTEL_ROLLOUT_KEEP": "true",
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "disabled",
    }
    command = [sys.executable, str(PROGRAMS / "ray_job.py"), str(PROGRAMS / "sdk_agent.py")]
    done = run_program(command, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "lost: 0" in done.stdout
    spans = read_directory(tmp_path)
    assert tree(spans) == {"rollout_trace": [{"agent": [{"turn": ["tool"]}, {"turn": ["tool"]}]}]}
    assert {found.attributes["rollout.sample_index"] for found in spans} == {7}


def test_each_node_has_a_receiver_that_comes_back(tmp_path: Path) -> None:
    """Agents join trajectories of their node; a kill of one receiver loses nothing acknowledged."""
    machines = {"TMPDIR": tmp_path / "here", "OTHER_TMPDIR": tmp_path / "other"}
    for directory in machines.values():
        directory.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environ |= {
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_RECEIVE": "true",
        "OTEL_ROLLOUT_KEEP": "true",
        "PYTHONPATH": str(ROOT),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": tempfile.gettempdir(),  # paths of its sockets must be short
        **{name: str(directory) for name, directory in machines.items()},
    }
    command = [sys.executable, "-m", "tests.receiver.programs.two_nodes", str(PROGRAMS / "sdk_agent.py")]
    done = run_program(command, env=environ, timeout=300)
    printed = re.search(r"^FOUND (.*)$", done.stdout, re.MULTILINE)
    assert printed, done.stdout + done.stderr[-3000:]
    found = json.loads(printed[1])
    assert len(set(found["endpoints"])) == len(found["nodes"]) == 2, "one receiver for each node"
    assert found["again"] == found["endpoints"][1], "the next receiver has the same address"
    assert len(set(found["killed"])) == 2
    assert found["lost"] == 0
    for index, directory in enumerate(machines.values()):
        spans = read_directory(directory)
        agents = {0: {0}, 1: {1, 2}}[index]
        for sample_index in agents:
            of_agent = [s for s in spans if _identity(s) == (3, sample_index)]
            assert tree(of_agent) == {"rollout_trace": [{"agent": [{"turn": ["tool"]}, {"turn": ["tool"]}]}]}
        sent = [s for s in spans if s.scope == "by hand"]
        assert {_identity(s) for s in sent} == {(4, index)}
        ids = {int.from_bytes(s.span.span_id, "big") for s in sent}
        assert ids == set(range(1, found["acknowledged"][index] + 1))


def _identity(span: Recorded) -> tuple[object, object]:
    return span.attributes["rollout.step"], span.attributes["rollout.sample_index"]
