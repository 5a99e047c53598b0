"""Wait until the spans in a node directory are delivered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from otel_rollout.account import node_report
from otel_rollout.account.ledger_reader import LedgerState, read_ledger
from otel_rollout.account.progress import Show, progress
from otel_rollout.account.report import Report
from otel_rollout.base.errors import logger, pass_on
from otel_rollout.base.waits import waits
from otel_rollout.record.launch import launcher
from otel_rollout.settings import Settings
from otel_rollout.spool import layout, segments
from otel_rollout.spool.private_files import touch
from otel_rollout.spool.waiting import WaitingProgram


def drain(node_dir: Path, configured: Settings, timeout: float, shows_progress: bool = False) -> Report:
    """Wait until the spans recorded so far are delivered, and return the report.

    The wait ends early if every exporter with undelivered spans is refused: a person has to act.

    Args:
        node_dir: the directory to wait for.
        configured: settings of the run.
        timeout: seconds to wait.
        shows_progress: whether to show progress on standard error, if the wait takes more than a second.
    """
    deadline = time.monotonic() + timeout
    if configured.outcome_keep:
        touch(node_dir / layout.DRAINING)
    hint = "Ctrl-C: delivery goes on"
    shown = progress(hint) if shows_progress else contextlib.nullcontext(lambda done, total: None)
    try:
        with shown as show:
            while True:
                target = _drain_once(node_dir, configured, deadline, show)
                report = node_report.report(node_dir, configured)
                # A killed process seems to live while a child that it was starting holds its locks; its
                # segments are completed later. Living writers may record forever: only dead ones are awaited.
                if (
                    report.recorded <= target
                    or segments.living_writers(node_dir)
                    or time.monotonic() >= deadline
                ):
                    return report
    except Exception as error:  # noqa: BLE001 - the program goes on, with the counts known so far
        pass_on(error)
        report = node_report.report(node_dir, configured)
        if report.directory and report.problem is None:  # the directory exists and can be read
            logger.warning("otel-rollout: the wait for delivery of %s ended: %s", node_dir, error)
        return report


def _drain_once(node_dir: Path, configured: Settings, deadline: float, show: Show) -> int:
    """Wait for delivery of the spans recorded so far; return their number."""
    # Spans of dead writers can be counted only after the forwarder has completed them.
    _wait(node_dir, configured, deadline, lambda: not _is_incomplete(node_dir))
    target = node_report.report(node_dir, configured).recorded
    _wait(node_dir, configured, deadline, lambda: _is_done(node_dir, configured, target, show))
    return target


def _wait(node_dir: Path, configured: Settings, deadline: float, is_over: Callable[[], bool]) -> None:
    """Keep a forwarder running until ``is_over()`` is true or the deadline has passed.

    A forwarder is started even if the deadline has passed already.
    """
    next_start = time.monotonic()
    waiting = WaitingProgram(node_dir)
    while not is_over():
        if time.monotonic() >= next_start:
            launcher.ensure_forwarder(node_dir, configured)
            next_start = time.monotonic() + waits().forwarder_start
        if time.monotonic() >= deadline:
            return
        waiting.announce()
        time.sleep(waits().poll)


def _is_incomplete(node_dir: Path) -> bool:
    """Return whether the forwarder has yet to complete the spans of a dead writer."""
    # The forwarder removes the root table of a dead writer once its trajectories are completed.
    return any(
        (node_dir / (writer + layout.OPEN_SUFFIX)).exists() and segments.is_dead(node_dir, writer)
        for writer in layout.journals(node_dir)
    )


def is_settled(node_dir: Path, configured: Settings, target: int) -> bool:
    """Return whether each exporter is done with ``target`` spans, or is refused."""
    return not _is_incomplete(node_dir) and _is_done(node_dir, configured, target, lambda done, total: None)


def _is_done(node_dir: Path, configured: Settings, target: int, show: Show) -> bool:
    ledger = read_ledger(node_dir)
    done = {name: ledger.total(name).done for name in configured.exporters}
    if target:
        show(min(done.values(), default=target), target)
    behind = [
        name for name, count in done.items() if count < target or not _is_linked(node_dir, name, ledger)
    ]
    if not behind:
        return True
    if not all(map(ledger.is_refused, behind)) or launcher.would_successor_help(node_dir, configured):
        return False
    # A successor may have just taken over from the forwarder that was refused, and removed the refusal.
    return all(map(read_ledger(node_dir).is_refused, behind))


def _is_linked(node_dir: Path, exporter: str, ledger: LedgerState) -> bool:
    """Return whether delivered traces are linked to the published run, if any."""
    published = layout.read_trackers(node_dir).get(exporter)
    return published is None or ledger.links.get(exporter, ("", None))[0] == published
