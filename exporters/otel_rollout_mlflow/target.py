"""The seam between the exporter and the two ways into MLflow: a server over HTTP, or its database."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_rollout.exporting.api import ExportFailure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_rollout_mlflow.mapping import Feedback, RunningTrace


MAX_LINKS: Final = 100
"""Traces that MLflow links to a run in one request."""
MAX_FOUND: Final = 500
"""Traces or experiments that MLflow lists in one answer."""
OLDEST_FIRST: Final = "timestamp_ms ASC"
NEWEST_FIRST: Final = "timestamp_ms DESC"


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


class Change(Enum):
    """What is done about a score."""

    CREATE = "create"
    """Write it; MLflow has none of its id."""
    REPLACE = "replace"
    """Write value, comment and metadata over the older score of its id."""
    MARK = "mark"
    """Mark the score that is there as the trajectory's: it was written before that was known."""
    TAG = "tag"
    """Make its value the trace's tag of its name."""


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

    def link_traces(self, trace_ids: Sequence[str], run_id: str) -> None:
        """Link at most ``MAX_LINKS`` traces to the run; those that are linked already stay so.

        A run that does not exist is REFUSED.
        """

    def traces_of(
        self, filter_string: str, experiment_ids: Sequence[str], *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """All traces of these experiments that match, in MLflow's search syntax, as its API has them."""

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """A trace with its spans, as MLflow's API has it; None if there is none."""

    def experiment_ids(self) -> list[str]:
        """Every experiment that is not deleted and that we may see."""

    def write_spans(self, spans: ExportTraceServiceRequest, experiment_id: str) -> None:
        """Store the spans, all or none. Spans stored before are overwritten."""

    def trace_info(self, trace_id: str) -> dict[str, Any] | None:
        """A trace without its spans, as MLflow's API has it; None if there is none."""

    def write_feedback(self, changes: Sequence[tuple[Change, Feedback]]) -> None:
        """Carry out changes, in any order. Touches nothing else of the traces."""

    def announce(self, trace: RunningTrace, experiment_id: str) -> None:
        """List a trace as running. Never to be called for one whose root may have been written."""

    def close(self) -> None:
        """Give back connections and threads."""
