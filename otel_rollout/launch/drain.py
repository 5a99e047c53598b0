"""Wait until what a node directory holds is delivered."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from otel_rollout.account import node_report
from otel_rollout.account.progress import Show, progress
from otel_rollout.account.report import Report
from otel_rollout.base.interrupts import pass_on
from otel_rollout.launch import launcher
from otel_rollout.spool import layout, segments
from otel_rollout.spool.private_files import open_private

if TYPE_CHECKING:
    from otel_rollout.account.ledger import LedgerState
    from otel_rollout.settings import Settings

_POLL_INTERVAL = 0.05
_START_INTERVAL = 2.0
_logger = logging.getLogger("otel_rollout")


def drain(node_dir: Path, configured: Settings, timeout: float, shows_progress: bool = False) -> Report:
    """Wait until everything recorded here so far is delivered, at most ``timeout`` seconds.

    Ends early when every exporter that is behind refuses to deliver until a person acts.

    Args:
        node_dir: what is delivered.
        configured: settings of the run.
        timeout: seconds to wait.
        shows_progress: whether to show on standard error how far it is, once that takes a second.
    """
    deadline = time.monotonic() + timeout
    if configured.outcome_keep:
        with (
            contextlib.suppress(OSError),  # nothing but time depends on it
            open(node_dir / layout.DRAINING, "ab", opener=open_private) as file,
        ):
            os.utime(file.fileno())
    hint = "Ctrl-C leaves, delivery goes on"
    shown = progress(hint) if shows_progress else contextlib.nullcontext(lambda done, total: None)
    try:
        with shown as show:
            while True:
                target = _drain_what_is_recorded(node_dir, configured, deadline, show)
                account = node_report.report(node_dir, configured)
                # A killed process seems to live until what it was just starting lets go of its locks; what it
                # left is completed after that. While others live there is no end to what is recorded.
                if (
                    account.recorded <= target
                    or segments.living_writers(node_dir)
                    or time.monotonic() >= deadline
                ):
                    return account
    except Exception as error:  # noqa: BLE001 - whoever waits goes on, with what is known
        pass_on(error)
        account = node_report.report(node_dir, configured)
        if account.directory and account.problem is None:  # it is there and can be read
            _logger.warning("otel-rollout: nobody sees to the delivery of %s: %s", node_dir, error)
        return account


def _drain_what_is_recorded(node_dir: Path, configured: Settings, deadline: float, show: Show) -> int:
    # The dead first: what they left has to be completed before it can be counted.
    _wait(node_dir, configured, deadline, lambda: not _is_incomplete(node_dir))
    target = node_report.report(node_dir, configured).recorded
    _wait(node_dir, configured, deadline, lambda: _is_done(node_dir, configured, target, show))
    return target


def _wait(node_dir: Path, configured: Settings, deadline: float, is_over: Callable[[], bool]) -> None:
    """Wait for something the forwarder does, seeing to it that there is one."""
    next_start = time.monotonic()
    while not is_over() and time.monotonic() < deadline:
        if time.monotonic() >= next_start:  # one that cannot start is not started in a storm
            launcher.ensure_forwarder(node_dir, configured)
            next_start = time.monotonic() + _START_INTERVAL
        time.sleep(_POLL_INTERVAL)


def _is_incomplete(node_dir: Path) -> bool:
    """Whether a dead writer's segments and trajectories still have to be completed; then its table goes."""
    return any(
        (node_dir / (writer + layout.OPEN_SUFFIX)).exists() and segments.is_dead(node_dir, writer)
        for writer in layout.journals(node_dir)
    )


def is_settled(node_dir: Path, configured: Settings, target: int) -> bool:
    """Whether a forwarder at work has delivered ``target`` spans to all exporters, or is refused by them."""
    return not _is_incomplete(node_dir) and _is_done(node_dir, configured, target, lambda done, total: None)


def _is_done(node_dir: Path, configured: Settings, target: int, show: Show) -> bool:
    from otel_rollout.account.ledger import read_ledger
    from otel_rollout.exporting.api import FailureKind

    ledger = read_ledger(node_dir)
    done = {name: ledger.done(name) for name in configured.exporters}
    if target:
        show(min(done.values(), default=target), target)
    behind = [
        name for name, count in done.items() if count < target or not _is_linked(node_dir, name, ledger)
    ]
    is_refused = all(
        name in ledger.failures and ledger.failures[name].kind is FailureKind.REFUSED for name in behind
    )
    return not behind or (is_refused and not launcher.may_do_better(node_dir, configured))


def _is_linked(node_dir: Path, exporter: str, ledger: LedgerState) -> bool:
    """Whether what was delivered belongs to the tracker's run, where one was published."""
    published = layout.read_trackers(node_dir).get(exporter)
    return published is None or ledger.links.get(exporter, ("", None))[0] == published
