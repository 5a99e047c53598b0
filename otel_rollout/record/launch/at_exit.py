"""Flush, wait for delivery and log the result when a process exits."""

from __future__ import annotations

import atexit
import contextlib
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from otel_rollout.account import node_report
from otel_rollout.account.progress import is_on_a_terminal, write
from otel_rollout.account.report import ExporterCount, Report
from otel_rollout.base.errors import logger
from otel_rollout.base.waits import waits
from otel_rollout.record.launch import drain, launcher
from otel_rollout.record.launch.shutdown import shutdown
from otel_rollout.record.launch.state import state
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs.founding import node_directory
from otel_rollout.record.runs.state import EndedRun
from otel_rollout.record.runs.state import state as runs
from otel_rollout.settings import ExporterOptions
from otel_rollout.spool import layout


def register() -> None:
    """Register :func:`run` to run at exit, before earlier handlers such as Ray's."""
    _import_what_exit_needs()
    atexit.unregister(run)
    atexit.register(run)


def _import_what_exit_needs() -> None:
    """Import the modules that :func:`shutdown` needs, before the exit begins.

    Importing a module with dataclasses while Python exits makes CPython forget that Ctrl-C ended the program.
    The program would then exit with status 1 rather than by SIGINT.
    """
    if "ray" in sys.modules:
        from otel_rollout.record.launch import ray_nodes  # noqa: F401


def run() -> None:
    """Shut down the runs that this process has founded, or flush its spans; log the result. Never raises."""
    state.is_exiting = True
    before = None
    try:
        before = _let_ctrl_c_interrupt_once()
        with contextlib.suppress(KeyboardInterrupt):  # ends the wait; the forwarder goes on
            if runs.is_root:
                shutdown(None)
            else:
                close()
            _drain_earlier_runs()
        for ended in filter(None, (*runs.earlier_runs, state.ended_run)):
            with ctrl_c_ignored():
                _log_delivery(ended)
    except KeyboardInterrupt:  # pressed again
        pass
    except Exception as error:  # noqa: BLE001 - an exiting process must exit
        logger.error("otel-rollout: could not finish delivery at exit: %s", error)
    recording.off = True  # exit handlers that run later must not begin another run
    if before is not None:
        signal.signal(signal.SIGINT, before)


def _let_ctrl_c_interrupt_once() -> Any:
    """Ignore Ctrl-C after the first one; return the handler to restore.

    A second Ctrl-C would interrupt the clean-up after the first one, and Python prints the traceback of an
    interrupted finalizer. None is returned if nothing is changed, for example because the application has set
    a handler of its own.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return None
    return signal.signal(signal.SIGINT, _interrupt_once)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def close() -> None:
    """Flush the recorded spans of a process that exits, unless the process has founded the run."""
    active = recording.present_runtime()
    if active is not None and not runs.is_root:
        active.close(waits().close)


def _drain_earlier_runs() -> None:
    """Wait for delivery of the runs that configure() has ended."""
    timeouts = [ended.settings.shutdown_timeout for ended in runs.earlier_runs]
    deadline = time.monotonic() + max(timeouts, default=0.0)
    for ended in runs.earlier_runs:
        timeout = max(0.0, deadline - time.monotonic())
        node_dir = node_directory(ended.settings)
        ended.report = drain.drain(node_dir, ended.settings, timeout, shows_progress=True)


def _log_delivery(ended: EndedRun) -> None:
    """Log how much of a run was delivered, and where to look at it."""
    node_dir = node_directory(ended.settings)
    report = ended.report
    # Without a report, the wait was interrupted. A report with undelivered spans may be out of date.
    if report is None or (report.undelivered and not runs.other_nodes):
        report = node_report.report(node_dir, ended.settings, at_once=report is None)
    say(report, node_dir, ended.settings.exporters)


# --- the line that a program logs at exit ------------------------------------------------------------------


def say(report: Report, node_dir: Path, given: ExporterOptions | None = None) -> None:
    """Log the line for a report, or print the line to standard error where logging is not configured.

    ``logging.getLogger("otel_rollout").setLevel(logging.WARNING)`` silences a line without problems.
    """
    message = text(report, node_dir, given)
    level = logging.WARNING if report.lost or report.undelivered else logging.INFO
    if not message or logger.level > level:
        return
    if logger.hasHandlers() and logger.isEnabledFor(level):
        logger.log(level, "otel-rollout: %s", message)
        return
    line = f"otel-rollout: {message}"
    if is_on_a_terminal() and not report.undelivered:  # a line with a command is not broken
        import shutil
        import textwrap

        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    write(f"{line}\n")


def text(report: Report, node_dir: Path, given: ExporterOptions | None = None) -> str:
    """Return the line for a run's report; empty where there is nothing to say.

    Args:
        report: the run's delivery report.
        node_dir: this machine's directory of the run, for the commands that the line suggests.
        given: the options that the code gave exporters; they are not stored.
    """
    if not report.recorded and not report.dropped:
        return _nothing_recorded(report)
    sentences = [
        _delivery(name, count, report, node_dir, (given or {}).get(name, ()))
        for name, count in report.exporters.items()
    ]
    if report.dropped:
        reasons = ", ".join(f"{number} ({reason})" for reason, number in report.dropped.items())
        sentences.append(f"Dropped: {_spans(sum(report.dropped.values()))}, by reason: {reasons}.")
    if report.broken_chain:
        sentences.append(f"{report.broken_chain}.")
    if report.lost:
        sentences.append(f"Lost: {_spans(report.lost)}; please report this.")
    return " ".join(sentences)


def _nothing_recorded(report: Report) -> str:
    if not report.sampled_out:
        return ""
    reasons = ", ".join(f"{number} ({reason})" for reason, number in report.sampled_out.items())
    return f"nothing was recorded. Left out on purpose, by reason: {reasons}."


def _delivery(name: str, count: ExporterCount, report: Report, node_dir: Path, given: Collection[str]) -> str:
    """Say what one exporter has delivered, and what happens to the rest."""
    prints = name == "console" and count.destination
    target = f"{name}, printed in {count.destination}" if prints else count.destination or name
    if count.pending:
        parts = [f"{count.delivered} of {_spans(report.recorded)} delivered to {target}."]
    else:
        parts = [f"{_spans(count.delivered)} delivered to {target}."]
    if count.sampled_out:
        parts.append(f"{_spans(count.sampled_out)} sampled out.")
    if count.rejected:
        parts.append(f"{_spans(count.rejected)} rejected there and kept in {node_dir}/rejected.{name}.jsonl.")
    if count.pending:
        parts.append(_pending(name, count, report.recorded, node_dir, given))
    elif count.problem:
        parts.append(count.problem)
    return " ".join(parts)


def _pending(name: str, count: ExporterCount, recorded: int, node_dir: Path, given: Collection[str]) -> str:
    """Say why spans are pending, and what delivers them."""
    number = count.pending
    rest = f"The other {number}" if number < recorded else f"All {number}" if number > 1 else "It"
    are = f"{rest} {'are' if number > 1 else 'is'}"
    option = f"--spool {shlex.quote(str(node_dir))}"
    watch = f"Watch it with: `otel-rollout status --watch {option}`."
    problem = (count.problem or "").rstrip(".")
    if count.is_refused:
        forward = _forward(name, option, given)
        return f"{are} kept on disk until this is corrected: {problem}. Then deliver with: {forward}"
    if not launcher.forwarder_runs(node_dir):
        log = node_dir / layout.FORWARDER_LOG
        why = f" No process delivers; {log} may say why." if log.exists() else ""
        return f"{are} kept on disk.{why} Deliver with: {_forward(name, option, given)}"
    if problem:
        return f"{are} kept on disk, and delivery is tried again in the background: {problem}. {watch}"
    return f"{are} being delivered in the background. {watch}"


def _forward(name: str, option: str, given: Collection[str]) -> str:
    from otel_rollout.exporting.entry_points import other_target  # late: it reads what is installed

    needed = f" Options given in code are not stored: set variables for {', '.join(given)}." if given else ""
    return f"`otel-rollout forward {other_target(name)}{option}`.{needed}"


def _spans(number: int) -> str:
    return f"{number} span{'' if number == 1 else 's'}"


@contextlib.contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl-C inside the block, in which the line is written: people may press Ctrl-C twice."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # None: a handler that was not set from Python cannot be restored
            signal.signal(signal.SIGINT, before)
