"""What an exporter may tell whoever drives it beyond SUCCESS and FAILURE.

``SpanExporter.export`` returns one of two values, which is too little to act on: an outage is worth
waiting for, a rejected batch is worth bisecting, a refused credential is worth neither. Our exporters
therefore leave an :class:`ExportFailure` in ``last_failure`` before they return FAILURE. An exporter
without that attribute still works: its failures count as outages.

An exporter may also have

- ``announce(roots)``: gets the root spans of trajectories that have been running for a while, without
  an end time, so that it can show them; it must not raise. A root that is announced has not been
  exported.
- ``target_is_local``: true when its target is a file of this machine. Only forwarders on the run's home
  machine use it then.
- ``link_run(run, rollout)``: gets the run of its tracker (an MLflow run id, a W&B
  ``entity/project/run``) that the rollout with the id ``rollout`` belongs to, when somebody has
  published it, again after a restart of the forwarder, and once more when all is delivered. From then
  on what it exports belongs to that run, and what was exported before, by whichever forwarder of the
  rollout, is linked to it. It returns None or the failure, and must not raise.
- ``export_lines``: None, or a function that takes recorded lines (``Sequence[bytes]``, each a
  ``TracesData`` object in OTLP/JSON with its newline) and answers as ``export`` does. It is called instead
  of ``export``, and no SDK spans are made.
- ``reads_spool``: true when somebody else reads the segments, who may be behind: then they are not removed.
- ``prepare()``: connects and imports what the first ``export`` needs, while the program still runs. Called
  once in the exporter's thread before the first ``export``; it must not raise, and its failure is no news:
  ``export`` tries again and says so.
- ``destination(project)``: where a person finds what is exported for a project, as one phrase without
  credentials ("MLflow experiment 'p' at http://…"). It must not connect. Asked for at the start and
  after each batch, when more may be known.
- ``check()``: tells ``otel-rollout doctor`` whether the target takes spans from us, by None or the
  failure; it writes none.
"""

from __future__ import annotations

import enum
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime


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


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those behind it, which ``urllib3`` keeps in attributes and arguments."""
    cause: BaseException | None = error
    while isinstance(cause, BaseException):
        yield cause
        held = next((arg for arg in reversed(cause.args) if isinstance(arg, BaseException)), None)
        within = getattr(cause, "reason", None)
        within = within if isinstance(within, BaseException) else held
        cause = within or cause.__cause__ or cause.__context__


def is_cut_off(error: BaseException) -> bool:
    """Whether a TLS connection ended in the middle, as in an outage, rather than for want of trust."""
    cuts = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return any(isinstance(cause, cuts) for cause in causes(error))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from ``Retry-After``, which holds either seconds or a date; None when it is not among them."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=timezone.utc)
    return max(0.0, (until - datetime.now(timezone.utc)).total_seconds())
