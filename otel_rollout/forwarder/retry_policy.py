"""Decide when a failed export is tried again, and when its batch is halved."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from otel_rollout.exporting.api import ExportFailure, FailureKind

_MAX_DOUBLINGS: Final = 16
_JITTER: Final = 0.25
"""Fraction by which a pause varies at random, so that nodes do not retry in step."""


@dataclass(frozen=True)
class RetryPolicy:
    """When one exporter's failed batches are sent again.

    Attributes:
        first_pause: seconds before the second attempt; each further pause is twice as long.
        longest_pause: maximum seconds between attempts.
        longest_requested_pause: maximum seconds that a target's ``Retry-After`` delays the next attempt: a
            server with a wrong clock must not stop delivery for good.
        refused_pause: seconds after a refusal before the next attempt: a person may correct the cause.
        whole_attempts: attempts to send a whole batch while the target is unavailable. Then the batch is
            halved: a slow target may accept smaller batches.
    """

    first_pause: float = 0.5
    longest_pause: float = 30.0
    longest_requested_pause: float = 300.0
    refused_pause: float = 60.0
    whole_attempts: int = 4

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt, counted from 0."""
        seconds = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt, _MAX_DOUBLINGS))
        return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311

    def pause_after(self, failure: ExportFailure, attempt: int) -> float:
        """Return the seconds to wait after a failed export."""
        if failure.kind is FailureKind.REFUSED:
            return self.refused_pause
        # max() in this order makes NaN zero: exporters of other authors may store any number.
        requested = min(self.longest_requested_pause, max(0.0, failure.retry_after or 0.0))
        return requested or self.pause(attempt)

    def is_halved(self, failure: ExportFailure, attempts: int, lines: int) -> bool:
        """Return whether to halve a batch of ``lines`` lines after ``attempts`` attempts."""
        return lines > 1 and attempts >= self.whole_attempts and failure.kind is not FailureKind.REFUSED


DEFAULT_POLICY: Final = RetryPolicy()
POLICIES: Final[Mapping[str, RetryPolicy]] = MappingProxyType({})
"""Exporter name → its policy, for exporters that do not use ``DEFAULT_POLICY``."""


def policy_of(exporter: str) -> RetryPolicy:
    """Return the retry policy of an exporter, by its name."""
    return POLICIES.get(exporter, DEFAULT_POLICY)


def is_worth_logging(attempts: int) -> bool:
    """Return whether ``attempts`` is 1, 2, 4, 8 …: an outage may last for days."""
    return attempts & (attempts - 1) == 0
