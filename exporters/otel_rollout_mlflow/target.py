"""Define the interface to MLflow, by a server over HTTP or by its database; find experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from otel_rollout.exporting.api import FailureKind, MetricPoint, UndeliveredError
from otel_rollout_mlflow.scores import Change, MlflowFeedback

MAX_LINKS: Final = 100
"""Maximum traces that one request links to a run; MLflow's limit."""
MAX_FOUND: Final = 500
"""Maximum traces or experiments in one answer of MLflow."""
RUNNING: Final = "IN_PROGRESS"
"""State of a trace whose root has not ended."""
OLDEST_FIRST: Final = "timestamp_ms ASC"
NEWEST_FIRST: Final = "timestamp_ms DESC"


@dataclass(frozen=True)
class Experiment:
    """An MLflow experiment.

    Attributes:
        id: number of the experiment, as text.
        name: unique name.
        deleted: whether the experiment is in MLflow's trash, from where it can be restored.
    """

    id: str
    name: str
    deleted: bool


def unreadable(trace_id: str, reason: str) -> UndeliveredError:
    """Make the error about one trace that MLflow cannot return, as with a value nested too deeply."""
    return UndeliveredError(
        FailureKind.REJECTED,
        f"MLflow cannot return the trace {trace_id} ({reason}); other traces can be read.",
    )


class Target(Protocol):
    """An MLflow server or database.

    Each method may raise ``UndeliveredError``, and may be called again afterwards.
    """

    def connect(self) -> None:
        """Check that MLflow answers and is recent enough. Called first."""

    def experiment_named(self, name: str) -> Experiment | None:
        """Return the experiment with a name, or None."""

    def experiment_with_id(self, experiment_id: str) -> Experiment | None:
        """Return the experiment with an id, or None."""

    def create_experiment(self, name: str) -> None:
        """Create an experiment, unless one with that name exists."""

    def has_run(self, run_id: str) -> bool:
        """Whether a run exists."""

    def link_traces(self, trace_ids: Sequence[str], run_id: str) -> None:
        """Link at most ``MAX_LINKS`` traces to a run; linked traces stay linked.

        A run that does not exist is REFUSED.
        """

    def metric_steps(self, run_id: str, name: str) -> set[int]:
        """Return the steps at which a run has a value of a metric; none if the run does not exist."""

    def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:
        """Write values of metrics into a run, all or none; equal values with equal times once.

        A run that does not exist is REFUSED.
        """

    def traces_of(
        self, filter_string: str, experiment_ids: Sequence[str], *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield all traces of experiments that match, as MLflow's API describes them.

        Args:
            filter_string: condition in MLflow's search syntax.
            experiment_ids: experiments to search.
            newest_first: whether newer traces come first.
        """

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace with its spans in the form of MLflow's API; None if missing.

        A trace that MLflow cannot return is REJECTED.
        """

    def experiment_ids(self) -> list[str]:
        """Return the ids of all experiments that the account sees, except deleted ones."""

    def write_spans(self, request: bytes, experiment_id: str) -> None:
        """Store the spans of an encoded OTLP request, all or none; spans stored before are overwritten."""

    def trace_info(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace without spans in the form of MLflow's API; None if missing."""

    def write_feedback(self, changes: Sequence[tuple[Change, MlflowFeedback]]) -> None:
        """Write scores, in any order. Spans and other fields of the traces do not change."""

    def name_trace(self, trace_id: str, name: str) -> None:
        """Set the name of a stored trace."""

    def close(self) -> None:
        """Close connections and end threads."""


class Experiments:
    """A cache of experiments' ids. Not thread-safe: used under the exporter's lock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._id_by_name: dict[str, str] = {}
        self._checked_ids: set[str] = set()

    def id_of(self, name: str) -> str:
        """Return the id of the experiment with a name; create a missing experiment.

        Raises:
            UndeliveredError: the experiment is deleted (REFUSED), or MLflow did not answer.
        """
        if name not in self._id_by_name:
            experiment = self._target.experiment_named(name)
            if experiment is None:
                self._target.create_experiment(name)
                # Look the id up: if several processes create the experiment at once, only one gets an id.
                experiment = self._target.experiment_named(name)
            if experiment is None:
                raise UndeliveredError(
                    FailureKind.UNAVAILABLE,
                    f"MLflow does not show the experiment {name!r} after creating it.",
                )
            self._id_by_name[name] = _usable(experiment).id
        return self._id_by_name[name]

    def check(self, experiment_id: str) -> str:
        """Check that the experiment with an id can be written to, and return the id.

        Raises:
            UndeliveredError: the experiment does not exist or is deleted (REFUSED), or MLflow did not answer.
        """
        if experiment_id not in self._checked_ids:
            experiment = self._target.experiment_with_id(experiment_id)
            if experiment is None:
                raise UndeliveredError(
                    FailureKind.REFUSED,
                    f"MLflow has no experiment with id {experiment_id}; set MLFLOW_EXPERIMENT_ID (or "
                    "experiment_id=) to one that exists, or MLFLOW_EXPERIMENT_NAME to have it created.",
                )
            self._checked_ids.add(_usable(experiment).id)
        return experiment_id

    def confirm(self, experiment_id: str) -> None:
        """Check that MLflow shows the spans just written to an experiment.

        MLflow also accepts spans for an experiment in its trash, but shows them to nobody.

        Raises:
            UndeliveredError: the experiment is in the trash (REFUSED) or gone (UNAVAILABLE), or MLflow did
                not answer.
        """
        experiment = self._target.experiment_with_id(experiment_id)
        if experiment is None or experiment.deleted:
            self.forget()
        if experiment is None:
            raise UndeliveredError(
                FailureKind.UNAVAILABLE, f"The MLflow experiment with id {experiment_id} is gone."
            )
        _usable(experiment)

    def forget(self) -> None:
        """Clear the cache, so that every experiment is looked up again."""
        self._id_by_name.clear()
        self._checked_ids.clear()


def _usable(experiment: Experiment) -> Experiment:
    if experiment.deleted:
        raise UndeliveredError(
            FailureKind.REFUSED,
            f"The MLflow experiment {experiment.name!r} (id {experiment.id}) is deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.id}` or set MLFLOW_EXPERIMENT_NAME.",
        )
    return experiment
