"""Define what the targets for MLflow's server and for its database share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_rollout.exporting.api import FailureKind, UndeliveredError

MAX_LINKS: Final = 100
"""Maximum traces that one request links to a run; MLflow's limit."""
MAX_FOUND: Final = 500
"""Maximum traces or experiments in one answer of MLflow."""
RUNNING: Final = "IN_PROGRESS"
"""State of a trace whose root has not ended."""
NOT_THERE: Final = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's error code of something that is missing."""
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
