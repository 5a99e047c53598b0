"""Decide when a failed export is tried again, and when its batch is halved."""

from __future__ import annotations

import random
from typing import Final

from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import ExportFailure, FailureKind

_MAX_DOUBLINGS: Final = 16
_JITTER: Final = 0.25
"""Fraction by which a pause varies at random, so that nodes do not retry in step."""
WHOLE_ATTEMPTS: Final = 4
"""Attempts to send a whole batch while the target is unavailable. Then the batch is halved: a slow target may
accept smaller batches."""


def pause(attempt: int) -> float:
    """Return the seconds to wait after an attempt, counted from 0."""
    seconds = min(waits().longest_retry, waits().retry * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311


def pause_after(failure: ExportFailure, attempt: int) -> float:
    """Return the seconds to wait after a failed export."""
    if failure.kind is FailureKind.REFUSED:
        return waits().refused_retry
    # max() in this order makes NaN zero: exporters of other authors may store any number.
    requested = min(waits().requested_retry, max(0.0, failure.retry_after or 0.0))
    return requested or pause(attempt)


def is_halved(failure: ExportFailure, attempts: int, lines: int) -> bool:
    """Return whether to halve a batch of ``lines`` lines after ``attempts`` attempts."""
    return lines > 1 and attempts >= WHOLE_ATTEMPTS and failure.kind is not FailureKind.REFUSED


def is_worth_logging(attempts: int) -> bool:
    """Return whether ``attempts`` is 1, 2, 4, 8 …: an outage may last for days."""
    return attempts & (attempts - 1) == 0
