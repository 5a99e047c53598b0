"""Commands, one function each. What they do lies in the packages they call."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from otel_rollout import settings, spool
from otel_rollout.deliver import drain
from otel_rollout.deliver.report import Report
from otel_rollout.version import VERSION
from otel_rollout_demo.cli import demo

app = typer.Typer(
    help="See every trajectory of an agentic-RL rollout.", no_args_is_help=True, add_completion=False
)
SpoolOption = Annotated[
    Path | None,
    typer.Option(help="Spool, run or node directory. [default: OTEL_ROLLOUT_SPOOL_DIR, else the usual one]"),
]


app.command()(demo)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """See every trajectory of an agentic-RL rollout."""
    if version:
        typer.echo(VERSION)
        raise typer.Exit


@app.command()
def status(
    place: SpoolOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run, not only the latest.")] = False,
) -> None:
    """Show what was recorded on this machine and what of it was delivered."""
    configured, _ = settings.from_environment(os.environ)
    node_dirs = _node_directories(place or configured.spool_dir)
    reports = [_report(node_dir, configured) for node_dir in (node_dirs if all_runs else node_dirs[-1:])]
    if json:
        typer.echo(orjson.dumps([_as_json(report) for report in reports], option=orjson.OPT_INDENT_2))
    else:
        for report in reports:
            _show(Console(), report)


@app.command()
def forward(
    place: SpoolOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Exporters, comma separated. [default: the run's, as this environment sets them up]"
        ),
    ] = None,
) -> None:
    """Deliver what lies on disk, and return when it is delivered."""
    from otel_rollout.deliver.election import Election
    from otel_rollout.deliver.forwarder import forward as forward_directory

    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    configured, _ = settings.from_environment(os.environ)
    pending = False
    for node_dir in _node_directories(place or configured.spool_dir):
        chosen = _with_exporters_of(node_dir, configured, to)
        election = Election(node_dir)
        if election.win():
            forward_directory(node_dir, chosen, election)
        else:
            typer.echo(f"{node_dir} has a forwarder that is at work")
        election.close()
        report = drain.report(node_dir, chosen)
        pending |= any(count.pending for count in report.exporters.values())
        typer.echo(report.summary())
    if pending:
        raise typer.Exit(1)


@app.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(help="Address of the Ray cluster. [default: this machine's]", show_default=False),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Check every node of a Ray cluster too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what stands between a program and its traces, here and on a cluster's nodes."""
    from otel_rollout import doctor as examination

    diagnosis = examination.examine((address or "auto") if ray or address else None)
    if json:
        typer.echo(orjson.dumps(diagnosis.as_json(), option=orjson.OPT_INDENT_2))
    else:
        examination.show(diagnosis, Console())
    raise typer.Exit(diagnosis.exit_status)


def _node_directories(place: Path) -> list[Path]:
    found = spool.node_directories(place)
    if not found:
        typer.echo(
            f"Nothing was recorded in {place}. If it was elsewhere, name the directory with --place or "
            "OTEL_ROLLOUT_SPOOL_DIR.",
            err=True,
        )
        raise typer.Exit(1)
    return found


def _with_exporters_of(
    node_dir: Path, configured: settings.Settings, to: str | None = None
) -> settings.Settings:
    """The settings with the exporters of a run, or with those named instead."""
    manifest = spool.read_manifest(node_dir)
    names = to.split(",") if to else manifest.exporters if manifest else configured.exporters
    chosen = {name.strip(): configured.exporters.get(name.strip(), {}) for name in names}
    return dataclasses.replace(configured, exporters=chosen)


def _report(node_dir: Path, configured: settings.Settings) -> Report:
    return drain.report(node_dir, _with_exporters_of(node_dir, configured))


def _as_json(report: Report) -> dict[str, object]:
    return {
        "place": report.place,
        "started": report.started,
        "recorded": report.recorded,
        "open": report.open,
        "unfinished": report.unfinished,
        "dropped": dict(report.dropped),
        "exporters": {name: dataclasses.asdict(count) for name, count in report.exporters.items()},
        "lost": report.lost,
        "steps": [{**key._asdict(), **dataclasses.asdict(count)} for key, count in report.by_step.items()],
    }


def _show(console: Console, report: Report) -> None:
    console.print(report.place, style="bold", soft_wrap=True)
    dropped = sum(report.dropped.values())
    console.print(
        f"started {report.started} = recorded {report.recorded} + dropped {dropped} + open {report.open}"
        f" + unfinished {report.unfinished}"
    )
    for reason, number in report.dropped.items():
        console.print(f"dropped because of {reason}: {number}")
    table = Table(caption="recorded = delivered + rejected + pending + lost", caption_justify="left")
    table.add_column("exporter", no_wrap=True)
    for heading in ("recorded", "delivered", "rejected", "pending", "lost"):
        table.add_column(heading, justify="right")
    for name, count in report.exporters.items():
        numbers = (count.delivered, count.rejected, count.pending, count.lost_of(report.recorded))
        table.add_row(name, str(report.recorded), *map(str, numbers))
    console.print(table)
    for name, count in report.exporters.items():
        if count.problem:
            console.print(f"{name}: {count.problem}", markup=False, soft_wrap=True)
