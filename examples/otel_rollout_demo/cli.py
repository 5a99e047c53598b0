"""``otel-rollout demo``: a traced training job from ``configure`` to ``shutdown``."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sqlite3
import sys
import time
import urllib.request
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final
from urllib.parse import quote, urlencode, urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from otel_rollout import Report, StepKey, configure, instrument, shutdown
from otel_rollout_demo.driver import Batch, Cluster, Plan, RolloutError, schedule

PROJECT_NAME: Final = "otel-rollout-demo"


class Backend(str, Enum):
    """Where the traces go."""

    mlflow = "mlflow"
    weave = "weave"
    otlp = "otlp"
    spool = "spool"


@dataclass
class BatchResult:
    """What the trainer knows of a batch."""

    step: int
    validate: bool
    rewards: list[float] = field(default_factory=list)
    errors: int = 0  # reported by tools and the parser, within trajectories
    failed: int = 0  # trajectories that raised

    @property
    def title(self) -> str:
        """The row's name in the table."""
        return "validation" if self.validate else f"step {self.step}"


def demo(
    backend: Annotated[
        Backend,
        typer.Option(
            help="Where the traces go; otlp: a Collector (OTEL_EXPORTER_OTLP_*); spool: nowhere, they stay "
            "on disk for a Collector that reads them there."
        ),
    ] = Backend.mlflow,
    tracking_uri: Annotated[
        str,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            help="An MLflow server (http://…) or database. Default: sqlite, mlflow.db in this directory.",
            show_default=False,
        ),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 3,
    samples: Annotated[int, typer.Option(min=1, help="Prompts per step.")] = 4,
    n: Annotated[int, typer.Option("--n", min=1, help="Trajectories per prompt.")] = 4,
    workers: Annotated[int, typer.Option(min=1, help="Agent-loop workers (Ray actors).")] = 2,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    model: Annotated[
        str | None,
        typer.Option(help="A causal LM: path or Hugging Face name. Default: scripted.", show_default=False),
    ] = None,
) -> None:
    """Run a small agentic-RL rollout on Ray and trace every trajectory."""
    console = Console()
    uri = _absolute(tracking_uri or "sqlite:///mlflow.db")
    into_mlflow = backend is Backend.mlflow
    _require_packages(console, model, needs_mlflow=into_mlflow and not _is_server(uri))
    if backend is Backend.weave:
        _require_login(console)
    elif into_mlflow:
        _require_usable(console, uri)
    plan = Plan(steps=steps, samples=samples, n=n, workers=workers, seed=seed, model=model)
    experiment_name = f"{Path(model).name if model else 'scripted'}-{datetime.now():%Y%m%d-%H%M%S}"
    began = time.monotonic()

    # Before Ray starts: its workers inherit the settings through the environment.
    configure(
        exporters={backend.value: {"tracking_uri": uri} if into_mlflow else {}},
        project_name=PROJECT_NAME,
        experiment_name=experiment_name,
    )
    instrument()  # the server's and the sandbox's spans join the trajectories that call them
    results: list[BatchResult] = []
    interrupted = broken = False
    try:
        with _cluster(console, plan) as cluster:
            _roll_out(console, cluster, plan, results)
    except RolloutError as error:
        broken = True
        _print_plain(console, f"The rollout has failed: {error}")
    except KeyboardInterrupt:
        interrupted = True
        console.print("[yellow]Interrupted.[/] Ray is stopped; what was recorded until now is delivered.")
    # After the actors were killed: what they recorded is on disk, and is delivered from there.
    console.print(f"Delivering to {backend.value} …")
    report = shutdown(timeout=60)  # shows how far it is

    if not results:
        raise typer.Exit(130 if interrupted else 1)
    console.print(_table(results, report))
    _print_totals(console, report, time.monotonic() - began)
    if into_mlflow:
        _print_where_to_look(console, uri, experiment_name)
    elif backend is Backend.weave:
        _print_where_to_look_in_weave(console, experiment_name)
    else:
        _print_plain(
            console, f'One step of this run: rollout.experiment_name = "{experiment_name}", rollout.step = 1'
        )
    if interrupted:
        raise typer.Exit(130)
    if broken or report.lost or report.undelivered or any(result.failed for result in results):
        raise typer.Exit(1)


def _require_packages(console: Console, model: str | None, needs_mlflow: bool) -> None:
    needed = ["ray", "transformers", "jinja2"]
    needed += ["torch"] if model else []
    needed += ["mlflow"] if needs_mlflow else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = "demo,model" if model else "demo"
        console.print(f"The demo needs {', '.join(missing)}: pip install 'otel-rollout\\[{extras}]'")
        raise typer.Exit(2)


def _require_usable(console: Console, uri: str) -> None:
    """Say before anything is started what is wrong with MLflow's address; it would be said at the end."""
    from otel_rollout_mlflow import MlflowSpanExporter

    try:
        MlflowSpanExporter(tracking_uri=uri).shutdown()
    except ValueError as error:
        _print_plain(console, str(error))
        raise typer.Exit(2) from None


def _require_login(console: Console) -> None:
    """Say before anything is started what Weave needs; it would be said at the end otherwise."""
    from otel_rollout_weave import WeaveSpanExporter

    try:
        exporter = WeaveSpanExporter()
        problem = exporter.check()
        exporter.shutdown()
    except ValueError as error:
        _print_plain(console, str(error))
        raise typer.Exit(2) from None
    if problem is not None:
        _print_plain(console, problem.message)
        raise typer.Exit(2)


def _absolute(uri: str) -> str:
    """A SQLite path made absolute, since another process is to open it; any other URI as it is."""
    path = _sqlite_path(uri)
    return uri if path is None else f"sqlite:///{path.absolute()}"


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _sqlite_path(uri: str) -> Path | None:
    prefix = "sqlite:///"
    return Path(uri.removeprefix(prefix)) if uri.startswith(prefix) else None


def _cluster(console: Console, plan: Plan) -> Cluster:
    answers = f"the model {plan.model}" if plan.model else "a scripted model"
    console.print(f"Starting Ray: {plan.workers} agent-loop workers, 1 inference server with {answers} …")
    return Cluster(plan)


def _roll_out(console: Console, cluster: Cluster, plan: Plan, results: list[BatchResult]) -> None:
    """Run every batch, appending to ``results`` as it goes, so that an interruption keeps them."""
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("trajectories"),
        TextColumn("mean reward {task.fields[reward]}"),
    )
    with Progress(*columns, console=console) as progress:
        for batch in schedule(plan):
            results.append(BatchResult(batch.step, batch.validate))
            _roll_out_batch(cluster, batch, results[-1], progress)


def _roll_out_batch(cluster: Cluster, batch: Batch, result: BatchResult, progress: Progress) -> None:
    cluster.update_weights(batch.rollouts[0].policy_version)
    task = progress.add_task(result.title, total=len(batch.rollouts), reward="–")
    for ended in cluster.rollout(batch.rollouts):
        if isinstance(ended, RolloutError):
            result.failed += 1
            _print_plain(progress.console, f"A trajectory failed: {ended}")
        else:
            result.rewards.append(ended.reward)
            result.errors += len(ended.output.errors)
        progress.update(task, advance=1, reward=_mean(result.rewards))


def _mean(rewards: list[float]) -> str:
    return f"{fmean(rewards):.2f}" if rewards else "–"


def _table(results: list[BatchResult], report: Report) -> Table:
    table = Table(title="Trajectories, and their spans", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    failures = ["failed"] if any(result.failed for result in results) else []
    for heading in ("trajectories", *failures, "mean reward", "tool errors", "recorded", "delivered"):
        table.add_column(heading, justify="right")
    for result in results:
        count = report.by_step.get(StepKey(str(result.step), result.validate))
        table.add_row(
            result.title,
            str(len(result.rewards) + result.failed),
            *([str(result.failed)] if failures else []),
            _mean(result.rewards),
            str(result.errors),
            str(count.recorded if count else 0),
            str(count.delivered if count else 0),
        )
    return table


def _print_totals(console: Console, report: Report, seconds: float) -> None:
    parts = [f"{report.recorded} spans recorded in {seconds:.0f} s"]
    for name, exporter in report.exporters.items():
        parts.append(f"{exporter.delivered} delivered to {name}")
        if exporter.rejected:
            parts.append(f"[yellow]{exporter.rejected} rejected[/]")
        if exporter.pending:
            parts.append(f"[yellow]{exporter.pending} waiting on disk[/]")
    parts.extend(f"[yellow]{number} dropped ({reason})[/]" for reason, number in report.dropped.items())
    parts.append(f"[bold {'red' if report.lost else 'green'}]lost: {report.lost}[/]")
    console.print(", ".join(parts), soft_wrap=True, highlight=False)
    for name, exporter in report.exporters.items():
        if exporter.problem:
            _print_plain(console, f"{name}: {exporter.problem}")
    if any(exporter.pending for exporter in report.exporters.values()):
        _print_plain(console, f"Nothing is lost: pending spans are kept on disk in {report.directory}")


def _print_where_to_look(console: Console, uri: str, experiment_name: str) -> None:
    console.print()
    console.print("Look at them:", style="bold")
    # The lines below are there to be copied: neither wrapped nor marked up.
    if _is_server(uri):
        address = shown = _without_credentials(uri).rstrip("/")
        experiment_id = _experiment_at(address)
    else:
        database = _sqlite_path(uri)
        address = "http://127.0.0.1:5000"
        experiment_id = _experiment_in(database) if database else None
        shown = uri if database else "<your database>"  # which may hold a password
        _print_plain(console, f"  {_mlflow_command()} server --backend-store-uri {shown} --port 5000")
    page = f"{address}/#/experiments" + (f"/{experiment_id}/traces" if experiment_id else "")
    _print_plain(console, f"  {page}")
    tags = {"step": "1", "experiment_name": experiment_name}
    if experiment_id:
        console.print("One step of this run, in the browser (MLflow 3.16 or newer):", style="bold")
        _print_plain(console, f"  {page}?{_as_query(tags)}")
    console.print("One step of this run, from Python:", style="bold")
    _print_plain(console, f'  mlflow.set_tracking_uri("{shown}")')
    _print_plain(console, f'  mlflow.set_experiment("{PROJECT_NAME}")')
    condition = " AND ".join(f"tags.{name} = '{value}'" for name, value in tags.items())
    _print_plain(console, f'  mlflow.search_traces(filter_string="{condition}")')


def _without_credentials(uri: str) -> str:
    """Drop the user name and password that a server's address may hold: it is printed."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _as_query(tags: dict[str, str]) -> str:
    """Encode tags as MLflow's list of traces reads them from its address: each pair, then each parameter."""
    pairs = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in tags.items()]
    return urlencode([("tag", pair) for pair in pairs])


def _print_where_to_look_in_weave(console: Console, experiment_name: str) -> None:
    from otel_rollout_weave import WeaveSpanExporter

    exporter = WeaveSpanExporter()
    address = exporter.traces_url(PROJECT_NAME)
    exporter.shutdown()
    console.print()
    console.print("Look at them:", style="bold")
    _print_plain(console, f"  {address or 'in the project ' + PROJECT_NAME}")
    console.print("One step of this run, as filters of that page:", style="bold")
    _print_plain(console, f"  attributes.step = 1, attributes.experiment_name = {experiment_name}")


def _print_plain(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _mlflow_command() -> str:
    """``mlflow``, or its full path where it is installed beside this Python but not on the PATH."""
    beside = Path(sys.executable).with_name("mlflow")
    found = shutil.which("mlflow")
    if beside.exists() and not (found and Path(found).samefile(beside)):
        return str(beside)
    return "mlflow"


def _experiment_in(database: Path) -> str | None:
    """The experiment's id, straight from MLflow's table: its client takes 3 s to import."""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute(
                "SELECT experiment_id FROM experiments WHERE name = ?", (PROJECT_NAME,)
            ).fetchone()
    except sqlite3.Error:
        return None
    return str(row[0]) if row else None


def _experiment_at(address: str) -> str | None:
    """The experiment's id, asked of the MLflow server; None where it does not say (credentials?)."""
    query = urlencode({"experiment_name": PROJECT_NAME})
    url = f"{address}/api/2.0/mlflow/experiments/get-by-name?{query}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - http or https, by _is_server
            experiment_id = json.load(response)["experiment"]["experiment_id"]
    except (OSError, ValueError, KeyError):
        return None
    return str(experiment_id)
