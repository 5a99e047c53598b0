"""Write the rollout table beside the backend, and ask it when the run has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console

from otel_rollout import Report
from otel_rollout_demo.console import installed_command, print_plain

EXPORTER: Final = "delta"
_URI: Final = "OTEL_ROLLOUT_DELTA_URI"
_DIRECTORY: Final = "rollouts"
_FURTHER: Final = (
    ("view", "all of it in a browser"),
    ("report", "what happened, step by step"),
)


def address() -> str | None:
    """Return the table's address: the variable's, else ``rollouts`` here; None without deltalake.

    The commands of ``otel-rollout`` look for a table at the same addresses.
    """
    if find_spec("deltalake") is None:
        return None
    return os.environ.get(_URI) or str(Path(_DIRECTORY).absolute())


def print_next(console: Console, report: Report, experiment_name: str, mlflow_server: str = "") -> bool:
    """Print what a person types next; return False if the table has no row to ask for.

    Args:
        console: where to print.
        report: the run's delivery report.
        experiment_name: the run's name.
        mlflow_server: the command that shows what MLflow has; empty if a server runs already.
    """
    count = report.exporters.get(EXPORTER)
    if count is None or not count.delivered:
        return False
    program = installed_command("otel-rollout")
    path = _worth_a_look(experiment_name)
    commands = [*_FURTHER, *([(f"show {path}", "one trajectory, turn by turn")] if path else [])]
    console.print()
    console.print("Look at them:", style="bold")
    _print_commands(console, [(f"{program} {command}", purpose) for command, purpose in commands])
    if mlflow_server and (into_mlflow := report.exporters.get("mlflow")) and into_mlflow.delivered:
        _print_commands(console, [(mlflow_server, "the same in MLflow")])
    return True


def _print_commands(console: Console, commands: Sequence[tuple[str, str]]) -> None:
    width, purposes = (max(map(len, column)) for column in zip(*commands, strict=True))
    for command, purpose in commands:
        if width + purposes + 6 <= console.width:
            print_plain(console, f"  {command.ljust(width)}  # {purpose}")
        else:  # the command stays whole: a person pastes it
            print_plain(console, f"  # {purpose}\n  {command}")


def _worth_a_look(experiment_name: str) -> str | None:
    """Return the trajectory with the most tool errors; of several, the one that gave up first."""
    from otel_rollout.rollout_table import open_table

    of_run = open_table(address() or "").trajectories.filter(experiment=experiment_name, validate=False)
    rows = of_run.sort("-tool_errors", "reward", "turns", "path").limit(1).dicts()
    return rows[0]["path"] if rows else None
