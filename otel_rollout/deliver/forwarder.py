"""Forward a node directory until its writers end and all lines are delivered."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace.export import SpanExporter

from otel_rollout.account.ledger import Ledger
from otel_rollout.account.ledger_file import replace_unreadable, set_aside_unreadable
from otel_rollout.base.environment import access_in
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.errors import warn_once
from otel_rollout.base.waits import waits
from otel_rollout.deliver import compaction
from otel_rollout.deliver.crash_recovery import CrashRecovery
from otel_rollout.deliver.dead_letters import rejected_file
from otel_rollout.deliver.delivery import Delivery
from otel_rollout.deliver.lines import LineCache
from otel_rollout.deliver.tail_sampling import TailSampling
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.exporting.entry_points import home_table, is_for_another_machine, load
from otel_rollout.redaction.redaction import redaction_of
from otel_rollout.settings import Settings, SettingsError
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.locks import ForwarderLock
from otel_rollout.spool.private_files import ForeignFileError, check_absent_or_own
from otel_rollout.spool.waiting import WaitingPrograms
from otel_rollout.turns.line_rewriter import LineRewriter

if TYPE_CHECKING:
    from otel_rollout.deliver.step_curves import StepCurves

_COLLECTION_THRESHOLDS = (20_000, 20, 50)
"""Thresholds of the garbage collector: collections are at least ten times as rare as by default."""


def collect_garbage_rarely() -> None:
    """Make garbage collections rare in this process, which only forwards.

    Decoded spans live as long as a batch and have no reference cycles. Visiting them, and the imported
    modules, takes a tenth of the forwarder's CPU time.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


class Forwarder:
    """Forwards a node directory.

    Args:
        node_dir: the node directory.
        configured: settings of the run.
        lock: the lock of the directory, which the caller holds.
    """

    def __init__(self, node_dir: Path, configured: Settings, lock: ForwarderLock) -> None:
        self._node_dir = node_dir
        self._settings = configured
        self._lock = lock
        self._recovery = CrashRecovery(node_dir)
        self._other_targets = compaction.OtherTargets(node_dir, configured.exporters.keys())
        self._deliveries: list[Delivery] = []
        self._tail_sampling: TailSampling | None = None
        self._curves: StepCurves | None = None
        self._table: str | None = None

    def run(self) -> None:
        """Deliver until nothing is left to do, or another forwarder takes over."""
        while True:
            is_finished = self._deliver()
            # Check for work after the release: a writer that has just seen the lock held starts no forwarder.
            is_requested = self._lock.is_requested()
            self._lock.release()
            if is_requested or not is_finished or not self._lock.is_current() or not self._has_work():
                return
            if not self._lock.acquire():
                return

    def _deliver(self) -> bool:
        """Run deliveries to their end; return False if a target stayed unavailable."""
        self._deliveries = self._started_deliveries()
        if self._settings.outcome_keep and self._deliveries:
            self._tail_sampling = TailSampling(self._node_dir, self._settings, self._lock.is_current)
            self._tail_sampling.start()
        try:
            is_finished = self._follow()
        finally:
            for thread in filter(None, (self._curves, *self._deliveries, self._tail_sampling)):
                thread.stop(waits().forwarder_stop)
            self._tail_sampling = None
        if is_finished and self._lock.is_current() and not self._lock.is_requested():
            self._clean_up(at_end=True)
            self._tend_table()
        return is_finished

    def _started_deliveries(self) -> list[Delivery]:
        set_aside_unreadable(self._node_dir)
        ledger = Ledger(self._node_dir)
        ledger.forget_failures(self._settings.exporters)
        self._lock.publish_access(access_in(os.environ))
        lines = _line_cache(self._node_dir, self._settings)
        deliveries = []
        exporters = {}
        for name, exporter_options in self._settings.exporters.items():
            try:
                exporter = self._exporter(name, exporter_options)
                is_ours = self._lock.is_current
                deliveries.append(Delivery(name, exporter, self._node_dir, is_ours, lines, self._settings))
                exporters[name] = exporter
            except Exception as error:
                is_foreseen = isinstance(error, (SettingsError, ForeignFileError))
                problem = str(error) if is_foreseen else f"exporter {name} cannot be set up"
                logger.error("%s", problem, exc_info=not is_foreseen)
                ledger.note_failure(name, ExportFailure(FailureKind.REFUSED, str(error)), is_retry=False)
        ledger.close()
        for delivery in deliveries:
            delivery.start()
        self._curves = self._started_curves(exporters)
        self._table = home_table(self._node_dir, self._settings, exporters)
        return deliveries

    def _tend_table(self) -> None:
        if self._table is not None and self._settings.delta_compact:
            from otel_rollout.deliver import table_upkeep  # late: it imports the table's modules

            table_upkeep.start(self._node_dir, self._table, self._settings.delta_keep)

    def _started_curves(self, exporters: Mapping[str, SpanExporter]) -> StepCurves | None:
        if self._settings.step_metrics == "none":
            return None
        from otel_rollout.deliver.step_curves import curves_of  # late: it imports the table's modules

        curves = curves_of(self._node_dir, self._settings, exporters)
        if curves is not None:
            curves.start()
        return curves

    def _exporter(self, name: str, options: Mapping[str, Any]) -> SpanExporter:
        exporter = load(name, options)
        if is_for_another_machine(exporter, self._settings):
            raise SettingsError(
                f"{name} writes to a file of the machine {self._settings.home_node}, which is not this "
                "machine. In a Ray job, spans recorded here are copied there when the job ends. Elsewhere, "
                "use a server as the target, or copy the spool there and run `otel-rollout forward`."
            )
        check_absent_or_own(rejected_file(self._node_dir, name))
        return exporter

    def _follow(self) -> bool:
        """Wait until no writer lives and all is delivered, or the lock is lost.

        Returns:
            False if lines, or metrics of steps, are still undelivered ``OTEL_ROLLOUT_FORWARDER_LINGER``
            seconds after the last writer ended, and no program waits for them.
        """
        waiting_programs = WaitingPrograms(self._node_dir)
        last_alive = last_cleanup = last_upkeep = time.monotonic()
        while self._lock.is_current() and not self._lock.is_requested():
            if time.monotonic() - last_cleanup > waits().clean_up:
                self._clean_up(at_end=False)
                replace_unreadable(self._node_dir)
                last_cleanup = time.monotonic()
            if time.monotonic() - last_upkeep > waits().table_upkeep:
                threading.Thread(target=self._tend_table, name="table-upkeep", daemon=True).start()
                last_upkeep = time.monotonic()
            writers = self._recovery.run()
            is_over = writers.dead_are_complete and not writers.any_alive
            if self._tail_sampling is not None:
                self._tail_sampling.is_over = is_over
            is_delivered = is_over and self._is_settled()
            is_complete = is_delivered if self._curves is None else self._curves.note_over(is_delivered)
            if writers.any_alive:
                last_alive = time.monotonic()
            elif is_complete:
                replace_unreadable(self._node_dir)
                return True
            elif waiting_programs.is_any():
                last_alive = time.monotonic()
            elif time.monotonic() - last_alive > self._settings.forwarder_linger:
                logger.warning(
                    "the last writer ended more than OTEL_ROLLOUT_FORWARDER_LINGER ago; undelivered spans "
                    "stay in %s: deliver them with `otel-rollout forward`",
                    self._node_dir,
                )
                return False
            time.sleep(waits().idle)
        return True

    def _clean_up(self, at_end: bool) -> None:
        """Remove or archive segments that every exporter and every target of the run is done with."""
        if len(self._deliveries) < len(self._settings.exporters):
            return  # an exporter that could not be set up still needs every segment

        def is_done(name: SegmentName, size: int) -> bool:
            is_delivered = all(delivery.is_done_with(name, size) for delivery in self._deliveries)
            return is_delivered and self._other_targets.are_done_with(name, size)

        try:
            self._other_targets.refresh()
            ended = self._recovery.recovered if at_end else ()
            compaction.retire(self._node_dir, is_done, self._settings.keep, ended)
        except (OSError, sqlite3.Error) as error:
            # Delivery does not depend on it, and it is tried again every few seconds.
            warn_once(f"cannot remove or archive segments in {self._node_dir}: {error}", logger=logger)

    def _is_settled(self) -> bool:
        """Return whether every delivery has caught up, or is refused."""
        return all(delivery.is_refused or delivery.is_caught_up() for delivery in self._deliveries)

    def _has_work(self) -> bool:
        if not self._node_dir.is_dir():
            return False
        return bool(self._recovery.not_recovered()) or not self._is_settled()


def _line_cache(node_dir: Path, configured: Settings) -> LineCache:
    """Return the exporters' line cache, which rewrites lines as the settings say."""
    try:
        redact = redaction_of(configured.redact)
    except Exception as error:  # noqa: BLE001 - a user's module may need variables that this process lacks
        # Without the user's function, text that is decoded here would not be redacted.
        logger.warning(
            "OTEL_ROLLOUT_REDACT cannot be loaded: token ids stay undecoded, turns are exported in full: %r",
            error,
        )
        return LineCache(node_dir)
    return LineCache(node_dir, LineRewriter(node_dir, configured.turns, redact).rewrite)
