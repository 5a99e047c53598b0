"""What carries OTLP requests."""

from __future__ import annotations

from typing import Protocol

from otel_rollout.exporting.api import FailureKind, UndeliveredError


class Transport(Protocol):
    """A connection to a receiver."""

    default_max_request_bytes: int

    def send(self, body: bytes) -> None:
        """Send an encoded request.

        Raises:
            UndeliveredError: the receiver did not take the whole request.
        """

    def close(self) -> None:
        """Close connections."""


def partly_rejected(count: int, reason: str, endpoint: str) -> UndeliveredError:
    """Make the failure of a request of which the receiver left out spans.

    It does not say which spans.

    The forwarder halves the batch down to these spans. Spans that were taken are sent again meanwhile, with
    their ids.
    """
    return UndeliveredError(
        FailureKind.REJECTED, f"{endpoint} rejects {count} spans of a request: {reason or 'no reason given'}."
    )
