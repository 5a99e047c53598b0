"""The seam between the exporter and the two ways into MLflow: a server over HTTP, or its database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from otel_rollout.exporting import ExportFailure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_rollout_mlflow.mapping import Feedback, RunningTrace


class UndeliveredError(Exception):
    """Something did not reach MLflow; ``failure`` says what to do about it."""

    def __init__(self, kind: FailureKind, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.failure = ExportFailure(kind=kind, message=message, retry_after=retry_after)


@dataclass(frozen=True)
class Experiment:
    """An MLflow experiment.

    Attributes:
        id: its number, as MLflow writes it.
        name: its unique name.
        deleted: whether it is in MLflow's trash, from where it can be restored.
    """

    id: str
    name: str
    deleted: bool


class Target(Protocol):
    """One MLflow. Every method raises :class:`UndeliveredError` where it fails, and may be tried again."""

    def connect(self) -> None:
        """Make sure that MLflow is there and recent enough. Called before anything else, until it passes."""

    def experiment_named(self, name: str) -> Experiment | None:
        """The experiment of that name, or None."""

    def experiment_with_id(self, experiment_id: str) -> Experiment | None:
        """The experiment of that id, or None."""

    def create_experiment(self, name: str) -> None:
        """Create the experiment; that someone else just did is no failure."""

    def has_run(self, run_id: str) -> bool:
        """Whether the run exists."""

    def write_spans(self, spans: ExportTraceServiceRequest, experiment_id: str, run_id: str | None) -> None:
        """Store the spans, all or none, and link traces whose root is among them to the run.

        Spans stored before are overwritten. With a run, at most 100 roots: MLflow links none of more.
        """

    def write_feedback(self, feedback: Sequence[Feedback]) -> None:
        """Store or update scores of traces stored before. Touches nothing else of the trace."""

    def announce(self, trace: RunningTrace, experiment_id: str) -> None:
        """List a trace as running. Never to be called for one whose root may have been written."""

    def close(self) -> None:
        """Give back connections and threads."""
