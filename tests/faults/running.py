"""Run a program in another process, after shell commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.job import ROOT

COMMAND = "from otel_rollout.cli import app; app()"
"""A program that runs the command ``otel-rollout``."""


class Ran(NamedTuple):
    """How a program ended, and its output."""

    code: int
    out: str
    err: str


def run(
    program: str,
    variables: dict[str, str] | None = None,
    *,
    shell: str = "",
    without: Sequence[str] = (),
    within: Sequence[str] = (),
    redirect: str = "",
    cwd: Path | None = None,
) -> Ran:
    """Run a program in another process, after shell commands."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'exporters'}", **(variables or {})}
    for name in without:
        environment.pop(name, None)
    command = [*within, "/bin/sh", "-c", f'{shell} exec "$@" {redirect}', "sh", sys.executable, "-c", program]
    ran = subprocess.run(
        command, env=environment, capture_output=True, timeout=120, check=False, cwd=cwd or ROOT
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
