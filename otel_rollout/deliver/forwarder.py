"""The forwarder: follows a node directory until its writers are gone and all is delivered."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from otel_rollout import spool
from otel_rollout.deliver import segments
from otel_rollout.deliver.delivery import Delivery
from otel_rollout.deliver.election import Election
from otel_rollout.deliver.exporters import load
from otel_rollout.deliver.ledger import Ledger
from otel_rollout.deliver.unfinished import close_unfinished
from otel_rollout.exporting import ExportFailure, FailureKind
from otel_rollout.settings import Settings, SettingsError

_SCAN_INTERVAL = 0.2
_STOP_TIMEOUT = 30.0
_logger = logging.getLogger("otel_rollout.deliver")


def forward(node_dir: Path, configured: Settings, election: Election) -> None:
    """Deliver until nothing is left to do. The caller has won the election."""
    deliveries = _deliveries(node_dir, configured)
    healed: set[str] = set()
    try:
        while True:
            _follow(node_dir, configured, deliveries, healed)
            # Resign, then look once more: a writer that saw the lock held just now relies on us.
            election.resign()
            if not _is_unfinished(node_dir, deliveries, healed) or not election.win():
                return
    finally:
        for delivery in deliveries:
            delivery.stop(_STOP_TIMEOUT)


def _deliveries(node_dir: Path, configured: Settings) -> list[Delivery]:
    deliveries = []
    ledger = Ledger(node_dir)
    for name, options in configured.exporters.items():
        try:
            exporter = load(name, options)
            if getattr(exporter, "target_is_local", False) and not _is_home(configured):
                raise SettingsError(
                    f"{name} writes to a file of the machine {configured.home_node}, and this is another "
                    "one. What is recorded here stays here: give all machines a server as target, or copy "
                    "the spool there and run `otel-rollout forward`."
                )
            deliveries.append(Delivery(name, exporter, node_dir))
        except SettingsError as error:
            _logger.error("%s", error)
            ledger.note_failure(name, ExportFailure(FailureKind.REFUSED, str(error)))
        except Exception as error:
            _logger.exception("exporter %s cannot be set up", name)
            ledger.note_failure(name, ExportFailure(FailureKind.REFUSED, str(error)))
    ledger.close()
    for delivery in deliveries:
        delivery.start()
    return deliveries


def _is_home(configured: Settings) -> bool:
    """Whether this is the machine whose files the run may write to."""
    return configured.home_node in ("", configured.node or spool.node_id())


def _follow(node_dir: Path, configured: Settings, deliveries: list[Delivery], healed: set[str]) -> None:
    """Return when no writer lives and all is delivered, or when waiting longer is of no use."""
    last_alive = time.monotonic()
    while node_dir.is_dir():
        if _heal_the_dead(node_dir, healed):
            last_alive = time.monotonic()
        elif all(delivery.is_over or delivery.is_caught_up() for delivery in deliveries):
            return
        elif time.monotonic() - last_alive > configured.forwarder_linger:
            _logger.warning("the last writer is gone for long; what is pending stays in %s", node_dir)
            return
        time.sleep(_SCAN_INTERVAL)


def _heal_the_dead(node_dir: Path, healed: set[str]) -> bool:
    """Complete what writers left that died since the last look. Whether any writer lives."""
    alive = segments.living_writers(node_dir)
    for writer in set(spool.journals(node_dir)) - alive - healed:
        segments.heal(node_dir, writer)
        close_unfinished(node_dir, writer)
        healed.add(writer)
    return bool(alive)


def _is_unfinished(node_dir: Path, deliveries: list[Delivery], healed: set[str]) -> bool:
    return node_dir.is_dir() and (
        _heal_the_dead(node_dir, healed)
        or not all(delivery.is_over or delivery.is_caught_up() for delivery in deliveries)
    )
