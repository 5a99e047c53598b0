"""The exporter itself: settings, mapping and server put together behind OpenTelemetry's ``SpanExporter``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.base import semconv
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.exporting.projects import by_project
from otel_rollout_weave import batching, mapping, settings
from otel_rollout_weave.errors import UndeliveredError
from otel_rollout_weave.mapping import Call, Feedback
from otel_rollout_weave.memory import Memory
from otel_rollout_weave.projects import Projects
from otel_rollout_weave.server import Server

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

MAX_RUNNING: Final = 100
"""Trajectories shown as running at a time: each costs a request when it begins, and one when it ends."""
SERVER_ERRORS: Final = 3
"""Answers "500" to the same calls after which they, and not the server, are suspected."""
_ANNOUNCING_THREADS: Final = 8
_CHUNK: Final = 1000
_ASKED_AT_ONCE: Final = 100

_logger = logging.getLogger(__name__)


class WeaveSpanExporter(SpanExporter):
    """Writes spans to W&B Weave as calls: one trace per trajectory, filtered by its identity and its scores.

    Each span goes to the Weave project named by its ``rollout.project_name`` (created if missing) unless a
    project is given here. Scores become feedback and are put into the output of a trajectory's root.

    Weave's store shows a call that is sent twice twice, until it merges the two. So what was acknowledged is
    not sent again, and what may have arrived is asked for first: calls of a request without an answer, and
    those that ended before this exporter was built, which a predecessor may have sent.

    Every argument wins over its environment variable. Nothing is connected before the first ``export``.

    Args:
        api_key: of the W&B account (``WANDB_API_KEY``, else the netrc file that ``wandb login`` writes).
        entity: user or team (``WANDB_ENTITY``; the account's default).
        project: Weave project of all spans, also as ``entity/project`` (``WANDB_PROJECT``).
        run_id: W&B run, of the calls' own project, that all calls belong to (``WANDB_RUN_ID``).
        base_url: W&B server (``WANDB_BASE_URL``; https://api.wandb.ai).
        trace_server_url: Weave trace server (``WF_TRACE_SERVER_URL``; the one that belongs to ``base_url``).
        timeout: seconds the server may stay silent in one request; 30.
        max_request_bytes: bytes of JSON in one request. A larger call goes alone.

    Attributes:
        last_failure: why the last ``export`` returned FAILURE; None after a success.

    Raises:
        ValueError: an argument or environment variable is missing or malformed.
    """

    last_failure: ExportFailure | None

    def __init__(
        self,
        *,
        api_key: str | None = None,
        entity: str | None = None,
        project: str | None = None,
        run_id: str | None = None,
        base_url: str | None = None,
        trace_server_url: str | None = None,
        timeout: float | None = None,
        max_request_bytes: int = batching.MAX_REQUEST_BYTES,
    ) -> None:
        if max_request_bytes <= 0:
            raise ValueError(
                f"max_request_bytes= is {max_request_bytes}; expected a positive number of bytes."
            )
        self._settings = settings.resolve(
            api_key=api_key,
            entity=entity,
            project=project,
            run_id=run_id,
            base_url=base_url,
            trace_server_url=trace_server_url,
            timeout=timeout,
        )
        self._max_request_bytes = max_request_bytes
        self._server = Server(self._settings)
        self._projects = Projects(self._server, self._settings)
        self._last_project: str | None = None
        self._linked_run: str | None = None
        self._born_ns = time.time_ns()
        # Call id → whether it is stored; False: it may be.
        self._sent: Memory[bool] = Memory()
        self._refused: Memory[str] = Memory()
        self._scores: Memory[Feedback | None] = Memory()
        self._running: set[str] = set()
        self._can_announce = True
        self._suspects: tuple[str, int] = ("", 0)
        self._server_errors = 0
        self._closed = False
        # A SimpleSpanProcessor exports from whichever thread ended the span.
        self._lock = threading.Lock()
        self.last_failure = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans and their scores. Never raises; ``last_failure`` says why it did not work."""
        with self._lock:
            failure = self._failure_of(lambda: self._export(spans))
            if failure is None:
                self.last_failure = None
                return SpanExportResult.SUCCESS
            # Once per trouble, not once per attempt: whoever drives the exporter may try for hours.
            if self.last_failure is None or self.last_failure.message != failure.message:
                _logger.warning("%s", failure.message)
            self.last_failure = failure
            return SpanExportResult.FAILURE

    def announce(self, roots: Sequence[ReadableSpan]) -> None:
        """Show trajectories as running, before their root spans have ended.

        Never raises: a trajectory that is not announced appears when it ends. The caller sees to it that
        none of the roots was exported before.
        """
        with self._lock:
            failure = self._failure_of(lambda: self._announce(roots)) if self._can_announce else None
        if failure is not None:
            _logger.debug("Running trajectories could not be announced: %s", failure.message)

    def link_run(self, run: str, rollout_run_id: str) -> ExportFailure | None:
        """Let what is exported from now on belong to a W&B run, and tie what was exported before to it.

        A call that Weave has cannot be given a run any more (written again, it would show twice). So the
        trajectories of the rollout that were written without it get the run as feedback ``wb_run``.

        Args:
            run: ``entity/project/run``.
            rollout_run_id: the rollout's run, in whatever process and node it was delivered.

        Returns:
            Why it did not work; None if it did. Never raises.
        """
        with self._lock:
            return self._failure_of(lambda: self._link_run(run, rollout_run_id))

    def check(self) -> ExportFailure | None:
        """See whether W&B and its trace server are there and accept us; None if so. Writes nothing."""
        with self._lock:
            return self._failure_of(self._check)

    def traces_url(self, project: str) -> str | None:
        """The address of Weave's page of traces for a rollout's project; None where W&B does not answer."""
        with self._lock:
            try:
                return f"{self._settings.app_url}/{self._projects.id_of(project)}/weave/traces"
            except UndeliveredError:
                return None

    def destination(self, project: str) -> str:
        """Return where a person finds the traces of a project; its address once W&B has been asked."""
        known = self._projects.known_id(project)
        if known is not None:
            return f"W&B Weave at {self._settings.app_url}/{known}/weave/traces"
        name = "/".join(filter(None, (self._settings.entity, self._settings.project or project)))
        return f"W&B Weave project {name!r} at {self._settings.app_url}"

    def shutdown(self) -> None:
        """Close connections. Later exports fail."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._server.close()

    @property
    def target_is_local(self) -> bool:
        """Whether spans go into a file of this machine (see ``otel_rollout.exporting``): never."""
        return False

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """True at once: ``export`` keeps nothing back."""
        return True

    # --- what they do, raising UndeliveredError -----------------------------------------------------------

    def _failure_of(self, act: Any) -> ExportFailure | None:
        try:
            if self._closed:
                raise UndeliveredError(FailureKind.REFUSED, "The Weave exporter has been shut down.")
            act()
        except UndeliveredError as error:
            failure = error.failure
        except Exception as error:  # an exporter must not raise; what is kept can be sent again
            _logger.debug("Unexpected error in the Weave exporter", exc_info=True)
            message = f"Unexpected {type(error).__name__} in the Weave exporter: {error}"
            failure = ExportFailure(FailureKind.UNAVAILABLE, message)
        else:
            return None
        return ExportFailure(failure.kind, self._settings.redact(failure.message), failure.retry_after)

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        for project, group in by_project(spans, self._last_project).items():
            project_id = self._projects.id_of(project)
            calls, scores = self._mapped(group, project_id)
            self._write_calls(project_id, calls)
            self._write_feedback(project_id, scores)
            self._last_project = project or self._last_project

    def _mapped(
        self, spans: Sequence[ReadableSpan], project_id: str
    ) -> tuple[list[Call], dict[str, Feedback]]:
        run = self._run_of(project_id)
        try:
            scores = mapping.newest(score for span in spans for score in mapping.feedback_of(span))

            def known(feedback_id: str) -> Feedback | None:
                candidates = (scores.get(feedback_id), self._scores.get(feedback_id))
                return max(filter(None, candidates), key=lambda score: score.rank, default=None)

            return [mapping.to_call(span, project_id, run, known) for span in spans], scores
        except Exception as error:  # whatever cannot be encoded is the batch's fault
            raise UndeliveredError(
                FailureKind.REJECTED, f"A span cannot be encoded ({type(error).__name__}: {error})."
            ) from error

    def _run_of(self, project_id: str) -> str | None:
        own = f"{project_id}/{self._settings.run_id}" if self._settings.run_id else None
        return self._linked_run or own

    # --- calls ---------------------------------------------------------------------------------------------

    def _write_calls(self, project_id: str, calls: Sequence[Call]) -> None:
        # A batch may hold a call twice: the latest counts.
        pending = {call.id: call for call in calls if self._sent.get(call.id) is not True}
        doubtful = [call.id for call in pending.values() if self._may_be_stored(call)]
        for call_id in self._stored(project_id, doubtful):
            self._sent.put(call_id, True)
            del pending[call_id]
        for call_id in pending:
            if refusal := self._refused.get(call_id):
                raise UndeliveredError(FailureKind.REJECTED, refusal)
        for batch in batching.requests_of(pending.values(), self._max_request_bytes):
            self._send(project_id, batch)
        self._take_markers_off(project_id, calls)

    def _may_be_stored(self, call: Call) -> bool:
        return call.id in self._sent or self._is_older(call.ended_ns)

    def _is_older(self, time_ns: int) -> bool:
        """Whether something may be older than this exporter, by a clock that may have been set back."""
        return not self._born_ns <= time_ns <= time.time_ns()

    def _stored(self, project_id: str, ids: Sequence[str]) -> set[str]:
        """Which of the calls the server has."""
        found: set[str] = set()
        try:
            for chunk in _chunks(ids, _CHUNK):
                known = self._server.find_calls(
                    project_id, ["id"], "looking for calls already there", filter={"call_ids": chunk}
                )
                found.update(call["id"] for call in known)
        except UndeliveredError as error:
            if error.failure.kind is FailureKind.UNAVAILABLE or error.status in (401, 403):
                raise
            # A server that cannot be asked: rather twice than never.
            _logger.debug("Weave does not say which calls it has: %s", error)
        return found

    def _send(self, project_id: str, batch: Sequence[Call]) -> None:
        try:
            self._server.write_calls(project_id, [call.encoded for call in batch])
        except UndeliveredError as error:
            if error.unknown:
                for call in batch:
                    self._sent.put(call.id, False)
            if error.status == 404:
                self._projects.forget()
            raise self._judged(project_id, batch, error) from None
        for call in batch:
            self._sent.put(call.id, True)

    def _judged(self, project_id: str, batch: Sequence[Call], error: UndeliveredError) -> UndeliveredError:
        """The error, as a rejection where it turns out to be the calls' fault.

        "Internal Server Error" is what the server answers in trouble of its own, and to content it did not
        foresee. Several times in a row make it suspicious; whether it takes a stand-in for a call decides.
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
            self._refused.put(call.id, str(error))
        return UndeliveredError(FailureKind.REJECTED, str(error))

    def _is_suspicious(self, batch: Sequence[Call], error: UndeliveredError) -> bool:
        if error.status != 500:
            return False
        suspects = (batch[0].id, len(batch))
        self._server_errors = self._server_errors + 1 if suspects == self._suspects else 1
        self._suspects = suspects
        return self._server_errors >= SERVER_ERRORS

    # --- running trajectories ------------------------------------------------------------------------------

    def _announce(self, roots: Sequence[ReadableSpan]) -> None:
        markers: dict[str, list[tuple[str, bytes]]] = {}
        for root in roots[: MAX_RUNNING - len(self._running)]:
            project = (root.attributes or {}).get(semconv.PROJECT_NAME)
            project_id = self._projects.id_of(str(project) if project else None)
            marker = mapping.to_marker(root, project_id, self._run_of(project_id))
            markers.setdefault(project_id, []).append((mapping.marker_id_of(root.context), marker))
        for project_id, of_project in markers.items():
            there = self._stored(project_id, [marker_id for marker_id, _ in of_project])
            self._running |= {marker_id for marker_id, _ in of_project}
            self._start(project_id, [marker for marker_id, marker in of_project if marker_id not in there])

    def _start(self, project_id: str, markers: Sequence[bytes]) -> None:
        try:
            with ThreadPoolExecutor(_ANNOUNCING_THREADS, thread_name_prefix="weave-announce") as pool:
                for _ in pool.map(lambda marker: self._server.start_call(project_id, marker), markers):
                    pass
        except UndeliveredError as error:
            # A server without that route, or without the update behind it, will not have it later either.
            self._can_announce = error.failure.kind is FailureKind.UNAVAILABLE
            raise

    def _take_markers_off(self, project_id: str, calls: Iterable[Call]) -> None:
        """Remove what showed trajectories as running that have ended."""
        ended = [
            call.marker_id
            for call in calls
            if call.marker_id and (call.marker_id in self._running or self._is_older(call.ended_ns))
        ]
        for chunk in _chunks(ended, _CHUNK):
            try:
                self._server.delete_calls(project_id, chunk)
            except UndeliveredError as error:
                if error.failure.kind is FailureKind.UNAVAILABLE:
                    raise
                _logger.debug("Weave keeps what showed a trajectory as running: %s", error)
            self._running.difference_update(chunk)

    # --- scores and runs -----------------------------------------------------------------------------------

    def _write_feedback(self, project_id: str, newest: Mapping[str, Feedback]) -> None:
        """Write scores, by their ids; what Weave has that is as new stays, and what is older goes."""
        pending = {id_: score for id_, score in newest.items() if _is_newer(score, self._scores.get(id_))}
        replaced = {id_ for id_ in pending if id_ in self._scores}
        for ids in _chunks(list(pending), _ASKED_AT_ONCE):
            for id_, ranks in self._stored_feedback(project_id, ids).items():
                replaced.add(id_)
                # One that is stored twice is written anew, unless Weave knows a newer one.
                if max(ranks) > pending[id_].rank or ranks == [pending[id_].rank]:
                    del pending[id_]
        for ids in _chunks([id_ for id_ in pending if id_ in replaced], _ASKED_AT_ONCE):
            self._server.purge_feedback(project_id, ids)
        for chunk in _chunks(list(pending.values()), _CHUNK):
            for score in chunk:
                self._scores.put(score.id, None)  # in case no answer comes
            self._server.write_feedback([score.to_weave(project_id) for score in chunk])
            for score in chunk:
                self._scores.put(score.id, score)

    def _stored_feedback(self, project_id: str, ids: Sequence[str]) -> dict[str, list[mapping.Rank]]:
        """The ranks of those scores that the server has."""
        try:
            found = self._server.find_feedback(project_id, ids)
        except UndeliveredError as error:
            if error.failure.kind is FailureKind.UNAVAILABLE or error.status in (401, 403):
                raise
            # A server that cannot be asked: what this exporter remembers has to do.
            _logger.debug("Weave does not say which scores it has: %s", error)
            return {}
        return {id_: [mapping.rank_of(payload) for payload in payloads] for id_, payloads in found.items()}

    def _link_run(self, run: str, rollout_run_id: str) -> None:
        parts = run.split("/")
        if len(parts) != 3 or not all(parts):
            raise UndeliveredError(
                FailureKind.REFUSED, f"The W&B run is {run!r}; expected entity/project/run."
            )
        self._linked_run = run
        for project_id in {*self._projects.known_ids(), f"{parts[0]}/{parts[1]}"}:
            try:
                self._link_written(project_id, run, rollout_run_id)
            except UndeliveredError as error:
                if error.status != 404:  # the run's project need not be a Weave project
                    raise

    def _link_written(self, project_id: str, run: str, rollout_run_id: str) -> None:
        its_attribute = {"$getField": f"attributes.{mapping.RUN_ID_ATTRIBUTE}"}
        roots = self._server.find_calls(
            project_id,
            ["id", "ended_at", "wb_run_id"],
            "looking for trajectories of the run",
            filter={"trace_roots_only": True},
            query={"$expr": {"$eq": [its_attribute, {"$literal": rollout_run_id}]}},
            sort_by=[{"field": "started_at", "direction": "asc"}],
        )
        # A trajectory that runs will have it in its own call when it ends.
        links = [
            mapping.run_feedback(root["id"], run, time.time_ns())
            for root in roots
            if root.get("ended_at") and root.get("wb_run_id") != run
        ]
        self._write_feedback(project_id, {link.id: link for link in links if not self._is_linked(link)})

    def _is_linked(self, link: Feedback) -> bool:
        known = self._scores.get(link.id)
        return known is not None and known.value == link.value

    def _check(self) -> None:
        self._server.ping()
        default = self._server.default_entity()
        entity = self._settings.entity or default or self._projects.entity()
        project = self._server.project_name(entity, self._settings.project or "otel-rollout")
        if project:  # else it is created by the first export
            nothing = {"call_ids": ["00000000-0000-4000-8000-000000000000"]}
            for _ in self._server.find_calls(
                f"{entity}/{project}", ["id"], "reading from Weave", filter=nothing
            ):
                pass


def _is_newer(score: Feedback, known: Feedback | None) -> bool:
    return known is None or score.rank > known.rank


def _chunks(entries: Sequence[Any], size: int) -> Iterable[list[Any]]:
    return (list(entries[at : at + size]) for at in range(0, len(entries), size))
