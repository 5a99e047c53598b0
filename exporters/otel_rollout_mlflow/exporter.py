"""Export spans and scores to MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_rollout.exporting.api import ExportFailure, MetricPoint
from otel_rollout.exporting.arguments import positive_bytes
from otel_rollout.exporting.base import IdentityExporter, rejecting
from otel_rollout.exporting.projects import by_project
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow import settings
from otel_rollout_mlflow.database_target import StoreTarget
from otel_rollout_mlflow.scores import Search, feedback_for, find, has_trajectories
from otel_rollout_mlflow.server_target import ServerTarget
from otel_rollout_mlflow.writer import Experiments, RunLinks, Target, TraceWriter

DEFAULT_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Bytes of protobuf in one request."""


class MlflowSpanExporter(IdentityExporter):
    """Writes spans to MLflow, one trace per trajectory.

    Traces are searchable by step, sample, rollout and score.

    Without an experiment given here, each span goes to the experiment that its ``semconv.PROJECT_NAME``
    names; a missing experiment is created. A span of no known project goes to MLflow's "Default" experiment.
    Sending spans again is safe: MLflow overwrites them.

    Scores become Feedback, written after their spans. Scores come from the attributes ``rollout.score.*`` of
    a root, which become trace tags as well, and from evaluation spans, however late. Of several scores with
    one name, the newest by its own time stays, whatever the order of arrival. A score given from outside its
    trajectory is Feedback and a tag but no span, because MLflow measures a trace's duration up to the end of
    its last span.

    Every argument wins over its environment variable. The constructor opens no connection.

    Args:
        tracking_uri: an MLflow server ``http[s]://…``, or a database ``sqlite:///…``, ``postgresql://…``,
            ``mysql://…``, ``mssql://…`` written to directly (``MLFLOW_TRACKING_URI``; required).
        experiment_name: experiment of all spans (``MLFLOW_EXPERIMENT_NAME``).
        experiment_id: experiment of all spans by its id; it must exist (``MLFLOW_EXPERIMENT_ID``).
        run_id: MLflow run to link every trace to; it must exist (``MLFLOW_RUN_ID``).
        username: for basic authentication (``MLFLOW_TRACKING_USERNAME``).
        password: for basic authentication (``MLFLOW_TRACKING_PASSWORD``).
        token: for bearer authentication (``MLFLOW_TRACKING_TOKEN``).
        insecure_tls: do not check the server's certificate (``MLFLOW_TRACKING_INSECURE_TLS``).
        server_cert_path: CA bundle to check the certificate with (``MLFLOW_TRACKING_SERVER_CERT_PATH``).
        timeout: maximum seconds without a byte from the server in one request
            (``MLFLOW_HTTP_REQUEST_TIMEOUT``; 30).
        max_request_bytes: maximum bytes of protobuf, before compression, in one request. A larger span is
            sent alone.

    Raises:
        ValueError: an argument or environment variable is missing, malformed or not supported.
    """

    takes_decoded = True

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
        super().__init__("MLflow")
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
        self._target: Target = (
            ServerTarget(self._settings) if self._settings.is_server else StoreTarget(self._settings)
        )
        self._experiments = Experiments(self._target)
        self._run = RunLinks(self._target, self._settings.run_id, self._settings.shown_uri)
        max_bytes = positive_bytes("max_request_bytes", max_request_bytes)
        self._writer = TraceWriter(self._target, self._experiments, self._run, max_bytes)
        self._last_project: str | None = None
        self._is_connected = False

    def write(self, spans: Sequence[Span]) -> None:
        """Write spans and their scores."""
        self._connected()
        for project, group in by_project(spans, self._last_project).items():
            self._writer.write(self._experiment_id(project), group)
            self._last_project = project or self._last_project

    def write_running(self, roots: Sequence[Span]) -> None:
        """Write traces of running trajectories."""
        self._connected()
        for project, group in by_project(roots, self._last_project).items():
            self._writer.write_running(self._experiment_id(project), group)

    def write_link(self, run: str, rollout_run_id: str) -> None:
        """Link a rollout to an MLflow run, given by its id; the run replaces any earlier one.

        Later traces are linked when they are written. Stored traces are found by their tag
        ``rollout.run.id``.
        """
        self._connected()
        is_fixed = self._settings.experiment_id or self._settings.experiment_name
        # All experiments: other nodes and earlier forwarders may have delivered to projects unknown here.
        experiment_ids = [self._experiment_id(None)] if is_fixed else self._target.experiment_ids()
        self._run.publish(run, rollout_run_id, experiment_ids)

    @property
    def own_run(self) -> str | None:
        """The run that the settings name; None without one."""
        return self._settings.run_id

    def logged_steps(self, run: str, name: str) -> set[int] | ExportFailure:
        """Return the steps at which a run has a value of a metric. Never raises."""
        return self.asked(lambda: self._connected().metric_steps(run, name))

    def log_metrics(self, run: str, points: Sequence[MetricPoint]) -> ExportFailure | None:
        """Write values of metrics into a run. Never raises."""
        return self.guarded(lambda: self._connected().log_metrics(run, points))

    def find_in(self, project: str, scores: Sequence[TrajectoryIdentity]) -> list[Candidate[str]]:
        """Find the traces of the scores' steps by their tags."""
        return find(self._search_of(project), scores)

    def has_stored(self, project: str, run: str) -> bool:
        """Return whether a run has stored any trajectory of a project."""
        return has_trajectories(self._search_of(project), run)

    def write_scores(self, project: str, scores: Sequence[tuple[Span, Candidate[str]]]) -> None:
        """Write scores by identity as feedback of their traces."""
        self._connected()
        with rejecting():
            feedback = list(feedback_for(scores))
        self._writer.write_scores(self._experiment_id(project), feedback)

    def prepare(self) -> None:
        """Import modules and connect, before the first ``export``."""
        self.asked(self._connected)

    def destination(self, project: str) -> str:
        """Return where a person finds the traces of a project, without credentials."""
        if self._settings.experiment_id:
            experiment = f"experiment with id {self._settings.experiment_id}"
        else:
            name = self._settings.experiment_name or project
            experiment = f"experiment {name!r}" if name else "experiment 'Default'"
        return f"MLflow {experiment} at {self._settings.plain_uri}"

    def check(self) -> ExportFailure | None:
        """Check that MLflow answers, is recent enough and accepts the credentials.

        Return None if so. Never raises, and writes no span. An empty database gets its tables, as at the
        first ``export``.
        """
        return self.guarded(self._check)

    def close(self) -> None:
        """Close connections."""
        self._target.close()

    def redact(self, text: str) -> str:
        """Mask credentials in a message."""
        return self._settings.redact(text)

    @property
    def target_is_local(self) -> bool:
        """Whether spans go into a file of this machine."""
        return self._settings.uri.startswith("sqlite")

    def _connected(self) -> Target:
        """Return the target, which is connected at its first use."""
        if not self._is_connected:
            self._target.connect()
            self._run.check()
            self._is_connected = True
        return self._target

    def _search_of(self, project: str) -> Search:
        """Return the search for traces of a project."""
        target, experiment_id = self._connected(), self._experiment_id(project)
        return lambda condition: target.traces_of(condition, [experiment_id])

    def _check(self) -> None:
        self._is_connected = False  # connect again: the server may be gone
        self._connected()
        if self._settings.experiment_id:
            self._experiments.check(self._settings.experiment_id)
        else:  # /version may need no credentials, but this request does
            self._target.experiment_named(self._settings.experiment_name or "otel-rollout")

    def _experiment_id(self, project: str | None) -> str:
        if self._settings.experiment_id:
            return self._experiments.check(self._settings.experiment_id)
        name = self._settings.experiment_name or project
        return self._experiments.id_of(name) if name else settings.DEFAULT_EXPERIMENT_ID
