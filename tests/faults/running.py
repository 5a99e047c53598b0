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
    program: str | Sequence[str],
    variables: dict[str, str] | None = None,
    *,
    shell: str = "",
    without: Sequence[str] = (),
    within: Sequence[str] = (),
    redirect: str = "",
    cwd: Path | None = None,
) -> Ran:
    """Run a program in another process, after shell commands.

    Args:
        program: code, or a module of tests/programs and its arguments.
        variables: variables to add to this process's environment.
        shell: commands to run before.
        without: variables to remove from the environment.
        within: command that runs the shell.
        redirect: the shell's redirections of the program.
        cwd: working directory.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'exporters'}", **(variables or {})}
    for name in without:
        environment.pop(name, None)
    if isinstance(program, str):
        python = [sys.executable, "-c", program]
    else:
        python = [sys.executable, "-m", f"tests.programs.{program[0]}", *program[1:]]
    command = [*within, "/bin/sh", "-c", f'{shell} exec "$@" {redirect}', "sh", *python]
    ran = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False, cwd=cwd)
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
