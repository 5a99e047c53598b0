"""Convert scores to MLflow's Feedback assessments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation, Rank
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow.ids import is_root, trace_id_of
from otel_rollout_mlflow.storable import storable_text
from otel_rollout_mlflow.tags import NOT_FOR_SCORES, problem_of_tag, tag_text

MAX_NAME_CHARS: Final = 250
"""Maximum characters of a score's name. A longer score is skipped, since MLflow would refuse the request."""
SOURCE_ID: Final = "otel-rollout"
"""Id that marks this exporter as the source of feedback."""
TIME_METADATA: Final = "rollout.score_time"
"""Metadata key of the time at which the score was given, Unix time in ns."""
TAGGED_METADATA: Final = "rollout.score_tagged"
"""Metadata key that marks a trajectory's feedback; the newest of a name becomes a trace tag."""
MARK: Final = {TAGGED_METADATA: "true"}


@dataclass(frozen=True)
class MlflowFeedback:
    """A score as MLflow's Feedback assessment.

    Attributes:
        trace_id: MLflow's id of the trace.
        span_id: id of the scored span, 16 hex digits; empty for a score by identity, given to the trace.
        name: name of the score; ``feedback.<name> > 0.2`` finds it.
        value: the score.
        time_ns: when the score was given, Unix time in ns.
        is_dated: False for a root's score that was recorded without its own time.
        rationale: the scorer's reason; None without one.
        tagged: whether the score is the trajectory's; the newest of its name becomes a trace tag, unless
            training made it (``FEEDBACK_ONLY``).
    """

    trace_id: str
    span_id: str
    name: str
    value: float | bool | str
    time_ns: int
    is_dated: bool = True
    rationale: str | None = None
    tagged: bool = False

    @property
    def id(self) -> str:
        """The assessment's id, made of trace, span and name.

        A resent score has an equal id, so it overwrites itself.
        """
        key = f"{self.trace_id}/{self.span_id}/{self.name}".encode(errors="replace")
        return f"a-{hashlib.sha256(key).hexdigest()[:32]}"

    @property
    def rank(self) -> Rank:
        """The sort key of scores of one name; the score with the greatest key wins."""
        return self.is_dated, self.time_ns if self.is_dated else 0, bool(self.rationale)

    @property
    def metadata(self) -> dict[str, str]:
        """The score's time in ns (MLflow stores only ms), and the trajectory's mark."""
        time = {TIME_METADATA: str(self.time_ns)} if self.is_dated else {}
        return {**time, **(MARK if self.tagged else {})}

    @property
    def tag_text(self) -> str:
        """The value as a trace tag."""
        return tag_text(self.value)


def rank_of(assessment: Mapping[str, Any]) -> Rank:
    """Return the rank of a stored score, read from MLflow's API."""
    time = str((assessment.get("metadata") or {}).get(TIME_METADATA, ""))
    return time.isdecimal(), int(time) if time.isdecimal() else 0, bool(assessment.get("rationale"))


def is_tagged(assessment: Mapping[str, Any]) -> bool:
    """Whether a stored score has the mark of a trajectory's score."""
    return TAGGED_METADATA in (assessment.get("metadata") or {})


def is_given_outside(span: Span) -> bool:
    """Whether a span is a score that was given from outside its trajectory.

    The exporter does not send such a span, because MLflow measures a trace's duration up to the end of its
    last span.
    """
    attributes = span.attributes
    is_score = semconv.GEN_AI_EVALUATION_NAME in attributes
    return is_score and attributes.get(semconv.SCORE_ORIGIN) == semconv.ORIGIN_OUTSIDE


def feedback_of(span: Span) -> list[MlflowFeedback]:
    """Read the scores of a root span, or the score of an evaluation span."""
    if not is_root(span) and semconv.GEN_AI_EVALUATION_NAME not in span.attributes:
        return []
    attributes = span.attributes
    trace_id = trace_id_of(span)
    found: list[MlflowFeedback] = []
    if is_root(span):
        for repeated in evaluations.repeated_in(attributes, span.end_ns):
            found.append(_feedback(trace_id, span.span_id, repeated, tagged=True))
    recorded = evaluations.recorded_in(attributes, span.start_ns)
    if recorded is not None:
        # An evaluation is a child of the span that it evaluates, so a late reward and the
        # `rollout.score.*` of its root are one feedback.
        scored_id = span.parent_id or span.span_id
        found.append(_feedback(trace_id, scored_id, recorded, tagged=recorded.origin is not None))
    return [score for score in found if len(score.name) <= MAX_NAME_CHARS]


def given_to_trace(span: Span, trace_id: str) -> MlflowFeedback | None:
    """Return the feedback of a score by identity, whose trace is found; None for any other span."""
    score = evaluations.recorded_in(span.attributes, span.start_ns)
    if score is None or len(score.name) > MAX_NAME_CHARS:
        return None
    return _feedback(trace_id, "", score, tagged=True)


def _feedback(trace_id: str, scored_id: str, score: Evaluation, *, tagged: bool) -> MlflowFeedback:
    return MlflowFeedback(
        trace_id=trace_id,
        span_id=scored_id,
        name=storable_text(score.name),
        value=storable_text(score.value) if isinstance(score.value, str) else score.value,
        time_ns=score.time_ns,
        is_dated=score.is_dated,
        rationale=storable_text(score.comment) or None,
        tagged=tagged and can_be_tagged(score.name),
    )


def can_be_tagged(name: str) -> bool:
    """Return whether a trajectory's score of this name is a tag of its trace, too."""
    return name not in NOT_FOR_SCORES and problem_of_tag(name) is None
