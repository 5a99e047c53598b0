"""The forwarder: follows a node directory until its writers are gone and all is delivered."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from otel_rollout._state import process
from otel_rollout.account.ledger import Ledger, replace_unreadable, set_aside_unreadable
from otel_rollout.base.environment import access_in
from otel_rollout.base.errors import warn_once
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.exporting.registry import is_for_another_machine, load
from otel_rollout.forwarder import compaction
from otel_rollout.forwarder.crash_recovery import close_unfinished
from otel_rollout.forwarder.delivery import Delivery, rejected_file
from otel_rollout.forwarder.enrichment import MEMORY_BYTES, Enrichment
from otel_rollout.forwarder.lock import Election
from otel_rollout.forwarder.tail_sampling import Selection
from otel_rollout.forwarder.tokenizer_cache import Decoders
from otel_rollout.recording.redaction import redaction_of
from otel_rollout.settings import Settings, SettingsError
from otel_rollout.spool import segments
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import ForeignFileError, check_absent_or_own

_SCAN_INTERVAL = 0.2
_RETIRE_INTERVAL = 2.0
_STOP_TIMEOUT = 30.0
_logger = logging.getLogger("otel_rollout.forwarder")


def forward(node_dir: Path, configured: Settings, election: Election) -> None:
    """Deliver until nothing is left to do. The caller has won the election."""
    healed: set[str] = set()
    while True:
        deliveries = _deliveries(node_dir, configured, election)
        selection = _selection(node_dir, configured, election) if deliveries else None
        try:
            finished = _follow(node_dir, configured, election, deliveries, selection, healed)
        finally:
            for delivery in deliveries:
                delivery.stop(_STOP_TIMEOUT)
            if selection is not None:
                selection.stop(_STOP_TIMEOUT)
        if finished and election.stands() and not election.is_succeeded():
            _retire(node_dir, configured, deliveries, at_end=True)
        # Stopped, resign; then look once more: a writer that saw the lock held just now relies on us.
        is_succeeded = election.is_succeeded()
        election.resign()
        if is_succeeded or not finished or not election.stands() or not _has_work(node_dir, deliveries):
            return
        if not election.win():
            return


def _deliveries(node_dir: Path, configured: Settings, election: Election) -> list[Delivery]:
    deliveries = []
    set_aside_unreadable(node_dir)
    ledger = Ledger(node_dir)
    ledger.forget_failures()
    election.begin(access_in(os.environ))
    enrichments = _enrichments(node_dir, configured)
    for name, options in configured.exporters.items():
        try:
            exporter = load(name, options)
            if is_for_another_machine(exporter, configured):
                raise SettingsError(
                    f"{name} writes to a file of the machine {configured.home_node}, and this is another "
                    "one. What is recorded here travels there when the job ends through Ray; else give all "
                    "machines a server as target, or copy the spool there and run `otel-rollout forward`."
                )
            check_absent_or_own(rejected_file(node_dir, name))
            selective = bool(configured.outcome_keep)
            deliveries.append(
                Delivery(
                    name, exporter, node_dir, election.stands, enrichments.get(name),
                    selective=selective, project=configured.project_name,
                )
            )  # fmt: skip
        except (SettingsError, ForeignFileError) as error:
            _logger.error("%s", error)
            ledger.note_failure(name, ExportFailure(FailureKind.REFUSED, str(error)), is_retry=False)
        except Exception as error:
            _logger.exception("exporter %s cannot be set up", name)
            ledger.note_failure(name, ExportFailure(FailureKind.REFUSED, str(error)), is_retry=False)
    ledger.close()
    for delivery in deliveries:
        delivery.start()
    return deliveries


def _enrichments(node_dir: Path, configured: Settings) -> dict[str, Enrichment]:
    """Return what the lines of each exporter go through: each has a memory of its own."""
    try:
        redact = redaction_of(configured.redact)
    except Exception as error:  # noqa: BLE001 - what a user's module raises here, where variables lack
        # Without it nothing is decoded, where it was not looked at.
        _logger.warning("token ids stay without their text, and what is resent is told in full: %r", error)
        return {}
    decoders = Decoders(node_dir)
    memory = MEMORY_BYTES // max(1, len(configured.exporters))
    return {
        name: Enrichment(node_dir, configured.turns, redact, decoders, memory)
        for name in configured.exporters
    }


def _selection(node_dir: Path, configured: Settings, election: Election) -> Selection | None:
    if not configured.outcome_keep:
        return None
    selection = Selection(node_dir, configured, election.stands)
    selection.start()
    return selection


def _follow(
    node_dir: Path,
    configured: Settings,
    election: Election,
    deliveries: list[Delivery],
    selection: Selection | None,
    healed: set[str],
) -> bool:
    """Watch over deliveries until no writer lives and all is delivered, or the directory is another one.

    Returns:
        False when it was given up: the target has been out of reach for too long after the last writer.
    """
    last_alive = last_retired = time.monotonic()
    while election.stands() and not election.is_succeeded():
        if time.monotonic() - last_retired > _RETIRE_INTERVAL:
            _retire(node_dir, configured, deliveries, at_end=False)
            replace_unreadable(node_dir)
            last_retired = time.monotonic()
        alive, complete = _heal_the_dead(node_dir, healed)
        if selection is not None:
            selection.is_over = complete and not alive
        if alive:
            last_alive = time.monotonic()
        elif complete and all(delivery.is_refused or delivery.is_caught_up() for delivery in deliveries):
            replace_unreadable(node_dir)
            return True
        elif time.monotonic() - last_alive > configured.forwarder_linger:
            _logger.warning("the last writer is gone for long; what is pending stays in %s", node_dir)
            return False
        time.sleep(_SCAN_INTERVAL)
    return True


def _retire(node_dir: Path, configured: Settings, deliveries: list[Delivery], at_end: bool) -> None:
    if len(deliveries) < len(configured.exporters):  # one that could not be set up has had nothing yet
        return

    def is_done(name: SegmentName, size: int) -> bool:
        return all(delivery.is_done_with(name, size) for delivery in deliveries)

    try:
        compaction.retire(node_dir, is_done, configured.keep, at_end)
    except OSError as error:  # nothing depends on it
        warn_once(f"cannot clear up {node_dir}: {error}", logger=_logger)  # it is tried every few seconds


def _heal_the_dead(node_dir: Path, healed: set[str]) -> tuple[bool, bool]:
    """Complete what writers left that died since the last look.

    Returns:
        Whether any writer lives, and whether all that do not are complete.
    """
    alive, complete = False, True
    for writer in segments.writers(node_dir) - healed:
        try:
            if segments.is_dead(node_dir, writer):
                segments.heal(node_dir, writer)
                close_unfinished(node_dir, writer)
                segments.discard_buffers(node_dir, writer)
                healed.add(writer)
            else:
                alive = True
        except Exception as error:  # a full disk, say: the others go on, and this one is tried again
            if writer not in process.incomplete_writers:
                unforeseen = not isinstance(error, OSError)
                _logger.warning("cannot complete what %s recorded: %s", writer, error, exc_info=unforeseen)
            process.incomplete_writers.add(writer)
            complete = False
    return alive, complete


def _has_work(node_dir: Path, deliveries: list[Delivery]) -> bool:
    return node_dir.is_dir() and (
        bool(segments.living_writers(node_dir))
        or not all(delivery.is_refused or delivery.is_caught_up() for delivery in deliveries)
    )
