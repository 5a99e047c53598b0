"""The exporter itself: settings and target put together behind OpenTelemetry's ``SpanExporter``."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.base import semconv
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.exporting.projects import by_project
from otel_rollout_mlflow import batching, settings
from otel_rollout_mlflow.experiments import Experiments
from otel_rollout_mlflow.mapping import (
    feedback_of,
    is_given_outside,
    is_root,
    running_trace,
    to_mlflow,
    trace_id_of,
)
from otel_rollout_mlflow.refusals import Refusals
from otel_rollout_mlflow.runs import RunLink
from otel_rollout_mlflow.scores import changes_of, tags_of
from otel_rollout_mlflow.server import ServerTarget
from otel_rollout_mlflow.store import StoreTarget
from otel_rollout_mlflow.target import Target, UndeliveredError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_rollout_mlflow.mapping import Feedback

DEFAULT_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
_LOOKED_UP_AT_ONCE: Final = 100

_logger = logging.getLogger(__name__)


class MlflowSpanExporter(SpanExporter):
    """Writes spans to MLflow: one trace per trajectory, searchable by step, sample, rollout and score.

    Each span goes to the experiment named by its ``rollout.project_name`` (created if missing) unless an
    experiment is given here, and to MLflow's "Default" experiment where neither is known. Sending the same
    spans again is safe: MLflow overwrites them.

    Scores become Feedback, written once their spans are stored: ``rollout.score.*`` of a root (a trace tag as
    well) and evaluation spans, however late. Of several of one name the newest by its own time stays, in
    whatever order they come. One given from outside its trajectory is Feedback and a tag but no span, as
    MLflow counts a trace's duration up to the end of its last span.

    Every argument wins over its environment variable. Nothing is connected before the first ``export``.

    Args:
        tracking_uri: an MLflow server ``http[s]://…``, or a database ``sqlite:///…``, ``postgresql://…``,
            ``mysql://…``, ``mssql://…`` written to directly (``MLFLOW_TRACKING_URI``; required).
        experiment_name: experiment of all spans (``MLFLOW_EXPERIMENT_NAME``).
        experiment_id: the same by id; it must exist (``MLFLOW_EXPERIMENT_ID``).
        run_id: MLflow run to link every trace to; it must exist (``MLFLOW_RUN_ID``).
        username: for basic authentication (``MLFLOW_TRACKING_USERNAME``).
        password: for basic authentication (``MLFLOW_TRACKING_PASSWORD``).
        token: for bearer authentication (``MLFLOW_TRACKING_TOKEN``).
        insecure_tls: do not check the server's certificate (``MLFLOW_TRACKING_INSECURE_TLS``).
        server_cert_path: CA bundle to check it with (``MLFLOW_TRACKING_SERVER_CERT_PATH``).
        timeout: seconds the server may stay silent in one request (``MLFLOW_HTTP_REQUEST_TIMEOUT``; 30).
        max_request_bytes: bytes of protobuf, before compression, in one request. A larger span goes alone.

    Attributes:
        last_failure: why the last ``export`` returned FAILURE; None after a success.

    Raises:
        ValueError: an argument or environment variable is missing, malformed or not supported.
    """

    last_failure: ExportFailure | None

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        experiment_id: str | None = None,
        run_id: str | None = None,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        insecure_tls: bool | None = None,
        server_cert_path: str | None = None,
        timeout: float | None = None,
        max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
    ) -> None:
        if max_request_bytes <= 0:
            raise ValueError(
                f"max_request_bytes= is {max_request_bytes}; expected a positive number of bytes."
            )
        self._settings = settings.resolve(
            tracking_uri=tracking_uri,
            experiment_name=experiment_name,
            experiment_id=experiment_id,
            run_id=run_id,
            username=username,
            password=password,
            token=token,
            insecure_tls=insecure_tls,
            server_cert_path=server_cert_path,
            timeout=timeout,
        )
        self._max_request_bytes = max_request_bytes
        self._target: Target = (
            ServerTarget(self._settings) if self._settings.is_server else StoreTarget(self._settings)
        )
        self._experiments = Experiments(self._target)
        self._run = RunLink(self._target, self._settings.run_id, self._settings.shown_uri)
        self._refusals = Refusals()
        self._last_project: str | None = None
        self._ready = False
        self._closed = False
        # A SimpleSpanProcessor exports from whichever thread ended the span.
        self._lock = threading.Lock()
        self.last_failure = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans and their scores. Never raises; ``last_failure`` says why it did not work."""
        with self._lock:
            failure = self._attempt(lambda: self._export(spans))
            # Once per trouble, not once per attempt: whoever drives the exporter may try for hours.
            if failure and (self.last_failure is None or self.last_failure.message != failure.message):
                _logger.warning("%s", failure.message)
            self.last_failure = failure
        return SpanExportResult.FAILURE if failure else SpanExportResult.SUCCESS

    def link_run(self, run: str, rollout_run_id: str) -> ExportFailure | None:
        """Link everything of a rollout run to an MLflow run that began after its first traces.

        What is exported from now on is linked as it is written. What is there is found by its tag
        ``rollout.run.id``, whoever delivered it. May be called any number of times.

        Args:
            run: id of the MLflow run, in place of the one given before.
            rollout_run_id: the resource attribute ``rollout.run.id`` of the spans that are meant.

        Returns:
            None once all is linked, else why it is not. Never raises; spans are exported all the same.
        """
        with self._lock:
            return self._attempt(lambda: self._link_run(run, rollout_run_id))

    def announce(self, roots: Sequence[ReadableSpan]) -> None:
        """List trajectories as running, with their tags, before their root spans have ended.

        Never raises: a trajectory that is not announced appears when it ends. The caller sees to it that
        none of the roots was exported before.
        """
        with self._lock:
            try:
                if not self._ready:
                    self._connect()
                for root in roots:
                    project = (root.attributes or {}).get(semconv.PROJECT_NAME)
                    experiment_id = self._experiment_id(str(project) if project else None)
                    self._target.announce(running_trace(root), experiment_id)
            except Exception:
                _logger.debug("Running trajectories could not be announced", exc_info=True)

    def prepare(self) -> None:
        """Import MLflow, where it is used, and connect, before the first ``export``. Never raises."""
        with self._lock:
            if not self._ready:
                self._attempt(self._connect)

    def destination(self, project: str) -> str:
        """Return where a person finds the traces of a project, without credentials."""
        if self._settings.experiment_id:
            experiment = f"experiment with id {self._settings.experiment_id}"
        else:
            name = self._settings.experiment_name or project
            experiment = f"experiment {name!r}" if name else "experiment 'Default'"
        return f"MLflow {experiment} at {self._settings.plain_uri}"

    def check(self) -> ExportFailure | None:
        """Check that MLflow answers, is recent enough and accepts our credentials; None if so.

        Never raises and writes no span. An empty database gets its tables, as at the first ``export``.
        """
        with self._lock:
            return self._attempt(self._check)

    def shutdown(self) -> None:
        """Close connections. Later exports fail."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._target.close()

    @property
    def target_is_local(self) -> bool:
        """Whether spans go into a file of this machine (see ``otel_rollout.exporting``)."""
        return self._settings.uri.startswith("sqlite")

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """True at once: ``export`` keeps nothing back."""
        return True

    def _attempt(self, action: Callable[[], None]) -> ExportFailure | None:
        """Do something; why it did not work, with secrets masked."""
        try:
            action()
        except UndeliveredError as error:
            failure = error.failure
        except Exception as error:  # an exporter must not raise; what is kept can be sent again
            _logger.debug("Unexpected error in the MLflow exporter", exc_info=True)
            message = f"Unexpected {type(error).__name__} in the MLflow exporter: {error}"
            failure = ExportFailure(FailureKind.UNAVAILABLE, message)
        else:
            return None
        return ExportFailure(failure.kind, self._settings.redact(failure.message), failure.retry_after)

    def _check(self) -> None:
        self._connect()
        if self._settings.experiment_id:
            self._experiments.check(self._settings.experiment_id)
        else:  # /version may ask for no credentials; this does, whether or not the experiment exists
            self._target.experiment_named(self._settings.experiment_name or "otel-rollout")

    def _link_run(self, run: str, rollout_run_id: str) -> None:
        if not self._ready:
            self._connect()
        fixed = self._settings.experiment_id or self._settings.experiment_name
        # Which projects other nodes, and forwarders before this one, have met is not known here.
        experiment_ids = [self._experiment_id(None)] if fixed else self._target.experiment_ids()
        self._run.publish(run, rollout_run_id, experiment_ids)

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        if self._closed:
            raise UndeliveredError(FailureKind.REFUSED, "The MLflow exporter has been shut down.")
        if not self._ready:
            self._connect()
        for project, group in by_project(spans, self._last_project).items():
            self._write(project, group)
            self._last_project = project or self._last_project

    def _connect(self) -> None:
        self._target.connect()
        self._run.check()
        self._ready = True

    def _write(self, project: str | None, spans: Sequence[ReadableSpan]) -> None:
        experiment_id = self._experiment_id(project)
        try:
            scores = [score for span in spans for score in feedback_of(span)]
        except Exception as error:
            raise _unencodable(error) from error
        self._write_spans(experiment_id, [span for span in spans if not is_given_outside(span)])
        self._run.link(trace_id_of(span) for span in spans if is_root(span))
        if scores:
            self._write_scores(experiment_id, scores, spans)
        self._experiments.confirm(experiment_id)
        self._refusals.tell(spans)

    def _write_scores(
        self, experiment_id: str, scores: Sequence[Feedback], spans: Sequence[ReadableSpan]
    ) -> None:
        wanted = {score.trace_id for score in scores}
        infos = self._infos_of(wanted, experiment_id)
        missing = wanted - infos.keys()
        if missing:
            # Another forwarder writes the trajectory, maybe later: until then its trace is this score.
            self._write_spans(experiment_id, [span for span in spans if trace_id_of(span) in missing])
            infos |= self._infos_of(missing, experiment_id)
            if still := sorted(missing - infos.keys()):
                raise UndeliveredError(FailureKind.REJECTED, f"MLflow has no trace {still[0]} to score.")
        by_trace: dict[str, list[Feedback]] = {}
        for score in scores:
            by_trace.setdefault(score.trace_id, []).append(score)
        for decide in (tags_of, changes_of):
            changes = [
                change for id_, of_trace in by_trace.items() for change in decide(of_trace, infos[id_])
            ]
            if changes:
                self._target.write_feedback(changes)

    def _infos_of(self, trace_ids: Collection[str], experiment_id: str) -> dict[str, dict[str, Any]]:
        """Tags and scores of the traces that MLflow has. A score may be of a trace in another experiment."""
        wanted = sorted(trace_ids)
        infos: dict[str, dict[str, Any]] = {}
        for at in range(0, len(wanted), _LOOKED_UP_AT_ONCE):
            ids = ", ".join(f"'{id_}'" for id_ in wanted[at : at + _LOOKED_UP_AT_ONCE])
            for info in self._target.traces_of(f"attributes.request_id IN ({ids})", [experiment_id]):
                infos[str(info["trace_id"])] = info
        for id_ in wanted:
            if id_ not in infos and (found := self._target.trace_info(id_)) is not None:
                infos[id_] = found
        return infos

    def _write_spans(self, experiment_id: str, spans: Sequence[ReadableSpan]) -> None:
        try:
            requests = list(
                batching.requests_of([to_mlflow(span) for span in spans], self._max_request_bytes)
            )
        except Exception as error:
            raise _unencodable(error) from error
        try:
            for request in requests:
                self._target.write_spans(request, experiment_id)
        except UndeliveredError as error:
            if error.failure.kind is FailureKind.REFUSED:
                self._experiments.forget()
            raise

    def _experiment_id(self, project: str | None) -> str:
        if self._settings.experiment_id:
            return self._experiments.check(self._settings.experiment_id)
        name = self._settings.experiment_name or project
        return self._experiments.id_of(name) if name else settings.DEFAULT_EXPERIMENT_ID


def _unencodable(error: Exception) -> UndeliveredError:
    """Whatever cannot be encoded is the batch's fault."""
    return UndeliveredError(
        FailureKind.REJECTED, f"A span cannot be encoded ({type(error).__name__}: {error})."
    )
