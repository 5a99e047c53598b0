"""The contract between an exporter and its callers.

Callers are the forwarder, the launcher and the doctor.

``SpanExporter.export`` returns SUCCESS or FAILURE, which is too little to act on: an outage is worth waiting
for, a rejected batch is worth bisecting, a refused credential is worth neither. So an exporter leaves an
:class:`ExportFailure` in ``last_failure`` before it returns FAILURE. Without that attribute each failure
counts as an outage.

Everything else is optional: an exporter that has the members of one of the Protocols below has that ability.
Abilities are looked up by ``isinstance``, so the members must be on the class or the object itself, not
behind ``__getattr__``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult


class FailureKind(enum.Enum):
    """What to do about a failed export."""

    UNAVAILABLE = "unavailable"
    """The target did not answer, or asked for patience (429, 5xx, timeouts): send the batch again later."""
    REJECTED = "rejected"
    """The target read the batch and does not take it (400, 413, 422): some span in it is at fault."""
    REFUSED = "refused"
    """The target does not let *us* in (401, 403), or the set-up is wrong: a person has to act."""


@dataclass(frozen=True)
class ExportFailure:
    """Why an export failed.

    Attributes:
        kind: what to do about it.
        message: one sentence for a person: what was tried, what came back, what to do. Never a secret.
        retry_after: seconds the target asked to be left alone (``Retry-After``); None if it did not ask.
    """

    kind: FailureKind
    message: str
    retry_after: float | None = None


class UndeliveredError(Exception):
    """Something did not reach the target.

    The parts of an exporter raise it; ``export`` never does.

    Attributes:
        failure: kind, message and pause.
        status: the HTTP status of the answer; None without an answer.
        may_have_arrived: whether the target may have stored the request all the same.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        retry_after: float | None = None,
        *,
        status: int | None = None,
        may_have_arrived: bool = False,
    ) -> None:
        super().__init__(message)
        self.failure = ExportFailure(kind, message, retry_after)
        self.status = status
        self.may_have_arrived = may_have_arrived


@runtime_checkable
class Checks(Protocol):
    """An exporter that can say whether its target would take spans."""

    def check(self) -> ExportFailure | None:
        """Ask the target without writing a span; None if it would take spans."""


@runtime_checkable
class Prepares(Protocol):
    """An exporter that can connect before its first ``export``."""

    def prepare(self) -> None:
        """Import and connect what the first ``export`` needs. Must not raise.

        Called once, in the exporter's thread. A failure is not reported: ``export`` tries again.
        """


@runtime_checkable
class NamesDestination(Protocol):
    """An exporter that can say where a person finds its spans."""

    def destination(self, project: str) -> str:
        """Return a phrase without credentials: ``MLflow experiment 'p' at http://…``.

        Must not connect. Called at the start and after each batch, when the exporter may know more.
        """


@runtime_checkable
class Announces(Protocol):
    """An exporter that can show trajectories while they run."""

    def announce(self, roots: Sequence[ReadableSpan]) -> None:
        """Show root spans that have no end time yet. Must not raise."""


@runtime_checkable
class LinksRuns(Protocol):
    """An exporter that can tie spans to a run of its tracker."""

    def link_run(self, run: str, rollout_run_id: str, /) -> ExportFailure | None:
        """Link the spans of a rollout, exported before or after this call, to a run.

        Must not raise.

        Called when somebody publishes the run, after a restart of the forwarder, and when all is delivered.

        Args:
            run: an MLflow run id, or ``entity/project/run`` of W&B.
            rollout_run_id: the resource attribute ``rollout.run.id`` of the rollout's spans.

        Returns:
            None once the spans are linked, else the failure.
        """


@runtime_checkable
class ExportsLines(Protocol):
    """An exporter that takes recorded lines, and needs no SDK spans.

    ``export_lines = None`` in a subclass takes the ability away.
    """

    def export_lines(self, lines: Sequence[bytes]) -> SpanExportResult:
        """Export lines of OTLP/JSON, each with its newline, in place of spans."""


@runtime_checkable
class MayBeLocal(Protocol):
    """An exporter whose target may be a file of this machine."""

    @property
    def target_is_local(self) -> bool:
        """Whether it is: then only the run's home machine delivers."""


@runtime_checkable
class ReadsSpool(Protocol):
    """An exporter whose spans another program reads from the spool."""

    reads_spool: bool
    """Whether segments have to stay, because that program may be behind."""


def reads_spool(exporter: object) -> bool:
    """Whether another program reads the exporter's spans from the spool."""
    return isinstance(exporter, ReadsSpool) and exporter.reads_spool
