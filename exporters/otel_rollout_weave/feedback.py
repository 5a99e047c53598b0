"""Convert scores to Weave's feedback."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation, Rank
from otel_rollout.otlp.score_identity import Candidate
from otel_rollout.otlp.span import Span
from otel_rollout_weave import values
from otel_rollout_weave.ids import call_id_of, uuid_of

MAX_TYPE_CHARS: Final = 128
"""Maximum characters of a feedback type; a longer score name is cut and gets a digest."""
MAX_TEXT_CHARS: Final = 10_000
"""Maximum characters of a score that is text, and of an explanation; the rest is cut."""
RUN_FEEDBACK: Final = "wb_run"
"""Feedback type that links a trajectory to a W&B run published after the trajectory was written."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class WeaveFeedback:
    """A score as Weave's feedback.

    Attributes:
        call_id: id of the call that was scored.
        name: feedback type; Weave filters and sorts by ``feedback.[<name>].payload.value``.
        value: the score.
        time_ns: when the score was given, Unix time in ns.
        explanation: the scorer's reason; None without one.
        is_dated: False for a root's score that was recorded without its own time.
    """

    call_id: str
    name: str
    value: float | bool | str
    time_ns: int
    explanation: str | None = None
    is_dated: bool = True

    @property
    def id(self) -> str:
        """The feedback's id, made of call and name; a resent score has an equal id."""
        return uuid_of(f"{self.call_id}/{self.name}")

    @property
    def rank(self) -> Rank:
        """The sort key of scores, by time in microseconds, as Weave stores it."""
        return self.is_dated, self.time_ns // 1000 if self.is_dated else 0, bool(self.explanation)

    def to_weave(self, project_id: str) -> dict[str, Any]:
        """Make the feedback in the form of the server's API."""
        payload: dict[str, Any] = {"value": self.value}
        if self.is_dated:
            payload["given_at"] = iso_time(self.time_ns)
        if self.explanation:
            payload["explanation"] = self.explanation
        return {
            "id": self.id,
            "project_id": project_id,
            "weave_ref": f"weave:///{project_id}/call/{self.call_id}",
            "feedback_type": self.name,
            "creator": "otel-rollout",
            "payload": payload,
        }


def rank_of(payload: Mapping[str, Any]) -> Rank:
    """Return the rank of a stored score, read from its payload."""
    given_at = unix_ns(payload.get("given_at"))
    return bool(given_at), given_at // 1000, bool(payload.get("explanation"))


def newest(feedback: Iterable[WeaveFeedback]) -> dict[str, WeaveFeedback]:
    """Map each feedback id to its newest score."""
    return evaluations.newest_by(lambda score: score.id, feedback)


def feedback_of(span: Span) -> list[WeaveFeedback]:
    """Read the scores of a root span, or the score of an evaluation span."""
    own_id = call_id_of(span.trace_id, span.span_id)
    found = [to_feedback(own_id, score) for score in repeated_by(span)]
    recorded = evaluations.recorded_in(span.attributes, span.start_ns)
    if recorded is not None:
        # An evaluation is a child of the span that it evaluates, so a late reward and the
        # `rollout.score.*` of its root are one feedback.
        found.append(
            to_feedback(call_id_of(span.trace_id, span.parent_id) if span.parent_id else own_id, recorded)
        )
    return found


def feedback_for(scores: Iterable[tuple[Span, Candidate[str]]]) -> Iterator[WeaveFeedback]:
    """Make the feedback of scores by identity, given the calls of their trajectories."""
    for span, candidate in scores:
        recorded = evaluations.recorded_in(span.attributes, span.start_ns)
        if recorded is not None:
            yield to_feedback(candidate.handle, recorded)


def repeated_by(span: Span) -> list[Evaluation]:
    """Read the scores that a root span repeats; none of any other span."""
    return [] if span.parent_id else evaluations.repeated_in(span.attributes, span.end_ns)


def run_feedback(call_id: str, run: str, time_ns: int) -> WeaveFeedback:
    """Make the feedback that links a written call to a W&B run."""
    return WeaveFeedback(call_id, RUN_FEEDBACK, run, time_ns)


def iso_time(time_ns: int) -> str:
    """Format a time to the microsecond; a float could not hold it exactly."""
    return (_EPOCH + timedelta(microseconds=time_ns // 1000)).isoformat(timespec="microseconds")


def unix_ns(text: object) -> int:
    """Parse a time that Weave stores, in microseconds, as Unix time in ns; 0 if it is none."""
    try:
        given = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        return (given - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, TypeError):
        return 0


def to_feedback(call_id: str, score: Evaluation) -> WeaveFeedback:
    """Make the feedback of a call's score."""
    value, explanation = values.clean(score.value), values.clean(score.comment[:MAX_TEXT_CHARS])
    if isinstance(value, str):
        value = value[:MAX_TEXT_CHARS]
    name = _feedback_type(score.name)
    return WeaveFeedback(call_id, name, value, score.time_ns, explanation or None, score.is_dated)


def _feedback_type(name: str) -> str:
    """Cut a score's name to Weave's limit; a digest keeps long names apart."""
    cleaned = str(values.clean(name))
    if cleaned.startswith("wandb.") or cleaned == RUN_FEEDBACK:  # reserved by the server, and by us
        cleaned = f"_{cleaned}"
    if len(cleaned) <= MAX_TYPE_CHARS:
        return cleaned
    digest = hashlib.sha256(cleaned.encode()).hexdigest()[:8]
    return f"{cleaned[: MAX_TYPE_CHARS - 9]}~{digest}"
