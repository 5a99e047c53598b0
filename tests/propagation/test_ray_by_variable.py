"""A program on Ray that only variables trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.spool_reader import read_directory

HOOK = {"RAY_RUNTIME_ENV_HOOK": "otel_rollout.ray.runtime_env_hook"}


@pytest.mark.parametrize(
    ("hook", "traces"), [(HOOK, {5: 8}), ({}, {1: 40})], ids=["with the hook", "without the hook"]
)
def test_trajectories_are_whole_with_the_hook_alone(
    hook: dict[str, str], traces: dict[int, int], tmp_path: Path
) -> None:
    """Eight trajectories of four operations in workers are eight traces; without the hook they are forty."""
    command = [sys.executable, "-m", "tests.propagation.programs.two_turns_on_ray"]
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "spool", "RAY_AUTH_MODE": "disabled", **hook}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert ran.returncode == 0, ran.stderr
    spans = Counter(span.span.trace_id for span in read_directory(tmp_path / "spool"))
    assert Counter(spans.values()) == traces
