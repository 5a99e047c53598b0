"""Define the contract between an exporter and its callers.

Callers are the forwarder, the launcher and the doctor.

``SpanExporter.export`` returns SUCCESS or FAILURE, but callers must know more. They wait for the end of an
outage, and bisect a rejected batch; a refused credential needs a person. So an exporter stores an
:class:`ExportFailure` in ``last_failure`` before it returns FAILURE. Without that attribute, FAILURE counts
as an outage. An exception that ``export`` raises counts as a rejection if a wrong value causes such
exceptions (``ValueError``, ``TypeError``, ``LookupError``, ``AttributeError``, ``ArithmeticError``),
and otherwise as an outage.

Everything else is optional: an exporter that has the members of a Protocol below has its ability. Callers
look abilities up by ``isinstance``, so the members must be on the class or the object itself, not behind
``__getattr__``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult


class FailureKind(enum.Enum):
    """What to do about a failed export."""

    UNAVAILABLE = "unavailable"
    """The target did not answer in time, or asked to wait (429, 503): send the batch again later."""
    REJECTED = "rejected"
    """The target read the batch and rejected it (400, 409, 413, 422): some span in the batch is at fault."""
    REFUSED = "refused"
    """The target denies access (401, 403), or the set-up is wrong: a person has to act."""


@dataclass(frozen=True)
class ExportFailure:
    """Why an export failed.

    Attributes:
        kind: tells the caller what to do.
        message: one sentence for a person: the attempt, the answer, the remedy. It contains no secret.
        retry_after: seconds to wait, as the target asked (``Retry-After``); None if the target did not ask.
    """

    kind: FailureKind
    message: str
    retry_after: float | None = None


class UndeliveredError(Exception):
    """A request did not reach the target, or failed there.

    The parts of an exporter raise this error; ``export`` never does.

    Attributes:
        failure (ExportFailure): kind, message and seconds to wait.
        status (int | None): the HTTP status of the answer; None without an answer.
        may_have_arrived (bool): whether the target may have stored the request in spite of the error.
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
        """Ask the target without writing a span; return None if it would take spans."""


@runtime_checkable
class Prepares(Protocol):
    """An exporter that can connect before its first ``export``."""

    def prepare(self) -> None:
        """Import modules and open connections that ``export`` needs. Must not raise.

        The forwarder calls this once, in the exporter's thread. A failure is not reported, because ``export``
        tries again.
        """


@runtime_checkable
class NamesDestination(Protocol):
    """An exporter that can say where a person finds its spans."""

    def destination(self, project: str) -> str:
        """Return a phrase without credentials: ``MLflow experiment 'p' at http://…``.

        This must not connect. The forwarder calls this at the start and after each batch, from which the
        exporter may learn more.
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

        This must not raise. The forwarder calls this when a program publishes the run, after a restart, and
        after the last delivery.

        Args:
            run: an MLflow run id, or ``entity/project/run`` of W&B.
            rollout_run_id: the resource attribute ``rollout.run.id`` of the rollout's spans.

        Returns:
            None once the spans are linked, else the failure.
        """


@dataclass(frozen=True)
class MetricPoint:
    """A number on a curve of a tracker's run.

    Attributes:
        name: the curve's name.
        value: the number.
        step: its place on the axis of training steps.
        time_ms: when it was measured, Unix time in ms.
    """

    name: str
    value: float
    step: int
    time_ms: int


@runtime_checkable
class LogsMetrics(Protocol):
    """An exporter that can write numbers into a run of its tracker."""

    @property
    def own_run(self) -> str | None:
        """The run that the exporter's settings name; None without one."""

    def logged_steps(self, run: str, name: str) -> set[int] | ExportFailure:
        """Return the steps at which a curve of a run has a number. Must not raise."""

    def log_metrics(self, run: str, points: Sequence[MetricPoint]) -> ExportFailure | None:
        """Write at most 1,000 numbers into a run, all or none. Must not raise.

        A number that was written before with the same value and time is not written again.
        """


@runtime_checkable
class WritesTable(Protocol):
    """An exporter whose target is a rollout table."""

    @property
    def table_uri(self) -> str:
        """Address of the table."""


@runtime_checkable
class ResolvesIdentities(Protocol):
    """An exporter that finds, in its target, the trajectories of scores by identity.

    ``export`` of such an exporter gets no scores by identity. The forwarder holds them until it has found the
    only trajectory that fits (:mod:`otel_rollout.otlp.score_identity`). To an exporter without this ability,
    a score by identity is a span like any other.
    """

    def find_trajectories(
        self, scores: Sequence[TrajectoryIdentity]
    ) -> Sequence[Candidate[str]] | ExportFailure:
        """Return every stored trajectory that fits a score, and perhaps others. Must not raise."""

    def has_trajectories(self, project: str, run: str) -> bool | ExportFailure:
        """Return whether a run (``rollout.run.id``) has stored any trajectory. Must not raise."""

    def export_scores(self, scores: Sequence[tuple[ReadableSpan, Candidate[str]]]) -> SpanExportResult:
        """Store scores with the trajectories they belong to; as ``export`` does, set ``last_failure``."""


@runtime_checkable
class ExportsLines(Protocol):
    """An exporter that takes recorded lines, and needs no SDK spans.

    ``export_lines = None`` in a subclass takes the ability away.
    """

    def export_lines(self, lines: Sequence[bytes]) -> SpanExportResult:
        """Export lines of OTLP/JSON, each with its newline, in place of spans."""


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch is, and when waiting lines are committed: after ``seconds``, or at ``bytes``.

    Attributes:
        spans: maximum spans of a batch; further lines are the next batch.
        bytes: maximum bytes of a batch's recorded lines; a larger line is committed alone.
        seconds: maximum seconds that the first line waits for others.
    """

    spans: int
    bytes: int
    seconds: float


@runtime_checkable
class CommitsBatches(Protocol):
    """An exporter whose target stores a numbered batch of spans once, or not at all.

    The forwarder numbers the batches of each writer. It notes a batch before the commit. After a restart, or
    a failure that leaves the outcome open, it asks the target whether the batch is stored, and else commits
    the same lines with the same number again.
    """

    batch: BatchLimits
    """When waiting lines are committed."""

    def committed(self, writer: str) -> int | None:
        """Return the number of the writer's newest batch in the target; None without any.

        Raises:
            UndeliveredError: the target cannot tell.
        """

    def commit(self, spans: Iterable[ReadableSpan], writer: str, number: int) -> SpanExportResult:
        """Store spans and the number of the batch together. Must not raise; sets ``last_failure``.

        After an outage, the forwarder asks ``committed``, and commits the same spans with the same number.
        After a rejection, it commits halves with numbers of their own.

        Args:
            spans: can be iterated once.
            writer: id of the writer.
            number: number of the batch, greater than those before.
        """


@runtime_checkable
class MayBeLocal(Protocol):
    """An exporter whose target may be a file of this machine."""

    @property
    def target_is_local(self) -> bool:
        """Whether the target is a local file; only the run's home machine writes one."""


@runtime_checkable
class ReadsSpool(Protocol):
    """An exporter whose spans another program reads from the spool."""

    reads_spool: bool
    """Whether segments must stay on disk, because that program may not have read them yet."""


def reads_spool(exporter: object) -> bool:
    """Return whether another program reads the exporter's spans from the spool."""
    return isinstance(exporter, ReadsSpool) and exporter.reads_spool
