"""Write the rollout table beside the backend, and ask it when the run has ended."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console

from otel_rollout import Report
from otel_rollout_demo.console import installed_command, print_plain

EXPORTER: Final = "delta"
_URI: Final = "OTEL_ROLLOUT_DELTA_URI"
_DIRECTORY: Final = "rollouts"
_COMMANDS: Final = (
    "groups --run latest --sort -reward_spread --limit 1",
    "list --run latest --tool-error --sort reward --limit 5",
    "steps --run latest",
)


def address() -> str | None:
    """Return the table's address: the variable's, else ``rollouts`` here; None without deltalake.

    The commands of ``otel-rollout`` look for a table at the same addresses.
    """
    if find_spec("deltalake") is None:
        return None
    return os.environ.get(_URI) or str(Path(_DIRECTORY).absolute())


def print_steps(console: Console, report: Report) -> None:
    """Print commands that ask the table, and the output of the last one; nothing without any row."""
    count = report.exporters.get(EXPORTER)
    if count is None or not count.delivered:
        return
    from otel_rollout.cli.table import steps

    program = installed_command("otel-rollout")
    console.print()
    console.print("Ask the rollout table:", style="bold")
    for command in _COMMANDS:
        print_plain(console, f"  {program} {command}")
    steps(run="latest")
