"""Print where a run's traces can be seen: addresses, commands and searches."""

from __future__ import annotations

import json
import shlex
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from rich.console import Console

from otel_rollout.base import semconv
from otel_rollout_demo.console import from_here, installed_command, print_plain

_STEP: Final = semconv.short_name(semconv.STEP)
_EXPERIMENT: Final = semconv.short_name(semconv.EXPERIMENT_NAME)


def print_mlflow_pages(console: Console, uri: str, project_name: str, experiment_name: str) -> None:
    """Print MLflow's page of the traces, and how to find one step of the run.

    Args:
        console: where to print.
        uri: MLflow's tracking URI.
        project_name: name of MLflow's experiment.
        experiment_name: the run's name, a tag of its traces.
    """
    console.print()
    console.print("Look at them:", style="bold")
    if is_server(uri):
        address = shown = _without_credentials(uri).rstrip("/")
        experiment_id = _experiment_at(address, project_name)
    else:
        database = sqlite_path(uri)
        address = "http://127.0.0.1:5000"
        experiment_id = _experiment_in(database, project_name) if database else None
        shown = _shown(uri)
        print_plain(console, f"  {server_command(uri)}")
    page = f"{address}/#/experiments" + (f"/{experiment_id}/traces" if experiment_id else "")
    print_plain(console, f"  {page}")
    tags = {_STEP: "1", _EXPERIMENT: experiment_name}
    if experiment_id:
        console.print("One step of this run, in the browser (MLflow 3.16 or newer):", style="bold")
        print_plain(console, f"  {page}?{_as_query(tags)}")
    console.print("One step of this run, from Python:", style="bold")
    print_plain(console, f'  mlflow.set_tracking_uri("{shown}")')
    print_plain(console, f'  mlflow.set_experiment("{project_name}")')
    condition = " AND ".join(f"tags.{name} = '{value}'" for name, value in tags.items())
    print_plain(console, f'  mlflow.search_traces(filter_string="{condition}")')


def print_weave_pages(console: Console, project_name: str, experiment_name: str) -> None:
    """Print Weave's page of the traces, and how to filter it for one step of the run."""
    from otel_rollout_weave import WeaveSpanExporter

    exporter = WeaveSpanExporter()
    address = exporter.traces_url(project_name)
    exporter.shutdown()
    console.print()
    console.print("Look at them:", style="bold")
    print_plain(console, f"  {address or 'in the project ' + project_name}")
    console.print("One step of this run, as filters of that page:", style="bold")
    print_plain(console, f"  attributes.{_STEP} = 1, attributes.{_EXPERIMENT} = {experiment_name}")


def server_command(uri: str) -> str:
    """Return the command that serves a database of MLflow's; empty for the address of a server."""
    if is_server(uri):
        return ""
    return f"{installed_command('mlflow')} server --backend-store-uri {shlex.quote(_shown(uri))}"


def _shown(uri: str) -> str:
    """Return the URI of a database as it is printed: another one than SQLite's may contain a password."""
    database = sqlite_path(uri)
    return f"sqlite:///{from_here(database)}" if database else "<your database>"


def is_server(uri: str) -> bool:
    """Return whether a tracking URI is the address of an MLflow server."""
    return uri.startswith(("http://", "https://"))


def absolute_uri(uri: str) -> str:
    """Return a SQLite URI with an absolute path; any other URI unchanged.

    Another process opens the database, in another directory.
    """
    path = sqlite_path(uri)
    return uri if path is None else f"sqlite:///{path.absolute()}"


def sqlite_path(uri: str) -> Path | None:
    """Return the path in the URI of a SQLite database; None for any other URI."""
    prefix = "sqlite:///"
    return Path(uri.removeprefix(prefix)) if uri.startswith(prefix) else None


def _without_credentials(uri: str) -> str:
    """Remove the user name and password from a server's address before it is printed."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _as_query(tags: dict[str, str]) -> str:
    """Encode tags as the query of MLflow's list of traces: pairs, then parameters."""
    pairs = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in tags.items()]
    return urlencode([("tag", pair) for pair in pairs])


def _experiment_in(database: Path, project_name: str) -> str | None:
    """Read the experiment's id from MLflow's table.

    Importing MLflow's client for that would take 3 s.
    """
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute(
                "SELECT experiment_id FROM experiments WHERE name = ?", (project_name,)
            ).fetchone()
    except sqlite3.Error:
        return None
    return str(row[0]) if row else None


def _experiment_at(address: str, project_name: str) -> str | None:
    """Ask the MLflow server for the experiment's id; None if it does not answer.

    It may ask for credentials, which the demo does not have.
    """
    query = urlencode({"experiment_name": project_name})
    url = f"{address}/api/2.0/mlflow/experiments/get-by-name?{query}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - http or https, by is_server
            experiment_id = json.load(response)["experiment"]["experiment_id"]
    except (OSError, ValueError, KeyError):
        return None
    return str(experiment_id)
