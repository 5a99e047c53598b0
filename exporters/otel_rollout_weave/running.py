"""Show running trajectories by marker calls, deleted when they end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.batching import chunks
from otel_rollout.otlp.span import Span
from otel_rollout_weave.calls import CallWriter
from otel_rollout_weave.ids import marker_id_of
from otel_rollout_weave.mapping import WeaveCall, to_marker
from otel_rollout_weave.server import Server

MAX_RUNNING: Final = 100
"""Maximum trajectories shown as running. Each costs one request when it starts and one when it ends."""
_THREADS: Final = 8
_IDS_PER_REQUEST: Final = 1000

_logger = logging.getLogger(__name__)


class RunningMarkers:
    """The markers of one exporter. Not thread-safe: used under the exporter's lock.

    Args:
        server: the server to write to.
        calls: writer that knows which calls are stored.
    """

    def __init__(self, server: Server, calls: CallWriter) -> None:
        self._server = server
        self._calls = calls
        self._running: set[str] = set()
        self.is_possible = True
        """False once the server has shown that it does not support running calls."""

    @property
    def room(self) -> int:
        """The number of trajectories that may be shown in addition."""
        return MAX_RUNNING - len(self._running)

    def show(self, project_id: str, roots: Sequence[Span], wb_run_id: str | None) -> None:
        """Show root spans as running.

        Raises:
            UndeliveredError: not all are shown.
        """
        markers = {marker_id_of(root): to_marker(root, project_id, wb_run_id) for root in roots}
        stored = self._calls.stored(project_id, list(markers))
        self._running |= markers.keys()
        missing = [marker for marker_id, marker in markers.items() if marker_id not in stored]
        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="weave-announce") as pool:
                for _ in pool.map(lambda marker: self._server.start_call(project_id, marker), missing):
                    pass
        except UndeliveredError as error:
            # A server that lacks the route, or the update behind it, will not get it during the run.
            self.is_possible = error.failure.kind is FailureKind.UNAVAILABLE
            raise

    def remove(self, project_id: str, calls: Iterable[WeaveCall]) -> None:
        """Delete the markers of trajectories that have ended.

        Raises:
            UndeliveredError: the server does not answer.
        """
        ended = [
            call.marker_id
            for call in calls
            if call.marker_id and (call.marker_id in self._running or self._calls.is_older(call.end_ns))
        ]
        for chunk in chunks(ended, _IDS_PER_REQUEST):
            try:
                self._server.delete_calls(project_id, chunk)
            except UndeliveredError as error:
                if error.failure.kind is FailureKind.UNAVAILABLE:
                    raise
                _logger.debug("Weave keeps the marker of a trajectory that has ended: %s", error)
            self._running.difference_update(chunk)
