"""Serve trackers: link traces to the run that training publishes, and find running trajectories.

A training framework starts the tracker's run after its workers, and so after the first spans.
"""

from __future__ import annotations

import time
from pathlib import Path

from otel_rollout.account.ledger import Ledger
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import Announces, FailureKind, LinksRuns
from otel_rollout.exporting.base import form_for
from otel_rollout.spool import layout
from otel_rollout.spool.files import running_roots


class TrackerRunLink:
    """The link between one exporter's traces and a run of its tracker.

    Args:
        node_dir: the node directory in which a run may be published.
        exporter_name: the exporter's name, under which the run is published.
        exporter: links traces if it implements :class:`~otel_rollout.exporting.api.LinksRuns`.
    """

    def __init__(self, node_dir: Path, exporter_name: str, exporter: object) -> None:
        self._node_dir = node_dir
        self._name = exporter_name
        self._link = exporter.link_run if isinstance(exporter, LinksRuns) else lambda run, rollout: None
        manifest = layout.read_manifest(node_dir)
        self._rollout = manifest.run_id if manifest else ""
        self._linked: str | None = None
        self._next_attempt = 0.0
        self._is_complete = True

    def delivered(self) -> None:
        """Record that lines were delivered after the link was made."""
        self._is_complete = False

    def is_new(self) -> bool:
        """Return whether a published run is not linked yet, and may be linked now."""
        run = self._published()
        return run is not None and run != self._linked and self.may_retry()

    def may_retry(self) -> bool:
        """Return whether the pause after a failure is over."""
        return time.monotonic() >= self._next_attempt

    def is_complete(self) -> bool:
        """Return whether all delivered traces are linked to the published run, if any."""
        run = self._published()
        return run is None or (run == self._linked and self._is_complete)

    def make(self, ledger: Ledger) -> None:
        """Link all delivered traces to the published run; record the result."""
        run = self._published() or ""
        failure = self._link(run, self._rollout)
        if failure is not None:
            logger.warning("%s: traces are not linked to the run %s: %s", self._name, run, failure.message)
        if failure is not None and failure.kind is FailureKind.UNAVAILABLE:
            self._next_attempt = time.monotonic() + waits().absent
            return
        self._linked = run
        self._is_complete = True
        ledger.note_link(self._name, run, failure.message if failure else None)

    def _published(self) -> str | None:
        return layout.read_trackers(self._node_dir).get(self._name)


class LiveTrajectories:
    """Announces running trajectories, each of them once.

    Args:
        node_dir: holds the root tables of the recording processes.
        exporter: shows the trajectories.
    """

    def __init__(self, node_dir: Path, exporter: Announces) -> None:
        self._node_dir = node_dir
        self._exporter = exporter
        self._form = form_for(exporter)
        self._next_look = 0.0
        self._known: set[str] = set()

    def announce(self) -> None:
        """Show the open roots older than ``Waits.live_age`` that are new since the last call."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + waits().live_look
        latest_ns = time.time_ns() - waits().live_age * 1e9
        roots = [root for root in running_roots(self._node_dir) if root.start_ns <= latest_ns]
        known, self._known = self._known, {root.span_id for root in roots}
        new = [self._form(root) for root in roots if root.span_id not in known]
        if new:
            self._exporter.announce(new)
