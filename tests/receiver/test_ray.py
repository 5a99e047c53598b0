"""The address of a node's receiver reaches Ray workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.ray_start import run_program
from tests.receiver.conftest import PROGRAMS, ROOT
from tests.spool_reader import read_directory, tree


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
    done = run_program(command, env=environ, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "lost: 0" in done.stdout
    spans = read_directory(tmp_path)
    assert tree(spans) == {"rollout_trace": [{"agent": [{"turn": ["tool"]}, {"turn": ["tool"]}]}]}
    assert {found.attributes["rollout.sample_index"] for found in spans} == {7}
