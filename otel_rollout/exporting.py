"""What an exporter may tell whoever drives it beyond SUCCESS and FAILURE.

``SpanExporter.export`` returns one of two values, which is too little to act on: an outage is worth
waiting for, a rejected batch is worth bisecting, a refused credential is worth neither. Our exporters
therefore leave an :class:`ExportFailure` in ``last_failure`` before they return FAILURE. An exporter
without that attribute still works: its failures count as outages.

An exporter may also have a method ``announce(roots)``. It gets the root spans of trajectories that have
been running for a while, without an end time, so that it can show them; it must not raise. A root that is
announced has not been exported. And it may have an attribute ``target_is_local``, true when its target is a
file of this machine: only forwarders on the run's home machine use it. A method ``check()`` tells
``otel-rollout doctor`` whether the target takes spans from us, by None or the failure; it writes none.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FailureKind(enum.Enum):
    """What to do about a failed export."""

    UNAVAILABLE = "unavailable"
    """The target did not answer, or asked for patience (429, 5xx, timeouts): send the same batch again."""
    REJECTED = "rejected"
    """The target read the batch and refuses it (400, 413, 422): some span in it is at fault."""
    REFUSED = "refused"
    """The target refuses *us* (401, 403) or the set-up is wrong: no batch will pass until a person acts."""


@dataclass(frozen=True)
class ExportFailure:
    """Why the last ``export`` call failed.

    Attributes:
        kind: what to do about it.
        message: one sentence for a person: what was tried, what came back, what to do. Never a secret.
        retry_after: seconds the target asked to be left alone (``Retry-After``), if it did.
    """

    kind: FailureKind
    message: str
    retry_after: float | None = None
