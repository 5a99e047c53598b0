"""Telling an exporter which run of its tracker the rollout belongs to, whenever that becomes known.

A training framework starts its MLflow or W&B run when its workers exist already, so after the first spans.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from otel_rollout.account.ledger import Ledger
from otel_rollout.exporting.api import ExportFailure, FailureKind, LinksRuns
from otel_rollout.spool import layout

_RETRY_INTERVAL = 5.0
_logger = logging.getLogger("otel_rollout.forwarder")


class RunLink:
    """The link between what one exporter delivers and a run of its tracker.

    Args:
        node_dir: where the run may be published.
        exporter_name: under which name.
        exporter: without :class:`~otel_rollout.exporting.api.LinksRuns` there is nothing to link.
    """

    def __init__(self, node_dir: Path, exporter_name: str, exporter: object) -> None:
        self._node_dir = node_dir
        self._name = exporter_name
        self._link = exporter.link_run if isinstance(exporter, LinksRuns) else _link_nothing
        manifest = layout.read_manifest(node_dir)
        self._rollout = manifest.run_id if manifest else ""
        self._told: str | None = None
        self._next_attempt = 0.0
        self._is_complete = True

    def delivered(self) -> None:
        """Note that something was delivered since the exporter was told."""
        self._is_complete = False

    def is_news(self) -> bool:
        """Whether a run was published that the exporter has not been told of."""
        run = self._published()
        return run is not None and run != self._told and self.may_be_told()

    def may_be_told(self) -> bool:
        """Whether the pause after a failure is over."""
        return time.monotonic() >= self._next_attempt

    def is_complete(self) -> bool:
        """Whether nothing is left to tell; at the end, what other machines delivered meanwhile is."""
        run = self._published()
        return run is None or (run == self._told and self._is_complete)

    def tell(self, ledger: Ledger) -> None:
        """Tell the exporter of the run that was published."""
        run = self._published() or ""
        failure = self._link(run, self._rollout)
        if failure is not None:
            _logger.warning("%s: not linked to the run %s: %s", self._name, run, failure.message)
        if failure is not None and failure.kind is FailureKind.UNAVAILABLE:
            self._next_attempt = time.monotonic() + _RETRY_INTERVAL
            return
        self._told = run
        self._is_complete = True
        ledger.note_link(self._name, run, failure.message if failure else None)

    def _published(self) -> str | None:
        return layout.read_trackers(self._node_dir).get(self._name)


def _link_nothing(run: str, rollout: str) -> ExportFailure | None:
    return None
