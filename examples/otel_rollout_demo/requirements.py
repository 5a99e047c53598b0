"""Check the demo's packages, credentials, addresses and places on disk before it starts anything."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer
from rich.console import Console

from otel_rollout import settings_reader
from otel_rollout.doctor import filesystem
from otel_rollout_demo import rollout_table
from otel_rollout_demo.console import print_plain
from otel_rollout_demo.where_to_look import sqlite_path


def require_packages(console: Console, model: str | None, needs_mlflow: bool) -> None:
    """Exit if a package is missing or cannot run here, and print what to do.

    Args:
        console: where messages are printed.
        model: a causal language model, which needs PyTorch; None for the scripted model.
        needs_mlflow: whether the traces go to a database, which MLflow's own code writes.
    """
    needed = ["ray", "transformers", "jinja2"]
    needed += ["torch"] if model else []
    needed += ["mlflow"] if needs_mlflow else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = "demo,model" if model else "demo"
        console.print(f"The demo needs {', '.join(missing)}: pip install 'otel-rollout\\[{extras}]'")
        raise typer.Exit(2)
    if " " in sys.executable:  # Ray's workers are started by an unquoted line of shell
        message = "Ray starts no workers below a path with blanks; install otel-rollout in another folder"
        print_plain(console, f"{message}: {sys.executable}")
        raise typer.Exit(2)


def require_mlflow_uri(console: Console, uri: str) -> None:
    """Exit if MLflow's exporter refuses the tracking URI."""
    from otel_rollout_mlflow import MlflowSpanExporter

    try:
        MlflowSpanExporter(tracking_uri=uri).shutdown()
    except ValueError as error:
        print_plain(console, str(error))
        raise typer.Exit(2) from None


def require_places(console: Console, exporters: Mapping[str, Mapping[str, str]]) -> None:
    """Exit if the spool, the database or the rollout table is a place on disk that cannot be used.

    Args:
        console: where messages are printed.
        exporters: name → options.
    """
    configured, _ = settings_reader.from_environment(os.environ)
    database = sqlite_path(exporters.get("mlflow", {}).get("tracking_uri", ""))
    table = exporters.get(rollout_table.EXPORTER, {}).get("uri", "")
    problem = (
        filesystem.problem_of(configured.spool_dir)
        or (database and _problem_of_database(database))
        or (table and "://" not in table and _problem_of_table(table))
    )
    if problem:
        print_plain(console, problem)
        raise typer.Exit(2)


def _problem_of_database(path: Path) -> str | None:
    try:
        if os.path.lexists(path):
            path.open("r+b").close()
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    return None


def _problem_of_table(uri: str) -> str | None:
    from otel_rollout_delta import DeltaSpanExporter

    failure = DeltaSpanExporter(uri=uri).check()
    return failure.message if failure else None


def require_weave_login(console: Console) -> None:
    """Exit if Weave refuses the credentials, or there are none."""
    from otel_rollout_weave import WeaveSpanExporter

    try:
        exporter = WeaveSpanExporter()
        problem = exporter.check()
        exporter.shutdown()
    except ValueError as error:
        print_plain(console, str(error))
        raise typer.Exit(2) from None
    if problem is not None:
        print_plain(console, problem.message)
        raise typer.Exit(2)
