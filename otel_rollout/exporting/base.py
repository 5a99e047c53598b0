"""Define the base class of exporters: ``export`` never raises, and says why it failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.exporting.api import ExportFailure, FailureKind, UndeliveredError
from otel_rollout.exporting.batching import grouped
from otel_rollout.otlp import sdk
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout.otlp.span import Span

Answer = TypeVar("Answer")


class GuardedExporter(SpanExporter):
    """An exporter whose ``export`` never raises and says why it failed.

    A subclass implements :meth:`write`. It overrides :meth:`close` if it has connections, and :meth:`redact`
    if it has secrets. Its other abilities (:mod:`otel_rollout.exporting.api`) call :meth:`guarded`.

    Other exporters may get the same spans, so a subclass must not change a span.

    Args:
        name: the target's name in messages, such as ``MLflow``.

    Attributes:
        last_failure: why the last export returned FAILURE; None after a success.
    """

    takes_decoded: ClassVar[bool] = False
    """Whether ``write`` and similar methods get spans as decoded lines (:mod:`otel_rollout.otlp.span`).

    The exporters of otel-rollout do. Others get spans of the SDK.
    """
    last_failure: ExportFailure | None

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(type(self).__module__)
        # A SimpleSpanProcessor calls export() in the thread that ended the span, which can be any thread, and
        # one that is exporting: a finalizer or a signal handler has interrupted it.
        self._lock = threading.RLock()
        self._is_shut_down = False
        self.last_failure = None

    def write(self, spans: Sequence[Any]) -> None:
        """Write spans to the target: SDK spans, unless ``takes_decoded`` is true. Called under the lock.

        Raises:
            UndeliveredError: the spans were not stored. Any other exception counts as an outage.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close connections. Called once, under the lock."""

    def redact(self, text: str) -> str:
        """Mask every secret of the exporter in a message."""
        return text

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans. Never raises; ``last_failure`` says why it failed."""
        return self.export_by(lambda: self.write(self._taken(spans)))

    def export_by(self, action: Callable[[], None]) -> SpanExportResult:
        """Run an action as ``export`` does.

        Set ``last_failure``, and log a failure unless the previous attempt failed with an equal message.
        """
        with self._lock:
            failure = self._failure_of(action)
            # Log each failure once, not once per attempt: the forwarder may try for hours.
            if failure and (self.last_failure is None or self.last_failure.message != failure.message):
                self._log(failure)
            self.last_failure = failure
        return SpanExportResult.FAILURE if failure else SpanExportResult.SUCCESS

    def guarded(self, action: Callable[[], None]) -> ExportFailure | None:
        """Run an action under the lock, and return its failure. Never raises."""
        with self._lock:
            return self._failure_of(action)

    def asked(self, ask: Callable[[], Answer]) -> Answer | ExportFailure:
        """Ask the target under the lock, and return its answer, or why there is none. Never raises."""
        found: list[Answer] = []
        return self.guarded(lambda: found.append(ask())) or found[0]

    def shutdown(self) -> None:
        """Close connections. Later exports fail."""
        with self._lock:
            if not self._is_shut_down:
                self._is_shut_down = True
                self.close()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return True at once: ``export`` buffers nothing."""
        return True

    def _taken(self, spans: Sequence[ReadableSpan]) -> Sequence[Any]:
        """Return spans, which an application may have given, in the form that the exporter takes."""
        return decoded(spans) if self.takes_decoded else spans

    def _failure_of(self, action: Callable[[], None]) -> ExportFailure | None:
        try:
            if self._is_shut_down:
                raise UndeliveredError(FailureKind.REFUSED, f"The {self._name} exporter has been shut down.")
            action()
        except UndeliveredError as error:
            failure = error.failure
        except Exception as error:  # the spans stay on disk; the forwarder can send them again
            self._logger.debug("Unexpected error in the %s exporter", self._name, exc_info=True)
            message = f"Unexpected {type(error).__name__} in the {self._name} exporter: {error}"
            failure = ExportFailure(FailureKind.UNAVAILABLE, message)
        else:
            return None
        return ExportFailure(failure.kind, self.redact(failure.message), failure.retry_after)

    def _log(self, failure: ExportFailure) -> None:
        try:
            self._logger.warning("%s", failure.message)
        except Exception:  # noqa: BLE001 - a logging handler of the application that fails
            return


class TrackerExporter(GuardedExporter):
    """An exporter to a tracker that shows running trajectories and has runs of its own.

    A subclass implements :meth:`write_running` and :meth:`write_link`.
    """

    def write_running(self, roots: Sequence[Any]) -> None:
        """Show trajectories as running, given their roots in the form of ``write``. Called under the lock.

        Raises:
            UndeliveredError: the trajectories are not shown.
        """
        raise NotImplementedError

    def write_link(self, run: str, rollout_run_id: str) -> None:
        """Link a rollout's spans to a run of the tracker. Called under the lock.

        Raises:
            UndeliveredError: not all spans are linked.
        """
        raise NotImplementedError

    def announce(self, roots: Sequence[ReadableSpan]) -> None:
        """Show trajectories as running, before their root spans have ended.

        Never raises, because a trajectory that is not announced appears when it ends. The caller must not
        pass a root that was exported before.
        """
        failure = self.guarded(lambda: self.write_running(self._taken(roots)))
        if failure is not None:
            self._logger.debug("Running trajectories could not be announced: %s", failure.message)

    def link_run(self, run: str, rollout_run_id: str) -> ExportFailure | None:
        """Link a rollout's earlier and later spans to a run of the tracker. Never raises.

        May be called any number of times.

        Args:
            run: the tracker's run.
            rollout_run_id: the resource attribute ``rollout.run.id`` of the rollout's spans, whichever
                process or forwarder delivered them.

        Returns:
            None once all spans are linked, else the failure, after which spans are still exported.
        """
        return self.guarded(lambda: self.write_link(run, rollout_run_id))


class IdentityExporter(TrackerExporter):
    """An exporter to a tracker that finds the trajectories of scores by identity.

    A subclass implements :meth:`find_in`, :meth:`has_stored` and :meth:`write_scores`, for one project each.
    They are called under the lock, and may raise ``UndeliveredError``.
    """

    def find_in(self, project: str, scores: Sequence[TrajectoryIdentity]) -> Iterable[Candidate[str]]:
        """Return the stored trajectories of the scores' steps."""
        raise NotImplementedError

    def has_stored(self, project: str, run: str) -> bool:
        """Return whether a run has stored any trajectory."""
        raise NotImplementedError

    def write_scores(self, project: str, scores: Sequence[tuple[Any, Candidate[str]]]) -> None:
        """Write scores with their trajectories; the scores are spans in the form of ``write``."""
        raise NotImplementedError

    def find_trajectories(
        self, scores: Sequence[TrajectoryIdentity]
    ) -> Sequence[Candidate[str]] | ExportFailure:
        """Find the trajectories of the scores' steps. Never raises."""
        by_project = grouped(scores, lambda score: score.project)
        return self.asked(lambda: [one for named in by_project.items() for one in self.find_in(*named)])

    def has_trajectories(self, project: str, run: str) -> bool | ExportFailure:
        """Return whether a run has stored any trajectory of a project. Never raises."""
        return self.asked(lambda: self.has_stored(project, run))

    def export_scores(self, scores: Sequence[tuple[Any, Candidate[str]]]) -> SpanExportResult:
        """Write scores by identity to the trajectories that were found, as ``export`` writes spans."""

        def write() -> None:
            for project, found in grouped(scores, lambda pair: pair[1].identity.project).items():
                self.write_scores(project, found)

        return self.export_by(write)


def decoded(spans: Iterable[ReadableSpan | Span]) -> list[Span]:
    """Convert spans, which may be the SDK's, to decoded spans (:mod:`otel_rollout.otlp.span`).

    Raises:
        UndeliveredError: a span has no ids.
    """
    with rejecting():
        return sdk.spans_of(spans)


def form_for(exporter: object) -> Callable[[Span], Any]:
    """Return the function that converts a decoded span to the form that an exporter takes."""
    return (lambda span: span) if getattr(exporter, "takes_decoded", False) else sdk.readable


@contextmanager
def rejecting(problem: str = "A span cannot be encoded") -> Iterator[None]:
    """Turn an exception of the block, which encodes spans, into a rejection.

    Raises:
        UndeliveredError: of kind REJECTED, so that the caller bisects the batch for the span at fault.
    """
    try:
        yield
    except Exception as error:
        message = f"{problem} ({type(error).__name__}: {error})."
        raise UndeliveredError(FailureKind.REJECTED, message) from error


@contextmanager
def needing(extra: str, hint: str = "") -> Iterator[None]:
    """Name the extra to install if an import in the block fails.

    Args:
        extra: extra of ``otel-rollout``; its name is the exporter's.
        hint: names another extra for some targets.

    Raises:
        ModuleNotFoundError: with the command that installs the missing package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("otel_rollout"):
            raise
        raise ModuleNotFoundError(
            f"No module named {error.name!r}: pip install 'otel-rollout[{extra}]'{hint}",
            name=error.name,
        ) from error
