"""Run ``otel-rollout demo``, a traced job from ``configure`` to ``shutdown``."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from otel_rollout import Report, configure, instrument, shutdown
from otel_rollout.base import semconv
from otel_rollout_demo import rollout_table
from otel_rollout_demo.console import print_plain
from otel_rollout_demo.driver import Batch, Cluster, Plan, RolloutError, schedule
from otel_rollout_demo.requirements import (
    require_mlflow_uri,
    require_packages,
    require_places,
    require_weave_login,
)
from otel_rollout_demo.results import BatchResult, print_totals, results_table
from otel_rollout_demo.where_to_look import (
    absolute_uri,
    is_server,
    print_mlflow_pages,
    print_weave_pages,
    server_command,
)

PROJECT_NAME: Final = "otel-rollout-demo"


class Backend(StrEnum):
    """Destination of the traces."""

    mlflow = "mlflow"
    weave = "weave"
    otlp = "otlp"
    spool = "spool"


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
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the backend's addresses, too.")] = False,
) -> None:
    """Run a small agentic-RL rollout on Ray and trace every trajectory."""
    console = Console()
    uri = absolute_uri(tracking_uri or "sqlite:///mlflow.db")
    _check_requirements(console, backend, uri, model)
    plan = Plan(steps=steps, samples=samples, n=n, workers=workers, seed=seed, model=model)
    experiment_name = f"{Path(model).name if model else 'scripted'}-{datetime.now():%Y%m%d-%H%M%S}"
    started = time.monotonic()
    exporters = _exporters(backend, uri)
    require_places(console, exporters)
    # Before Ray starts: its workers inherit the settings through the environment.
    configure(exporters=exporters, project_name=PROJECT_NAME, experiment_name=experiment_name)
    instrument()  # the server's and the sandbox's spans join the trajectories that call them
    results: list[BatchResult] = []
    exit_code = _run(console, plan, results)
    console.print(f"Delivering to {' and '.join(exporters)} …")  # from disk: the actors are killed
    report = shutdown(timeout=60)  # shows its progress
    # What is delivered is told below. At exit, a program without problems says no more after the commands.
    logging.getLogger("otel_rollout").setLevel(logging.WARNING)
    if results:
        console.print(results_table(results, report))
        print_totals(console, report, time.monotonic() - started)
        if not rollout_table.print_next(console, report, experiment_name, server_command(uri)) or verbose:
            _print_where_to_look(console, backend, uri, experiment_name)
    raise typer.Exit(exit_code or _exit_code(results, report))


def _exporters(backend: Backend, uri: str) -> dict[str, dict[str, str]]:
    """Return the options of the backend's exporter, and of the rollout table's if deltalake is installed."""
    exporters = {backend.value: {"tracking_uri": uri} if backend is Backend.mlflow else {}}
    if backend is not Backend.spool and (table := rollout_table.address()):
        exporters[rollout_table.EXPORTER] = {"uri": table}
    return exporters


def _check_requirements(console: Console, backend: Backend, uri: str, model: str | None) -> None:
    into_mlflow = backend is Backend.mlflow
    require_packages(console, model, needs_mlflow=into_mlflow and not is_server(uri))
    if backend is Backend.weave:
        require_weave_login(console)
    elif into_mlflow:
        require_mlflow_uri(console, uri)


def _run(console: Console, plan: Plan, results: list[BatchResult]) -> int:
    """Run the rollout on a local Ray, and return the exit code.

    It is 130 after Ctrl-C, 1 if Ray has failed.
    """
    try:
        with _cluster(console, plan) as cluster:
            _roll_out(console, cluster, plan, results)
    except RolloutError as error:
        print_plain(console, f"The rollout has failed: {error}")
        return 1
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted.[/] Ray is stopped; what was recorded until now is delivered.")
        return 130
    return 0


def _exit_code(results: list[BatchResult], report: Report) -> int:
    return int(bool(report.lost or report.undelivered or any(result.failed for result in results)))


def _cluster(console: Console, plan: Plan) -> Cluster:
    answers = f"the model {plan.model}" if plan.model else "a scripted model"
    console.print(f"Starting Ray: {plan.workers} agent-loop workers, 1 inference server with {answers} …")
    return Cluster(plan)


def _roll_out(console: Console, cluster: Cluster, plan: Plan, results: list[BatchResult]) -> None:
    """Run every batch.

    Results are appended as trajectories end, so that an interruption keeps them.
    """
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
    for trajectory in cluster.rollout(batch.rollouts):
        if isinstance(trajectory, RolloutError):
            result.failed += 1
            print_plain(progress.console, f"A trajectory failed: {trajectory}")
        else:
            result.rewards.append(trajectory.reward)
            unparsable = trajectory.output.unparsable_calls
            result.unparsable_calls += unparsable
            result.tool_errors += len(trajectory.output.errors) - unparsable
        progress.update(task, advance=1, reward=result.mean_reward)


def _print_where_to_look(console: Console, backend: Backend, uri: str, experiment_name: str) -> None:
    if backend is Backend.mlflow:
        print_mlflow_pages(console, uri, PROJECT_NAME, experiment_name)
    elif backend is Backend.weave:
        print_weave_pages(console, PROJECT_NAME, experiment_name)
    else:
        print_plain(
            console,
            f'One step of this run: {semconv.EXPERIMENT_NAME} = "{experiment_name}", {semconv.STEP} = 1',
        )
