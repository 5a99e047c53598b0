"""Forward one node directory until it is done, or all of a spool as a service."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from otel_rollout.account import node_report
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.account.report import Report
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.errors import warn_once
from otel_rollout.base.suggest import did_you_mean
from otel_rollout.base.waits import wait_until, waits
from otel_rollout.deliver.dead_letters import rejected_file
from otel_rollout.deliver.forwarder import Forwarder
from otel_rollout.exporting.entry_points import installed, other_target
from otel_rollout.record.launch import drain
from otel_rollout.record.runs import target
from otel_rollout.settings import Settings
from otel_rollout.spool import layout, segments
from otel_rollout.spool.locks import ForwarderLock
from otel_rollout.spool.waiting import WaitingProgram


def forward_directory(node_dir: Path, configured: Settings, takes_over: bool = False) -> bool:
    """Forward a node directory until it is done; with ``takes_over``, also in place of another forwarder.

    Returns:
        Whether this process has forwarded the directory; False if another forwarder holds its lock.

    Raises:
        OSError: the forwarder's lock cannot be taken, for example because the file is another user's.
    """
    with closing(ForwarderLock(node_dir)) as lock:
        if not (lock.take_over(waits().take_over) if takes_over else lock.acquire()):
            return False
        Forwarder(node_dir, configured, lock).run()
        return True


def is_done(node_dir: Path, configured: Settings) -> bool:
    """Return whether nothing is left to deliver or to remove, and nobody records."""
    if layout.segments(node_dir) or segments.living_writers(node_dir):
        return False
    report = node_report.report(node_dir, configured)
    return not _has_pending(report) and drain.is_settled(node_dir, configured, report.recorded)


def forward_or_wait(node_dir: Path, configured: Settings, on_wait: Callable[[], object]) -> None:
    """Forward a node directory, or wait for the forwarder that holds its lock.

    The wait ends when the other forwarder has delivered the spans that were recorded when the wait started.
    If the other forwarder ends earlier, or delivers to other exporters, this process forwards the rest. It
    takes over if the other one waits for a target in vain, and this environment names another target.

    Args:
        node_dir: the directory to forward.
        configured: settings to forward it with.
        on_wait: called once if there is another forwarder, for which this process waits.

    Raises:
        OSError: the forwarder's lock cannot be taken.
    """
    recorded = node_report.report(node_dir, configured).recorded
    is_waiting = takes_over = False
    waiting = WaitingProgram(node_dir)
    while not forward_directory(node_dir, configured, takes_over):
        if takes_over := not takes_over and _waits_in_vain(node_dir, configured, recorded):
            logger.info("taking over %s from a forwarder whose target does not answer", node_dir)
            continue
        if not is_waiting:
            is_waiting = True
            on_wait()
        if drain.is_settled(node_dir, configured, recorded):
            return
        waiting.announce()
        time.sleep(waits().poll)


def _waits_in_vain(node_dir: Path, configured: Settings, recorded: int) -> bool:
    """Return whether the forwarder of an ended run delivers nothing, and this process has other targets.

    A target of the run that this environment does not name may come from the program's code.
    """
    ledger, manifest = read_ledger(node_dir), layout.read_manifest(node_dir)
    if manifest is None or segments.living_writers(node_dir):
        return False
    of_run = replace(configured, exporters={name: {} for name in manifest.exporters})
    behind = {n for n in {*of_run.exporters, *configured.exporters} if ledger.total(n).done < recorded}
    if (behind & of_run.exporters.keys()) - ledger.failures.keys():
        return False
    here = replace(of_run, target_variables=target.variables(os.environ, of_run))
    is_same = target.fingerprint(here) == manifest.target
    wanted = {name for name in behind & configured.exporters.keys() if not ledger.is_refused(name)}
    return bool(wanted) and all(
        name not in of_run.exporters or (not is_same and _names_target(name, configured)) for name in wanted
    )


def _names_target(exporter: str, configured: Settings) -> bool:
    """Return whether this environment names an exporter's target."""
    alone = replace(configured, exporters={exporter: {}})
    return any(target.names_target(name, alone) for name in os.environ)


def left_for_a_person(node_dir: Path, report: Report, of_run: Report) -> tuple[list[str], bool]:
    """Return sentences about spans that are still pending, rejected or lost after a delivery.

    Args:
        node_dir: the directory that was forwarded.
        report: its report for the chosen targets.
        of_run: its report for the targets of its run.

    Returns:
        The sentences, and whether a problem is left: spans that are pending for the chosen targets, rejected
        there, or lost, or a problem of the report.
    """
    sentences = []
    for name, count in of_run.exporters.items():
        if count.pending and name not in report.exporters:
            sentences.append(
                f"Still pending for {name}, and kept on disk: {count.pending} "
                f"{'span' if count.pending == 1 else 'spans'}. {_way_out(name, node_dir)}"
            )
        if lost := count.lost_of(of_run.recorded):
            sentences.append(
                f"Lost: {lost} of {of_run.recorded} spans, not delivered to {name} and gone from {node_dir}"
            )
    for name, count in report.exporters.items():
        if name not in of_run.exporters and not of_run.lost and (gone := count.lost_of(report.recorded)):
            sentences.append(
                f"{name} does not get {gone} of {report.recorded} spans: delivered to "
                f"{', '.join(of_run.exporters)} before, they are no longer in {node_dir}"
            )
    rejected = [path for name in report.exporters if (path := rejected_file(node_dir, name)).exists()]
    sentences += [f"Rejected spans are in {path}, with reasons" for path in rejected]
    waiting = waiting_spans(report)
    return sentences + waiting, bool(report.problem or rejected or waiting or of_run.lost)


def _way_out(name: str, node_dir: Path) -> str:
    """Return how to deliver the spans of an exporter, or what to do if no installed package has it."""
    if not other_target(name):
        return f"Deliver with: `otel-rollout forward --spool {node_dir}`"
    meant = did_you_mean(name, installed())
    install = "" if meant else ", or install one"
    return f"No package here has it.{meant} Remove {node_dir.parent} if other targets suffice{install}"


def waiting_spans(report: Report) -> list[str]:
    """Return a sentence for each target that lacks spans: how many wait, and why."""
    return [
        f"{count.pending} {'span waits' if count.pending == 1 else 'spans wait'} on disk for {name}: "
        f"{count.problem or 'no attempt to deliver has failed yet'}"
        for name, count in report.exporters.items()
        if count.pending
    ]


class ForwardingService:
    """Forwards every run in a spool, present and future, each in its own thread.

    Args:
        directory: a spool, run or node directory; it may be missing at first.
        settings_of: returns the settings to forward a node directory with.
    """

    def __init__(self, directory: Path, settings_of: Callable[[Path], Settings]) -> None:
        self._directory = directory
        self._settings_of = settings_of
        self._threads: dict[Path, threading.Thread] = {}

    def run(self, stop: threading.Event) -> None:
        """Forward until ``stop`` is set; pending spans then stay on disk."""
        while not stop.is_set():
            for node_dir in layout.node_directories(self._directory):
                if not self._is_forwarding(node_dir) and self._has_work(node_dir) and not stop.is_set():
                    self._start(node_dir)
            stop.wait(waits().service_scan)

    def finish(self, timeout: float) -> list[Report]:
        """Wait up to ``timeout`` seconds for current deliveries; return all reports."""
        wait_until(lambda: not any(map(self._is_delivering, self._threads)), timeout)
        return [self._report(node_dir) for node_dir in layout.node_directories(self._directory)]

    def _report(self, node_dir: Path) -> Report:
        return node_report.report(node_dir, self._settings_of(node_dir))

    def _is_forwarding(self, node_dir: Path) -> bool:
        return node_dir in self._threads and self._threads[node_dir].is_alive()

    def _is_delivering(self, node_dir: Path) -> bool:
        return self._is_forwarding(node_dir) and _has_pending(self._report(node_dir))

    def _has_work(self, node_dir: Path) -> bool:
        return bool(segments.living_writers(node_dir)) or _has_pending(self._report(node_dir))

    def _start(self, node_dir: Path) -> None:
        thread = threading.Thread(
            target=_forward_if_possible, args=(node_dir, self._settings_of(node_dir)), daemon=True
        )
        self._threads[node_dir] = thread
        thread.start()


def _forward_if_possible(node_dir: Path, configured: Settings) -> None:
    try:
        forward_directory(node_dir, configured)
    except OSError as error:  # the service goes on with other directories
        warn_once(f"cannot forward {node_dir}: {error}", logger=logger)  # the service tries again and again


def _has_pending(report: Report) -> bool:
    return any(count.pending for count in report.exporters.values())
