"""Flush, wait for delivery and log the result when a process exits."""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from otel_rollout.account import node_report
from otel_rollout.base.waits import waits
from otel_rollout.record.launch import drain, exit_message
from otel_rollout.record.launch.shutdown import shutdown
from otel_rollout.record.launch.state import state
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs.directory import node_directory
from otel_rollout.record.runs.state import EndedRun
from otel_rollout.record.runs.state import state as runs

_logger = logging.getLogger("otel_rollout")


def register() -> None:
    """Register :func:`run` to run at exit, before earlier handlers such as Ray's."""
    _import_what_exit_needs()
    atexit.unregister(run)
    atexit.register(run)


def _import_what_exit_needs() -> None:
    """Import the modules that :func:`shutdown` needs before the exit.

    Importing a module with dataclasses while Python exits makes CPython forget that Ctrl-C ended the program.
    The program would then exit with status 1 rather than by SIGINT.
    """
    from otel_rollout.account import ledger_reader  # noqa: F401

    if "ray" in sys.modules:
        from otel_rollout.record.launch import ray_nodes  # noqa: F401


def run() -> None:
    """Shut down the process's run and earlier runs, and log the result. Never raises."""
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
            with exit_message.ctrl_c_ignored():
                _log_delivery(ended)
    except KeyboardInterrupt:  # pressed again
        pass
    except Exception as error:  # noqa: BLE001 - an exiting process must exit
        _logger.error("otel-rollout: could not finish delivery at exit: %s", error)
    recording.off = True  # exit handlers that run later must not begin another run
    if before is not None:
        signal.signal(signal.SIGINT, before)


def _let_ctrl_c_interrupt_once() -> Any:
    """Ignore Ctrl-C after the first one; return the handler to restore, None if it is the application's own.

    A second one would interrupt what cleans up after the first. Python prints the traceback of an interrupted
    finalizer.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return None
    return signal.signal(signal.SIGINT, _interrupt_once)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def close() -> None:
    """Flush the recorded spans of a process that exits without ``atexit``."""
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
    if report is None or (
        report.undelivered and not runs.other_nodes
    ):  # the wait was interrupted, or the report is out of date
        report = node_report.report(node_dir, ended.settings, at_once=report is None)
    exit_message.say(report, node_dir)
