"""The interface of the two ways into MLflow: a server over HTTP, or its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_rollout_mlflow.feedback import MlflowFeedback
    from otel_rollout_mlflow.mapping import RunningTrace


MAX_LINKS: Final = 100
"""Traces that MLflow links to a run in one request."""
MAX_FOUND: Final = 500
"""Traces or experiments that MLflow lists in one answer."""
OLDEST_FIRST: Final = "timestamp_ms ASC"
NEWEST_FIRST: Final = "timestamp_ms DESC"


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
    """How to write a score."""

    CREATE = "create"
    """Write the score; MLflow has none of its id."""
    REPLACE = "replace"
    """Write value, comment and metadata over the older score of its id."""
    MARK = "mark"
    """Mark the stored score as the trajectory's: it was written before that was known."""
    TAG = "tag"
    """Make the score's value the trace's tag of its name."""


class Target(Protocol):
    """One MLflow. Each method may raise ``UndeliveredError`` and be called again."""

    def connect(self) -> None:
        """Check that MLflow is there and recent enough. Called first."""

    def experiment_named(self, name: str) -> Experiment | None:
        """Return the experiment of a name, or None."""

    def experiment_with_id(self, experiment_id: str) -> Experiment | None:
        """Return the experiment of an id, or None."""

    def create_experiment(self, name: str) -> None:
        """Create an experiment, unless there is one of that name."""

    def has_run(self, run_id: str) -> bool:
        """Whether a run exists."""

    def link_traces(self, trace_ids: Sequence[str], run_id: str) -> None:
        """Link at most ``MAX_LINKS`` traces to a run; linked traces stay linked.

        A run that does not exist is REFUSED.
        """

    def traces_of(
        self, filter_string: str, experiment_ids: Sequence[str], *, newest_first: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield all traces of experiments that match, as MLflow's API describes them.

        Args:
            filter_string: in MLflow's search syntax.
            experiment_ids: where to search.
            newest_first: their order.
        """

    def trace(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace with its spans, as MLflow's API has it; None without one."""

    def experiment_ids(self) -> list[str]:
        """Return every experiment that we may see and that is not deleted."""

    def write_spans(self, spans: ExportTraceServiceRequest, experiment_id: str) -> None:
        """Store spans, all or none. Spans stored before are overwritten."""

    def trace_info(self, trace_id: str) -> dict[str, Any] | None:
        """Return a trace without spans, as MLflow's API has it; None without one."""

    def write_feedback(self, changes: Sequence[tuple[Change, MlflowFeedback]]) -> None:
        """Write scores, in any order. Nothing else of the traces is touched."""

    def announce(self, trace: RunningTrace, experiment_id: str) -> None:
        """List a trace as running. Its root must not have been written."""

    def close(self) -> None:
        """Close connections and end threads."""
