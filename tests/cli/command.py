"""Run the command ``otel-rollout``, in a process of its own or in this one."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from otel_rollout.cli import app

COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
ON_A_TERMINAL = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from otel_rollout.cli import app; app()",
]
"""The command with Ctrl-C enabled: children of a background shell ignore it."""


def run(*arguments: object, code: int = 0) -> str:
    """Run the command and return its output; fail unless it exits with ``code``."""
    ran = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def run_here(*arguments: object, code: int = 0) -> str:
    """Run the command in this process, which costs less, and return its output."""
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert ran.exit_code == code, ran.output
    return ran.output
