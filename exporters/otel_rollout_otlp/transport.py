"""Define the interface of OTLP transports, and their failure for rejected spans."""

from __future__ import annotations

from typing import Protocol

from otel_rollout.exporting.api import FailureKind, UndeliveredError


class Transport(Protocol):
    """A connection to a receiver."""

    default_max_request_bytes: int

    def send(self, body: bytes) -> None:
        """Send an encoded request.

        Raises:
            UndeliveredError: the receiver did not accept the whole request.
        """

    def close(self) -> None:
        """Close connections."""


def partly_rejected(count: int, reason: str, endpoint: str) -> UndeliveredError:
    """Return the failure for a request whose spans were partly rejected.

    The receiver does not say which spans it rejected. So the forwarder halves the batch until it finds them,
    and sends accepted spans again, with unchanged ids.
    """
    return UndeliveredError(
        FailureKind.REJECTED, f"{endpoint} rejects {count} spans of a request: {reason or 'no reason given'}."
    )
