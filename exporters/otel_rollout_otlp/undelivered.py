"""How a transport says that a request was not taken."""

from __future__ import annotations

from otel_rollout.exporting.api import ExportFailure, FailureKind


class UndeliveredError(Exception):
    """A request did not arrive, or was not accepted."""

    def __init__(self, kind: FailureKind, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.failure = ExportFailure(kind, message, retry_after)


def partly_rejected(count: int, reason: str, shown: str) -> UndeliveredError:
    """The receiver took the request but for some spans, without saying which.

    Whoever drives the exporter halves the batch down to them. Spans that were taken come again meanwhile,
    with the same ids.
    """
    return UndeliveredError(
        FailureKind.REJECTED, f"{shown} rejects {count} spans of a request: {reason or 'no reason given'}."
    )
