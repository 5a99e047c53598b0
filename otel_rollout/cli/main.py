"""The commands, one function each; the packages they call do the work."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import logging
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterable
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from otel_rollout import configuration, settings
from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from otel_rollout.base.version import VERSION
from otel_rollout.cli import report_table, viewer
from otel_rollout.exporting import registry
from otel_rollout.spool import layout
from otel_rollout_demo.cli import demo

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(typer.Typer):
    """The commands, with one line instead of a traceback where their output cannot be written."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().__call__(*args, **kwargs)
        except OSError as error:
            if error.errno not in _NO_ROOM or error.filename is not None:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again at its exit
            print(f"The output cannot be written: {error.strerror}", file=sys.stderr)
            sys.exit(2)


app = _Commands(
    help="See every trajectory of an agentic-RL rollout.", no_args_is_help=True, add_completion=False
)


def _names(to: str) -> list[str]:
    return [name.strip() for name in to.split(",") if name.strip()]


def _installed(to: str | None) -> str | None:
    """What ``--to`` names: with a name that is misspelt there is nothing to begin with."""
    if to is not None and not _names(to):
        raise typer.BadParameter("names no exporter")
    try:
        registry.check_names(_names(to) if to else [])
    except settings.SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    return to


ToOption = Annotated[
    str | None,
    typer.Option(
        help="Exporters, comma separated. \\[default: the run's, as this environment sets them up]",
        callback=_installed,
    ),
]
SpoolOption = Annotated[
    Path | None,
    typer.Option(
        "--spool",
        help="Spool, run or node directory. \\[default: OTEL_ROLLOUT_SPOOL_DIR, or otel-rollout-<uid> in the "
        "temporary directory]",
    ),
]


app.command()(demo)
app.command(context_settings=viewer.NAMES)(viewer.show)
app.command(context_settings=viewer.NAMES)(viewer.compare)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """See every trajectory of an agentic-RL rollout."""
    for stream in (sys.stdout, sys.stderr):  # the name of a file may hold bytes that are no text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS", "").strip("0") == "":  # a terminal of no width, as some build servers say
        os.environ.pop("COLUMNS", None)
    if version:
        typer.echo(VERSION)
        raise typer.Exit
    if context.invoked_subcommand not in (None, "doctor"):  # which makes a finding of it
        _, problems = configuration.from_environment(os.environ)
        for sentence in (*problems, *configuration.unknown_variables(os.environ)):
            typer.echo(sentence, err=True)


@app.command()
def status(
    place: SpoolOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run, not only the latest.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show counts per step too; reads all pending spans.")
    ] = False,
) -> None:
    """Show how many spans this machine has recorded, and how many of them were delivered."""
    if watch and json:
        raise typer.BadParameter("--watch is for people; a program calls `status --json` again and again.")
    configured, _ = configuration.from_environment(os.environ)

    def reports() -> list[Report]:
        node_dirs = _node_directories(place or configured.spool_dir)
        return [_report(node_dir, configured) for node_dir in (node_dirs if all_runs else node_dirs[-1:])]

    if watch:
        report_table.watch(reports, steps)
        return
    found: list[Report] = []
    try:
        found = reports()
    finally:  # a program that reads JSON gets some in any case
        if json:
            typer.echo(to_json([_as_json(report) for report in found], indent=2))
    if not json:
        report_table.show(found, Console(), steps)
    if any(report.problem for report in found):
        raise typer.Exit(1)


@app.command()
def forward(
    place: SpoolOption = None,
    to: ToOption = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Run as a service: deliver present and future runs until SIGTERM."),
    ] = False,
) -> None:
    """Deliver spans that are on disk, and return when all are delivered."""
    from otel_rollout.cli import forwarding

    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger("otel_rollout.forwarder").setLevel(logging.INFO)
    configured, _ = configuration.from_environment(os.environ)
    if watch:
        _serve(place or configured.spool_dir, configured, to)
        return
    unfinished = False
    for node_dir in _node_directories(place or configured.spool_dir):
        chosen = _with_exporters_of(node_dir, configured, to)
        waits = f"Another forwarder is at work on {node_dir}; waiting until it has delivered what lies there"
        try:
            with report_table.progress(functools.partial(node_report.report, node_dir, chosen)):
                forwarding.forward_or_wait(node_dir, chosen, functools.partial(typer.echo, waits))
        except (OSError, sqlite3.Error) as error:
            typer.echo(f"cannot forward {node_dir}: {error}", err=True)
            unfinished = True
            continue
        report = node_report.report(node_dir, chosen)
        unfinished |= report.problem is not None or any(c.pending for c in report.exporters.values())
        typer.echo(report.summary())
    if unfinished:
        raise typer.Exit(1)


def _serve(place: Path, configured: settings.Settings, to: str | None) -> None:
    from otel_rollout.cli.forwarding import Service

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    forwarding = Service(place, lambda node_dir: _with_exporters_of(node_dir, configured, to))
    forwarding.run(stop)
    for report in forwarding.finish(configured.shutdown_timeout):
        typer.echo(f"{report.place}: {report.summary()}")


@app.command()
def replay(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files of OTLP JSON Lines (also .zst and rejected.*.jsonl) or directories of them."
        ),
    ],
    to: Annotated[str, typer.Option(help="Exporters, comma separated.", callback=_installed)],
) -> None:
    """Deliver files again, or to another target: archived segments, a copied spool, any OTLP JSON Lines.

    A backend that identifies spans by id, as MLflow does, stores a span once however often it is sent.
    """
    from otel_rollout.cli import forwarding

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    as_they_are = {"OTEL_ROLLOUT_KEEP": "", "OTEL_ROLLOUT_OUTCOME_KEEP": ""}
    configured, _ = configuration.from_environment({**os.environ, **as_they_are})
    chosen = _chosen(configured, _names(to))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was begun is removed
    try:
        spool_dir, names, limit = configured.spool_dir, list(chosen.exporters), configured.spool_limit
        with forwarding.as_node_directory(paths, spool_dir, names, limit) as node_dir:
            with report_table.progress(functools.partial(node_report.report, node_dir, chosen)):
                forwarding.forward_directory(node_dir, chosen)
            report = node_report.report(node_dir, chosen)
    except (OSError, ValueError) as error:
        typer.echo(f"cannot replay: {error}", err=True)
        raise typer.Exit(2) from error
    for name, count in report.exporters.items():
        typer.echo(
            f"{name}: {count.delivered} lines delivered, {count.rejected} rejected, {count.pending} pending"
        )
        if count.problem:
            typer.echo(count.problem, err=True)
    if any(count.pending or count.rejected for count in report.exporters.values()):
        typer.echo(
            f"The rest is kept on disk. Deliver it with: otel-rollout forward --spool {report.place}",
            err=True,
        )
        raise typer.Exit(1)


@app.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(help="Address of the Ray cluster. \\[default: this machine's]", show_default=False),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Check every node of a Ray cluster too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check why traces do not arrive: variables, packages, the spool, targets; on a cluster's nodes too."""
    from otel_rollout import doctor as examination

    diagnosis = examination.examine((address or "auto") if ray or address else None)
    if json:
        typer.echo(to_json(diagnosis.as_json(), indent=2))
    else:
        examination.show(diagnosis, Console())
    raise typer.Exit(diagnosis.exit_status)


def _node_directories(place: Path) -> list[Path]:
    try:
        if os.path.lexists(place):
            os.listdir(place)
        found = layout.node_directories(place)
    except OSError as error:
        typer.echo(f"{place} cannot be read: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    if not found:
        typer.echo(
            f"Nothing was recorded in {place}. If it was elsewhere, name the directory with --spool or "
            "OTEL_ROLLOUT_SPOOL_DIR.",
            err=True,
        )
        raise typer.Exit(1)
    return found


def _with_exporters_of(
    node_dir: Path, configured: settings.Settings, to: str | None = None
) -> settings.Settings:
    """The settings with the project and the exporters of a run, or with the exporters named instead."""
    manifest = layout.read_manifest(node_dir)
    of_run = manifest.exporters if manifest else configured.exporters
    if manifest:
        configured = dataclasses.replace(configured, project_name=manifest.project_name)
    return _chosen(configured, _names(to) if to else of_run)


def _chosen(configured: settings.Settings, names: Iterable[str]) -> settings.Settings:
    chosen = {name: configured.exporters.get(name, {}) for name in names}
    return dataclasses.replace(configured, exporters=chosen)


def _report(node_dir: Path, configured: settings.Settings) -> Report:
    return node_report.report(node_dir, _with_exporters_of(node_dir, configured))


def _as_json(report: Report) -> dict[str, object]:
    return {
        "place": report.place,
        "problem": report.problem,
        "started": report.started,
        "recorded": report.recorded,
        "open": report.open,
        "unfinished": report.unfinished,
        "dropped": dict(report.dropped),
        "left_out": dict(report.left_out),
        "groups_kept": dict(report.groups_kept),
        "groups_left_out": dict(report.groups_left_out),
        "exporters": {name: dataclasses.asdict(count) for name, count in report.exporters.items()},
        "lost": report.lost,
        "steps": [
            {**key._asdict(), "started": count.started, **dataclasses.asdict(count), "pending": count.pending}
            for key, count in report.by_step.items()
        ],
    }
