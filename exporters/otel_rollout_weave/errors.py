"""How the parts of the exporter say that something did not reach Weave."""

from __future__ import annotations

from otel_rollout.exporting.api import ExportFailure, FailureKind


class UndeliveredError(Exception):
    """Something did not reach Weave; ``failure`` says what to do about it.

    Attributes:
        failure: kind, message and pause.
        status: the HTTP status that was answered, or None.
        unknown: whether what was sent may have been stored all the same.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        retry_after: float | None = None,
        *,
        status: int | None = None,
        unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.failure = ExportFailure(kind=kind, message=message, retry_after=retry_after)
        self.status = status
        self.unknown = unknown
