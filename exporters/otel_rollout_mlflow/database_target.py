"""Write to MLflow's database without a server.

This module calls the functions of ``mlflow`` that the server calls for a request. It is the only module that
imports ``mlflow``, and does so when it connects.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import FailureKind, MetricPoint, UndeliveredError
from otel_rollout.exporting.batching import chunks
from otel_rollout_mlflow import sqlite_creation
from otel_rollout_mlflow.mapping import TRACE_NAME_TAG
from otel_rollout_mlflow.scores import MARK, Change, MlflowFeedback
from otel_rollout_mlflow.settings import MlflowSettings
from otel_rollout_mlflow.target import (
    MAX_FOUND,
    NEWEST_FIRST,
    NOT_THERE,
    OLDEST_FIRST,
    Experiment,
    unreadable,
)

if TYPE_CHECKING:
    from mlflow.tracing.client import TracingClient
    from sqlalchemy import Connection

_CHANGES_PER_TRANSACTION: Final = 200
"""Scores and tags in one transaction. More would let other writers of a SQLite file wait for seconds."""
_CREATION_LOCK: Final = 0x6F74656C
"""Key of PostgreSQL's advisory lock on creating the tables."""
_REJECTED = frozenset({"BAD_REQUEST", "INVALID_PARAMETER_VALUE", "INVALID_STATE", "DATA_LOSS"})


class StoreTarget:
    """An MLflow database. SQLite allows one writing process at a time."""

    _client: TracingClient
    """Set by :meth:`connect`, which is called first."""

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings

    def connect(self) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        # Importing MLflow would report usage to its makers, without the user's consent.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import sqlalchemy
        from mlflow.exceptions import MlflowException
        from mlflow.tracing.client import TracingClient

        uri = self._settings.uri
        try:
            engine = sqlalchemy.create_engine(uri)
            if engine.dialect.name == "sqlite":
                sqlite_creation.ensure_created(engine)
                self._client = TracingClient(uri)
            else:
                # Connect once before MLflow, which tries for 100 s to reach a database that does not answer.
                with engine.connect() as connection:
                    _lock_creation(connection)
                    self._client = TracingClient(uri)
            engine.dispose()
        except ModuleNotFoundError as error:
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"The database {self._settings.shown_uri} needs the driver {error.name!r}: pip install it.",
            ) from None
        except sqlalchemy.exc.OperationalError as error:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE,
                f"The database {self._settings.shown_uri} cannot be opened: {error.orig}",
            ) from None
        except OSError as error:
            raise UndeliveredError(
                FailureKind.REFUSED,
                f"The database {self._settings.shown_uri} cannot be used ({error}): check "
                "MLFLOW_TRACKING_URI.",
            ) from None
        except (MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:
            raise UndeliveredError(
                FailureKind.REFUSED, f"MLflow cannot use the database {self._settings.shown_uri}: {error}"
            ) from None

    def experiment_named(self, name: str) -> Experiment | None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures("looking up an experiment"):
            return _experiment(self._client.store.get_experiment_by_name(name))

    def experiment_with_id(self, experiment_id: str) -> Experiment | None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures("looking up an experiment", none_if=NOT_THERE):
            return _experiment(self._client.store.get_experiment(experiment_id))
        return None

    def create_experiment(self, name: str) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures(f"creating the experiment {name!r}", none_if="RESOURCE_ALREADY_EXISTS"):
            self._client.store.create_experiment(name, artifact_location=None, tags=[])

    def has_run(self, run_id: str) -> bool:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures(f"looking up the run {run_id}", none_if=NOT_THERE):
            self._client.store.get_run(run_id)
            return True
        return False

    def link_traces(self, trace_ids: Sequence[str], run_id: str) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`; one transaction."""
        with _failures(f"linking traces to the run {run_id}"):
            self._client.store.link_traces_to_run(list(trace_ids), run_id)

    def metric_steps(self, run_id: str, name: str) -> set[int]:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures(f"reading the metric {name} of the run {run_id}"):
            return {point.step for point in self._client.store.get_metric_history(run_id, name)}

    def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`; one transaction."""
        from mlflow.entities import Metric

        values = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        with _failures(f"writing metrics of the run {run_id}"):
            self._client.store.log_batch(run_id, values, params=[], tags=[])

    def traces_of(
        self, filter_string: str, experiment_ids: Sequence[str], *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        token = None
        while True:
            with _failures("searching traces"):
                found, token = self._client.store.search_traces(
                    locations=list(experiment_ids),
                    filter_string=filter_string,
                    max_results=MAX_FOUND,
                    order_by=[NEWEST_FIRST if newest_first else OLDEST_FIRST],
                    page_token=token,
                )
            yield from map(_as_json, found)
            if not token:
                return

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures(f"reading the trace {trace_id}", none_if=NOT_THERE):
            found = self._client.store.get_trace(trace_id, allow_partial=True)
            try:
                return _as_json(found)
            except Exception as error:
                # Protobuf's own errors: a value of another writer is nested too deeply.
                raise unreadable(trace_id, type(error).__name__) from error
        return None

    def experiment_ids(self) -> list[str]:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        ids: list[str] = []
        token = None
        while True:
            with _failures("listing experiments"):
                page = self._client.store.search_experiments(max_results=MAX_FOUND, page_token=token)
            ids.extend(str(experiment.experiment_id) for experiment in page)
            token = page.token
            if not token:
                return ids

    def write_spans(self, request: bytes, experiment_id: str) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        from mlflow.entities.span import Span
        from mlflow.tracing.otel import translation
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        try:
            converted = [
                Span.from_otel_proto(span, resource=of_resource.resource)
                for of_resource in ExportTraceServiceRequest.FromString(request).resource_spans
                for of_scope in of_resource.scope_spans
                for span in of_scope.spans
            ]
            # An OTLP value is encoded once more. From 3.18 on, the caller undoes that; before, the store did.
            decode = getattr(translation, "strip_otlp_double_encoding", dict)
            for span in converted:
                span._span._attributes = decode(span._span._attributes)
        except Exception as error:  # the server answers 422 to any exception here
            raise UndeliveredError(
                FailureKind.REJECTED, f"MLflow cannot convert a span ({type(error).__name__}: {error})."
            ) from error
        with _failures(f"writing spans to the experiment {experiment_id}", of_batch=True):
            self._client.log_spans(experiment_id, converted)

    def trace_info(self, trace_id: str) -> dict[str, Any] | None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`."""
        with _failures(f"looking up the trace {trace_id}", none_if=NOT_THERE):
            return _as_json(self._client.store.get_trace_info(trace_id))
        return None

    def write_feedback(self, changes: Sequence[tuple[Change, MlflowFeedback]]) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`.

        A transaction has ``_CHANGES_PER_TRANSACTION`` changes.
        """
        for chunk in chunks(changes, _CHANGES_PER_TRANSACTION):
            first = chunk[0][1]
            action = f"writing {len(chunk)} scores, first {first.name!r} of {first.trace_id}"
            with _failures(action, of_batch=True), one_transaction(self._client.store) as store:
                for change, feedback in chunk:
                    _write_feedback(store, change, feedback)

    def name_trace(self, trace_id: str, name: str) -> None:
        """See :class:`~otel_rollout_mlflow.server_target.ServerTarget`; one transaction."""
        with _failures(f"naming {trace_id}"):
            self._client.store.set_trace_tag(trace_id, TRACE_NAME_TAG, name)

    def close(self) -> None:
        """Do nothing: MLflow keeps one engine per database, for all that use it in this process."""


def _lock_creation(connection: Connection) -> None:
    """Let one process at a time create MLflow's tables, until the connection is closed.

    MLflow fails if another process creates the same table: the forwarders of a job's nodes start together.
    """
    if connection.dialect.name == "postgresql":
        from sqlalchemy import text

        connection.execute(text(f"SET LOCAL lock_timeout = '{waits().database:.0f}s'"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))


@contextmanager
def _failures(action: str, *, none_if: str | None = None, of_batch: bool = False) -> Iterator[None]:
    """Turn MLflow's exceptions into ``UndeliveredError``.

    Args:
        action: the attempt, such as ``writing spans``.
        none_if: an error code that is no failure, for a missing entity or one that exists already.
        of_batch: whether spans may be at fault.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except OperationalError as error:
        raise UndeliveredError(
            FailureKind.UNAVAILABLE, f"The database failed when {action}: {error.orig}"
        ) from None
    except MlflowException as error:
        if error.error_code == none_if:
            return
        if error.error_code in _REJECTED:
            kind = FailureKind.REJECTED if of_batch else FailureKind.REFUSED
        elif error.error_code == NOT_THERE:
            kind = FailureKind.REFUSED
        else:
            kind = FailureKind.UNAVAILABLE
        raise UndeliveredError(kind, f"MLflow failed when {action}: {str(error)[:500]}") from None


def _write_feedback(store: Any, change: Change, feedback: MlflowFeedback) -> None:
    from mlflow.entities import Feedback

    if change is Change.CREATE:
        created = Feedback.from_dictionary(feedback.to_mlflow())
        created.rationale = feedback.comment or None  # as a server stores it
        store.create_assessment(created)
    elif change is Change.TAG:
        store.set_trace_tag(feedback.trace_id, feedback.name, feedback.tag_text)
    else:
        changed: dict[str, Any] = {"metadata": MARK}
        if change is Change.REPLACE:
            new = Feedback.from_dictionary(feedback.to_mlflow())
            changed = {"feedback": new.feedback, "rationale": new.rationale, "metadata": new.metadata}
        store.update_assessment(feedback.trace_id, feedback.id, **changed)


def _as_json(entity: Any) -> dict[str, Any]:
    """Describe an entity as the server's API does."""
    from mlflow.utils.proto_json_utils import message_to_json

    # MLflow 3.14 does not know the argument for compact text.
    shown: dict[str, Any] = json.loads(message_to_json(entity.to_proto()))
    return shown


def _experiment(entity: Any) -> Experiment | None:
    if entity is None:
        return None
    return Experiment(
        id=str(entity.experiment_id), name=entity.name, deleted=entity.lifecycle_stage == "deleted"
    )


@contextmanager
def one_transaction(store: Any) -> Iterator[Any]:
    """Yield a store whose methods write in one transaction, which is committed at the end.

    Each method of MLflow's store opens a session with ``ManagedSessionMaker``, and commits it. The yielded
    copy of the store gives all methods one session. So the rows are made by MLflow's own code, which differs
    from version to version.

    Raises:
        MlflowException: a method failed, or has rolled back what the methods before it wrote. Nothing is
            written.
    """
    from sqlalchemy import event

    sessions: list[Any] = []
    undone: list[Any] = []

    with ExitStack() as opened:

        @contextmanager
        def shared(*args: Any, **options: Any) -> Iterator[Any]:
            if not sessions:
                session = opened.enter_context(store.ManagedSessionMaker(*args, **options))
                event.listen(session, "after_rollback", undone.append)
                sessions.append(session)
            yield sessions[0]

        batch = copy.copy(store)  # other users of the store keep their own sessions
        batch.ManagedSessionMaker = shared
        yield batch
        if undone:
            raise RuntimeError("MLflow has rolled back a transaction of several scores")
