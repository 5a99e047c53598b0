"""Write each call once, find the calls that Weave refuses, and show running trajectories.

If a call is sent twice, Weave shows two calls until it merges them. So this module does not send an
acknowledged call again. Before sending, it asks Weave for calls that may have arrived: calls of a request
without an answer, and calls that ended before this exporter was built, which an earlier exporter may have
sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.exporting.api import FailureKind, UndeliveredError
from otel_rollout.exporting.batching import batches, chunks
from otel_rollout.otlp.span import Span
from otel_rollout_weave.ids import marker_id_of
from otel_rollout_weave.mapping import WeaveCall, to_marker
from otel_rollout_weave.server import MAX_REMEMBERED, Projects, Server, is_question_refused

MAX_CALLS: Final = 1000
"""Maximum calls in one request; Weave's own client has this limit."""
MAX_REQUEST_BYTES: Final = 8 << 20
"""Default maximum bytes of a request. Larger ones, of up to 32 MiB, are no faster and take more memory."""
SERVER_ERRORS: Final = 3
"""Answers "500" in a row to one batch after which its calls, and not the server, are suspected."""
MAX_RUNNING: Final = 100
"""Maximum trajectories shown as running. Each costs one request when it starts and one when it ends."""
_THREADS: Final = 8
_IDS_PER_QUERY: Final = 1000
_INTERNAL_SERVER_ERROR: Final = 500

_logger = logging.getLogger(__name__)


class CallWriter:
    """Writes calls of one exporter.

    Not thread-safe: the exporter calls it under its lock.

    Args:
        server: the server to write to.
        projects: cache of project ids; it is cleared when the server says that a project is gone.
        max_request_bytes: maximum bytes of JSON in one request; a larger call is sent alone.
    """

    def __init__(self, server: Server, projects: Projects, max_request_bytes: int) -> None:
        self._server = server
        self._projects = projects
        self._max_request_bytes = max_request_bytes
        self._start_ns = time.time_ns()
        # Call id → True: the call is stored; False: the call may be stored.
        self._sent: BoundedDict[str, bool] = BoundedDict(MAX_REMEMBERED)
        self._refused: BoundedDict[str, str] = BoundedDict(MAX_REMEMBERED)
        self._suspects: tuple[str, int] = ("", 0)
        self._server_errors = 0

    def write(self, project_id: str, calls: Sequence[WeaveCall]) -> None:
        """Write calls that Weave does not have.

        Raises:
            UndeliveredError: not all calls are stored; REJECTED if one of them is at fault.
        """
        # A batch may hold a call twice; the last one wins.
        pending = {call.id: call for call in calls if self._sent.get(call.id) is not True}
        doubtful = [
            call.id for call in pending.values() if call.id in self._sent or self.is_older(call.end_ns)
        ]
        for call_id in self.stored(project_id, doubtful):
            self._sent[call_id] = True
            del pending[call_id]
        for call_id in pending:
            if refusal := self._refused.get(call_id):
                raise UndeliveredError(FailureKind.REJECTED, refusal)
        for batch in requests_of(list(pending.values()), self._max_request_bytes):
            self._send(project_id, batch)

    def is_older(self, time_ns: int) -> bool:
        """Return whether a time may be before this writer's start.

        That holds for a time in the future, too: the clock may have been set back.
        """
        return not self._start_ns <= time_ns <= time.time_ns()

    def stored(self, project_id: str, ids: Sequence[str]) -> set[str]:
        """Return the ids that the server has; none of them if it refuses the query.

        Raises:
            UndeliveredError: the server does not answer, or denies access.
        """
        found: set[str] = set()
        try:
            for chunk in chunks(ids, _IDS_PER_QUERY):
                known = self._server.find_calls(
                    project_id, ["id"], "looking for calls already there", filter={"call_ids": chunk}
                )
                found.update(call["id"] for call in known)
        except UndeliveredError as error:
            if not is_question_refused(error):
                raise
            # Continue: a call that is shown twice is better than no call.
            _logger.debug("Weave does not say which calls it has: %s", error)
        return found

    def _send(self, project_id: str, batch: Sequence[WeaveCall]) -> None:
        try:
            self._server.write_calls(project_id, [call.encoded for call in batch])
        except UndeliveredError as error:
            if error.may_have_arrived:
                for call in batch:
                    self._sent[call.id] = False
            if error.status == 404:
                self._projects.forget()
            raise self._judged(project_id, batch, error) from None
        for call in batch:
            self._sent[call.id] = True

    def _judged(
        self, project_id: str, batch: Sequence[WeaveCall], error: UndeliveredError
    ) -> UndeliveredError:
        """Return the error; a rejection if the calls are at fault.

        The server answers "Internal Server Error" to its own faults and to content that it cannot handle.
        Several such answers in a row make the calls suspicious. A single suspicious call is at fault if the
        server accepts a stand-in for the call.
        """
        is_rejected = error.failure.kind is FailureKind.REJECTED
        if not is_rejected and not self._is_suspicious(batch, error):
            return error
        if len(batch) == 1:
            (call,) = batch
            try:
                self._server.write_calls(project_id, [call.stand_in()])
            except UndeliveredError:
                if not is_rejected:
                    return error
            self._refused[call.id] = str(error)
        return UndeliveredError(FailureKind.REJECTED, str(error))

    def _is_suspicious(self, batch: Sequence[WeaveCall], error: UndeliveredError) -> bool:
        if error.status != _INTERNAL_SERVER_ERROR:
            return False
        suspects = (batch[0].id, len(batch))
        self._server_errors = self._server_errors + 1 if suspects == self._suspects else 1
        self._suspects = suspects
        return self._server_errors >= SERVER_ERRORS


def requests_of(calls: Sequence[WeaveCall], max_bytes: int = MAX_REQUEST_BYTES) -> list[list[WeaveCall]]:
    """Divide calls among requests; a call larger than ``max_bytes`` is sent alone."""
    return list(batches(calls, lambda call: len(call.encoded) + 1, max_bytes, MAX_CALLS))


class RunningMarkers:
    """The calls that show running trajectories (markers). Not thread-safe: used under the exporter's lock.

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
        for chunk in chunks(ended, _IDS_PER_QUERY):
            try:
                self._server.delete_calls(project_id, chunk)
            except UndeliveredError as error:
                if error.failure.kind is FailureKind.UNAVAILABLE:
                    raise
                _logger.debug("Weave keeps the marker of a trajectory that has ended: %s", error)
            self._running.difference_update(chunk)
