"""Define the command ``otel-rollout``, one function per subcommand."""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import signal
import sqlite3
import sys
import threading
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from otel_rollout import settings, settings_reader
from otel_rollout.account import node_report
from otel_rollout.account.progress import clear_line, polled_progress
from otel_rollout.account.report import Report
from otel_rollout.base.errors import ReportedError, forwarder_logger
from otel_rollout.base.setting_parsers import listed
from otel_rollout.base.version import VERSION
from otel_rollout.cli import probe, report_output, runs
from otel_rollout.cli.commands import DELIVER, MAINTAIN, CommandGroup, epilog
from otel_rollout.cli.page_output import JsonOption, say, tell
from otel_rollout.exporting import entry_points
from otel_rollout.record.launch import at_exit

_WRITE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
"""Error numbers of a disk that takes no more output, of a closed output, and of a reader who has gone."""
_STDOUT, _STDERR = 1, 2


class _Commands(typer.Typer):
    """The subcommands. If a file cannot be read, or output written, print one line and no traceback."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the subcommand that the arguments name."""
        # A command records nothing, so it waits for no delivery, not even that of OTEL_ROLLOUT_RUN_ID.
        atexit.unregister(at_exit.run)
        _open_closed_streams()
        try:
            try:
                return super().__call__(*args, **kwargs)
            finally:
                sys.stdout.flush()  # else Python reports a failed write at exit, in its own words
        except OSError as error:
            if error.filename is not None:
                say(f"{error.filename} cannot be used: {error.strerror}")
                sys.exit(2)
            if error.errno not in _WRITE_ERRORS:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)  # Python flushes its buffer again at exit
            if error.errno == errno.EPIPE:
                sys.exit(1)
            is_closed = error.errno == errno.EBADF
            reason = "standard output is not open for writing" if is_closed else error.strerror
            say(f"The output cannot be written: {reason}")
            sys.exit(2)


def _open_closed_streams() -> None:
    """Put the null device in the place of standard streams that the caller has closed.

    Otherwise the next file that is opened takes the stream's descriptor, and gets what is written to the
    stream. The device is open for reading only, so that writing to a closed output is an error.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= _STDERR:
        pass
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = open(_STDOUT, "w", closefd=False)  # noqa: SIM115


app = _Commands(
    cls=CommandGroup,
    help="See every trajectory of an agentic-RL rollout.",
    epilog=epilog(),
    no_args_is_help=True,
)


def _check_exporters(to: str | None) -> str | None:
    """Check that every exporter in ``--to`` is installed."""
    names = listed(to) if to is not None else []
    if to is not None and not names:
        raise typer.BadParameter("names no exporter; name one, such as mlflow")
    try:
        entry_points.check_names(names)
    except settings.SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    return to


ToOption = Annotated[
    str | None,
    typer.Option(
        help="Exporters, comma separated. \\[default: the run's, as this environment sets them up]",
        callback=_check_exporters,
    ),
]
SpoolOption = Annotated[
    Path | None,
    typer.Option(
        "--spool",
        readable=False,  # the commands say why they cannot read it
        help="Spool, run or node directory. \\[default: OTEL_ROLLOUT_SPOOL_DIR, or otel-rollout-<uid> in the "
        "temporary directory]",
    ),
]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """See every trajectory of an agentic-RL rollout."""
    for stream in (sys.stdout, sys.stderr):  # a file name may hold bytes that are not text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS", "").strip("0") == "":  # some build servers claim a width of 0
        os.environ.pop("COLUMNS", None)
    if version:
        typer.echo(VERSION)
        raise typer.Exit
    if context.invoked_subcommand not in (None, "doctor"):  # the doctor reports these as findings
        _, problems = settings_reader.from_environment(os.environ)
        say(*problems, *settings_reader.unknown_variables(os.environ))


@app.command(epilog=epilog("status"), rich_help_panel=DELIVER)
def status(
    spool: SpoolOption = None,
    json: JsonOption = False,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run, not only the latest.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show counts per step too; reads all pending spans.")
    ] = False,
    check: probe.CheckOption = False,
    only: probe.OnlyOption = None,
    max_age: probe.MaxAgeOption = 600.0,
    max_pending: probe.MaxPendingOption = 1.0,
    min_free: probe.MinFreeOption = 5.0,
) -> None:
    """Show how many spans this machine has recorded and delivered.

    With --check, answer a probe: every run of the spool is checked, and nothing is written.
    """
    if watch and json:
        raise typer.BadParameter("--watch is for people; a program calls `status --json` again and again.")
    configured, _ = settings_reader.from_environment(os.environ)
    if check:
        if watch or json or steps:
            raise typer.BadParameter("--check prints lines; --watch, --json and --steps do not go with it.")
        probe.check(spool, configured, only, max_age, max_pending, min_free)
        return
    if only:
        raise typer.BadParameter("--only goes with --check.")

    def reports() -> list[Report]:
        node_dirs = runs.node_directories(spool or configured.spool_dir)
        chosen = node_dirs if all_runs else node_dirs[-1:]
        return [runs.report_of_run(node_dir, configured) for node_dir in chosen]

    if watch:
        report_output.watch(reports, steps)
        return
    found: list[Report] = []
    try:
        found = reports()
    finally:  # after an error too, so that a program that reads JSON always gets some
        if json:
            typer.echo(to_json([report_output.as_json(report) for report in found], indent=2))
    if not json:
        report_output.show(found, Console(), steps)
    if any(report.problem for report in found):
        raise typer.Exit(1)


class _LogHandler(logging.StreamHandler[Any]):
    """Log to standard error, after clearing the line of progress."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log record."""
        clear_line()
        super().emit(record)


def _log_to_stderr() -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[_LogHandler()])


@app.command(epilog=epilog("forward"), rich_help_panel=DELIVER)
def forward(
    spool: SpoolOption = None,
    to: ToOption = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Run as a service: deliver present and future runs until SIGTERM."),
    ] = False,
) -> None:
    """Deliver spans that are on disk, and return when all are delivered.

    The exit status is 1 if spans are still pending, were rejected, or are lost.
    Spans stay on disk until each of the run's targets has them.
    """
    _log_to_stderr()
    forwarder_logger.setLevel(logging.INFO)
    configured, _ = settings_reader.from_environment(os.environ)
    directory = spool or configured.spool_dir
    if watch:
        _run_service(directory, configured, to)
        return
    are_delivered = [_forward(node_dir, configured, to) for node_dir in runs.node_directories(directory)]
    if not all(are_delivered):
        raise typer.Exit(1)


def _forward(node_dir: Path, configured: settings.Settings, to: str | None) -> bool:
    """Forward one node directory; return whether nothing is left for a person to do."""
    from otel_rollout.cli import forwarding

    of_run = runs.settings_of_run(node_dir, configured)
    configured = runs.settings_of_run(node_dir, configured, to)
    if not configured.exporters:
        tell(f"{node_dir} is skipped: it has a replay to {', '.join(of_run.exporters)}")
        return True
    waiting = f"Another forwarder is at work on {node_dir}; waiting until it has delivered the spans there"

    def tell_of_wait() -> None:
        tell(waiting, *forwarding.waiting_spans(node_report.report(node_dir, configured)))

    try:
        with polled_progress(lambda: _delivered(node_report.report(node_dir, configured))):
            if not forwarding.is_done(node_dir, configured):
                forwarding.forward_or_wait(node_dir, configured, tell_of_wait)
    except KeyboardInterrupt:
        say(*forwarding.waiting_spans(node_report.report(node_dir, configured)))
        raise
    except (OSError, sqlite3.Error) as error:
        say(f"cannot forward {node_dir}: {runs.reason(error)}")
        return False
    report = node_report.report(node_dir, configured)
    tell(f"{node_dir}: {report.summary()}")
    report_of_run = node_report.report(node_dir, of_run) if to else report
    sentences, is_problem = forwarding.left_for_a_person(node_dir, report, report_of_run)
    say(*sentences)
    return not is_problem


def _delivered(report: Report) -> tuple[int, int]:
    """Return the numbers of finished and of all spans, summed over exporters."""
    counts = report.exporters.values()
    done = sum(count.delivered + count.rejected + count.sampled_out for count in counts)
    return done, done + sum(count.pending for count in counts)


def _run_service(directory: Path, configured: settings.Settings, to: str | None) -> None:
    from otel_rollout.cli.forwarding import ForwardingService

    runs.require_readable(directory)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    service = ForwardingService(directory, lambda node_dir: runs.settings_of_run(node_dir, configured, to))
    service.run(stop)
    for report in service.finish(configured.shutdown_timeout):
        tell(f"{report.directory}: {report.summary()}")


@app.command(epilog=epilog("replay"), rich_help_panel=DELIVER)
def replay(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files of OTLP JSON Lines (also .zst and rejected.*.jsonl) or directories of them."
        ),
    ],
    to: Annotated[str, typer.Option(help="Exporters, comma separated.", callback=_check_exporters)],
) -> None:
    """Deliver files again, or to another target.

    Files are archived segments, a copied spool, or any OTLP JSON Lines.

    A backend that identifies spans by id, as MLflow does, stores a span once however often it is sent.
    """
    from otel_rollout.cli.forwarding import forward_directory

    _log_to_stderr()
    configured = runs.settings_of_copies(listed(to))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the copy is removed
    report = Report.empty()
    try:
        with runs.as_node_directory(paths, configured) as node_dir:
            try:
                with polled_progress(lambda: _delivered(node_report.report(node_dir, configured))):
                    forward_directory(node_dir, configured)
            finally:
                report = node_report.report(node_dir, configured)
    except (OSError, ValueError) as error:
        raise ReportedError(f"cannot replay: {runs.reason(error)}") from error
    except (KeyboardInterrupt, SystemExit):
        _print_counts(report)
        say(
            "The replay was interrupted, and its copies are removed. Your files are unchanged: to deliver "
            "the rest, run the command again. It sends every line again."
        )
        raise
    _print_replayed(report)


def _print_counts(report: Report) -> None:
    for name, count in report.exporters.items():
        lines = "line" if count.delivered == 1 else "lines"
        undelivered = f"{count.rejected} rejected, {count.pending} pending"
        tell(f"{name}: {count.delivered} {lines} delivered, {undelivered}")
        if count.problem:
            say(count.problem)


def _print_replayed(report: Report) -> None:
    _print_counts(report)
    counts = report.exporters.values()
    if any(count.pending for count in counts):
        say(f"The rest is kept on disk. Deliver it with: otel-rollout forward --spool {report.directory}")
    if any(count.rejected for count in counts):
        say(
            f"Rejected lines are in {report.directory}/rejected.*.jsonl, with reasons. "
            "A damaged line stays rejected: remove the file once you have read it."
        )
    if any(count.pending or count.rejected for count in counts):
        raise typer.Exit(1)


@app.command(epilog=epilog("doctor"), rich_help_panel=MAINTAIN)
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(help="Address of the Ray cluster. \\[default: this machine's]", show_default=False),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Check every node of a Ray cluster too.")] = False,
    json: JsonOption = False,
) -> None:
    """Check why traces do not arrive; on a cluster's nodes too.

    The checks cover variables, packages, spool and targets.
    """
    from otel_rollout.doctor import examine
    from otel_rollout.doctor import show as show_diagnosis

    diagnosis = examine((address or "auto") if ray or address else None)
    if json:
        typer.echo(to_json(diagnosis.as_json(), indent=2))
    else:
        show_diagnosis(diagnosis, Console())
    raise typer.Exit(diagnosis.exit_status)
