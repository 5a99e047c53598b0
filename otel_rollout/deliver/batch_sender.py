"""Send batches of lines to one exporter: retry, halve, find the rejected span."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.deliver import retry_policy
from otel_rollout.deliver.lines import Line
from otel_rollout.exporting.api import (
    ExportFailure,
    ExportsLines,
    FailureKind,
    ResolvesIdentities,
    reads_spool,
)
from otel_rollout.exporting.base import form_for
from otel_rollout.otlp.json_line import UnreadableLineError

_BAD_VALUE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""Exceptions that an exporter raises for a value that it cannot encode."""


class Sending(NamedTuple):
    """What a sender needs.

    Attributes:
        name: the exporter's name.
        exporter: exports the lines.
        stop: when set, sending ends, and unsent lines stay pending.
        on_done: called with lines that are exported or rejected, and the reason of each rejection.
        on_failure: called with each failure after which lines are sent again.
    """

    name: str
    exporter: SpanExporter
    stop: threading.Event
    on_done: Callable[[Sequence[Line], Mapping[Line, str]], None]
    on_failure: Callable[[ExportFailure], None]


class BatchSender:
    """Sends batches until they are exported or rejected."""

    may_halve = True
    """Whether a batch is halved while the target is unavailable."""

    def __init__(self, sending: Sending) -> None:
        self.is_refused = False
        """Whether the target refused the latest export: a person has to act."""
        self._name, self._exporter, self._stop, self._on_done, self._on_failure = sending
        exporter = sending.exporter
        self._export_lines = exporter.export_lines if isinstance(exporter, ExportsLines) else None
        self._reads_spool = reads_spool(exporter)
        self._form = form_for(exporter)
        self._resolves_identities = isinstance(exporter, ResolvesIdentities)

    def send(self, lines: Sequence[Line], attempts: int = 0) -> None:
        """Export lines until each is exported or rejected, or ``stop`` is set.

        After several failed attempts the batch is halved: a slow target may accept smaller batches.
        """
        while not self._stop.is_set():
            failure, unreadable = self._export(lines)
            self.is_refused = failure is not None and failure.kind is FailureKind.REFUSED
            if failure is None:
                self._on_done(lines, unreadable)
                return
            if failure.kind is FailureKind.REJECTED:
                # Halve it until only the span at fault is left; export the others.
                if len(lines) == 1:
                    self._on_done(lines, {lines[0]: failure.message})
                else:
                    self._send_halves(lines)
                return
            self._on_failure(failure)
            pause = retry_policy.pause_after(failure, attempts)
            attempts += 1
            if retry_policy.is_worth_logging(attempts):
                logger.warning("%s: %s; next attempt in %.1f s", self._name, failure.message, pause)
            self._stop.wait(pause)
            if self.may_halve and retry_policy.is_halved(failure, attempts, len(lines)):
                self._send_halves(lines, attempts)
                return

    def _send_halves(self, lines: Sequence[Line], attempts: int = 0) -> None:
        middle = len(lines) // 2
        self.send(lines[:middle], attempts)
        self.send(lines[middle:])

    def _export(self, lines: Sequence[Line]) -> tuple[ExportFailure | None, dict[Line, str]]:
        """Export once; return the failure, and unreadable lines with their reasons."""
        sent, unreadable = self._to_export(lines)
        if not sent:
            return None, unreadable
        if self._export_lines is not None:
            export_lines = self._export_lines
            return self._result_of(lambda lines: export_lines(self._encoded(lines)), sent), unreadable
        spans = list(self._spans(sent, unreadable))
        return self._result_of(self._exporter.export, spans) if spans else None, unreadable

    def _to_export(self, lines: Sequence[Line]) -> tuple[list[Line], dict[Line, str]]:
        """Return the lines that are exported now, and damaged lines with their reasons.

        Lines that are sampled out, or wait for their trajectories, are in neither.
        """
        kept = [
            line
            for line in lines
            if not line.is_sampled_out and not (self._resolves_identities and line.is_by_identity)
        ]
        damaged = {line: line.problem for line in kept if line.problem is not None}
        return [line for line in kept if line not in damaged], damaged

    def _encoded(self, lines: Sequence[Line]) -> list[bytes]:
        return [line.recorded if self._reads_spool else line.exported.encoded for line in lines]

    def _spans(self, lines: Sequence[Line], unreadable: dict[Line, str]) -> Iterator[Any]:
        """Yield the spans of readable lines; add unreadable lines with their reasons."""
        for line in lines:
            try:
                yield from map(self._form, line.exported.spans)
            except UnreadableLineError as error:
                unreadable[line] = str(error)

    def _result_of(self, export: Callable[[Any], SpanExportResult], batch: Any) -> ExportFailure | None:
        try:
            result = export(batch)
        except Exception as error:
            logger.exception("exporter %s raised", self._name)
            # These errors recur for the batch's data; any other error may be temporary.
            kind = FailureKind.REJECTED if isinstance(error, _BAD_VALUE) else FailureKind.UNAVAILABLE
            return ExportFailure(kind, f"the exporter raised {type(error).__name__}: {error}")
        return None if result is SpanExportResult.SUCCESS else failure_of(self._exporter)


def failure_of(exporter: object) -> ExportFailure:
    """Return why an exporter's latest export has failed."""
    failure = getattr(exporter, "last_failure", None)
    if isinstance(failure, ExportFailure):
        return failure
    return ExportFailure(FailureKind.UNAVAILABLE, "the exporter reports a failure without a reason")
