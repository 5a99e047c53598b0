"""Find a command's runs, and the settings with which to deliver each run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import typer

from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from otel_rollout.cli.replay import is_replay
from otel_rollout.settings import Settings
from otel_rollout.spool import layout


def node_directories(directory: Path) -> list[Path]:
    """Return the node directories in a spool, run or node directory, the newest last.

    Raises:
        typer.Exit: there is no node directory, or the directory cannot be read.
    """
    require_readable(directory)
    found = layout.node_directories(directory)
    if not found:
        typer.echo(
            f"Nothing was recorded in {directory}. If the run has another spool directory, name it with "
            "--spool or OTEL_ROLLOUT_SPOOL_DIR.",
            err=True,
        )
        raise typer.Exit(1)
    return found


def require_readable(directory: Path) -> None:
    """End the command if a spool, run or node directory that is there cannot be read.

    Raises:
        typer.Exit: it cannot.
    """
    if problem := layout.problem_of(directory):
        typer.echo(problem, err=True)
        raise typer.Exit(2)


def exporter_names(to: str) -> list[str]:
    """Split the value of the option ``--to``."""
    return [name.strip() for name in to.split(",") if name.strip()]


def settings_of_run(node_dir: Path, configured: Settings, to: str | None = None) -> Settings:
    """Return settings with a run's project, and with its exporters or those of ``to``.

    Of a replay, they have those of its exporters that ``to`` names: perhaps none.
    """
    manifest = layout.read_manifest(node_dir)
    names: Iterable[str] = manifest.exporters if manifest else configured.exporters
    if manifest:
        configured = dataclasses.replace(configured, project_name=manifest.project_name)
    if to:
        chosen = exporter_names(to)
        names = [name for name in names if name in chosen] if manifest and is_replay(manifest) else chosen
    return with_exporters(configured, names)


def with_exporters(configured: Settings, names: Iterable[str]) -> Settings:
    """Return ``configured`` with the options of the named exporters only."""
    exporters = {name: configured.exporters.get(name, {}) for name in names}
    return dataclasses.replace(configured, exporters=exporters)


def report_of_run(node_dir: Path, configured: Settings) -> Report:
    """Return the delivery report of a node directory for its run's exporters."""
    return node_report.report(node_dir, settings_of_run(node_dir, configured))
