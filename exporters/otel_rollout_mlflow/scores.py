"""Convert scores to MLflow's Feedback, keep the newest of each name, and find the scored traces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation, Rank
from otel_rollout.otlp.json_values import time_of_timestamp, timestamp_of
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow.storable import storable_text
from otel_rollout_mlflow.tags import (
    FEEDBACK_ONLY,
    NOT_FOR_SCORES,
    problem_of_tag,
    quoted,
    tag_text,
    trace_id_of,
)

MAX_NAME_CHARS: Final = 250
"""Maximum characters of a score's name. A longer score is skipped, since MLflow would refuse the request."""
SOURCE_ID: Final = "otel-rollout"
"""Id that marks this exporter as the source of feedback."""
TIME_METADATA: Final = "rollout.score_time"
"""Metadata key of the time at which the score was given, Unix time in ns."""
TAGGED_METADATA: Final = "rollout.score_tagged"
"""Metadata key that marks a trajectory's feedback; the newest of a name becomes a trace tag."""
MARK: Final = {TAGGED_METADATA: "true"}
Search = Callable[[str], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class MlflowFeedback(Evaluation):
    """A score as MLflow's Feedback assessment; ``feedback.<name> > 0.2`` finds it.

    Attributes:
        trace_id: MLflow's id of the trace.
        span_id: id of the scored span, 16 hex digits; empty for a score by identity, given to the trace.
        tagged: whether the score is the trajectory's; the newest of its name becomes a trace tag, unless
            training made it (``FEEDBACK_ONLY``).
    """

    trace_id: str
    span_id: str
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
        return self.is_dated, self.time_ns if self.is_dated else 0, bool(self.comment)

    @property
    def metadata(self) -> dict[str, str]:
        """The score's time in ns (MLflow stores only ms), and the trajectory's mark."""
        time = {TIME_METADATA: str(self.time_ns)} if self.is_dated else {}
        return {**time, **(MARK if self.tagged else {})}

    @property
    def tag_text(self) -> str:
        """The value as a trace tag."""
        return tag_text(self.value)

    def to_mlflow(self) -> dict[str, Any]:
        """Make the assessment in the form of MLflow's API."""
        given_at = timestamp_of(self.time_ns, "milliseconds")  # as MLflow keeps them
        return {
            "assessment_id": self.id,
            "assessment_name": self.name,
            "trace_id": self.trace_id,
            **({"span_id": self.span_id} if self.span_id else {}),
            "source": {"source_type": "CODE", "source_id": SOURCE_ID},
            "create_time": given_at,
            "last_update_time": given_at,
            "feedback": {"value": self.value},
            "rationale": self.comment,
            "metadata": self.metadata,
            "valid": True,
        }


def rank_of(assessment: Mapping[str, Any]) -> Rank:
    """Return the rank of a stored score, read from MLflow's API."""
    time = str((assessment.get("metadata") or {}).get(TIME_METADATA, ""))
    return time.isdecimal(), int(time) if time.isdecimal() else 0, bool(assessment.get("rationale"))


def is_tagged(assessment: Mapping[str, Any]) -> bool:
    """Return whether a stored score has the mark of a trajectory's score."""
    return TAGGED_METADATA in (assessment.get("metadata") or {})


def is_given_outside(span: Span) -> bool:
    """Return whether a span is a score that was given from outside its trajectory.

    The exporter does not send such a span, because MLflow measures a trace's duration up to the end of its
    last span.
    """
    attributes = span.attributes
    is_score = semconv.GEN_AI_EVALUATION_NAME in attributes
    return is_score and attributes.get(semconv.SCORE_ORIGIN) == semconv.ORIGIN_OUTSIDE


def feedback_of(span: Span) -> list[MlflowFeedback]:
    """Read the scores of a root span, or the score of an evaluation span."""
    trace_id = trace_id_of(span)
    return [
        _feedback(trace_id, scored_id, score, tagged=is_of_trajectory)
        for scored_id, score, is_of_trajectory in evaluations.scores_of(span)
        if len(score.name) <= MAX_NAME_CHARS
    ]


def _feedback(trace_id: str, scored_id: str, score: Evaluation, *, tagged: bool) -> MlflowFeedback:
    return MlflowFeedback(
        storable_text(score.name),
        storable_text(score.value) if isinstance(score.value, str) else score.value,
        score.time_ns,
        storable_text(score.comment),
        is_dated=score.is_dated,
        trace_id=trace_id,
        span_id=scored_id,
        tagged=tagged and score.name not in NOT_FOR_SCORES and problem_of_tag(score.name) is None,
    )


# --- which score stays --------------------------------------------------------------------------------------


class Change(Enum):
    """How to write a score."""

    CREATE = "create"
    """Write the score; MLflow has no score with its id."""
    REPLACE = "replace"
    """Overwrite value, comment and metadata of the older score with its id."""
    MARK = "mark"
    """Mark the stored score as the trajectory's; it was written without the mark."""
    TAG = "tag"
    """Write the score's value as a trace tag with the score's name."""


def changes_of(
    scores: Sequence[MlflowFeedback], info: Mapping[str, Any]
) -> list[tuple[Change, MlflowFeedback]]:
    """Decide which feedback of a trace to write.

    Args:
        scores: scores of one trace, in any order.
        info: the trace as MLflow's API describes it, once its spans are written.
    """
    stored = {str(assessment.get("assessment_id")): assessment for assessment in _assessments(info)}
    changes = []
    for score in _newest([_adopted(score, info) for score in scores]).values():
        known = stored.get(score.id)
        if known is None:
            changes.append((Change.CREATE, score))
        elif score.rank > rank_of(known):
            changes.append((Change.REPLACE, score))
        elif score.tagged and not is_tagged(known):
            changes.append((Change.MARK, score))
    return changes


def tags_of(scores: Sequence[MlflowFeedback], info: Mapping[str, Any]) -> list[tuple[Change, MlflowFeedback]]:
    """Decide which tags of a trace to write.

    The result has the newest scores of the trajectory that are not yet tags. Write these tags before the
    feedback. A score replaces the tag of an attribute of its name, except one that identifies the trajectory.

    Args:
        scores: scores of one trace, in any order.
        info: the trace as MLflow's API describes it, once its spans are written.
    """
    tags = info.get("tags") or {}
    found = []
    of_trajectory = {score.name: None for score in _newest(scores).values() if score.tagged}
    for name in (name for name in of_trajectory if name not in FEEDBACK_ONLY):
        ours = [score for score in scores if score.name == name]
        stored = [one for one in _assessments(info) if one.get("assessment_name") == name]
        newest = _newest_tagged(ours, stored)
        if tags.get(name) != newest.tag_text:
            found.append((Change.TAG, newest))
    return found


def _adopted(score: MlflowFeedback, info: Mapping[str, Any]) -> MlflowFeedback:
    """Move a trajectory's score to the span whose stored feedback has the score's name.

    The root's score and a score by identity, which belongs to no span, replace each other. So the trace has
    one feedback of each name.
    """
    if not score.tagged:
        return score
    stored = [
        one
        for one in _assessments(info)
        if one.get("assessment_name") == score.name
        and is_tagged(one)
        and (not score.span_id or not one.get("span_id"))
    ]
    if not stored or any(one.get("assessment_id") == score.id for one in _assessments(info)):
        return score
    return replace(score, span_id=str(max(stored, key=rank_of).get("span_id") or ""))


def _newest(scores: Sequence[MlflowFeedback]) -> dict[str, MlflowFeedback]:
    """Map each id to the newest score, tagged if any score of the id is tagged.

    A root and an evaluation span may hold the same score, and only one of them may tell that the score is the
    trajectory's.
    """
    tagged = {score.id for score in scores if score.tagged}
    newest = evaluations.newest_by(lambda score: score.id, scores)
    return {id_: replace(score, tagged=id_ in tagged) for id_, score in newest.items()}


def _newest_tagged(scores: Sequence[MlflowFeedback], stored: Sequence[Mapping[str, Any]]) -> MlflowFeedback:
    """Return the newest of a trajectory's scores of one name, given or stored."""
    tagged = {score.id: score for score in _newest(scores).values() if score.tagged}
    newest = max(tagged.values(), key=lambda score: score.rank)
    for assessment in stored:
        value = _value(assessment)
        is_of_trajectory = is_tagged(assessment) or assessment.get("assessment_id") in tagged
        if is_of_trajectory and rank_of(assessment) > newest.rank and value is not None:
            newest = replace(newest, value=value, time_ns=rank_of(assessment)[1], is_dated=True)
    return newest


def _assessments(info: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return info.get("assessments") or ()


def _value(assessment: Mapping[str, Any]) -> bool | float | str | None:
    value = (assessment.get("feedback") or {}).get("value")
    return value if isinstance(value, (bool, int, float, str)) else None


# --- scores by identity -------------------------------------------------------------------------------------


def find(search: Search, scores: Iterable[TrajectoryIdentity]) -> list[Candidate[str]]:
    """Return the trajectories of the scores' steps, with one search for each step.

    Args:
        search: yields the traces of an experiment that match a condition, as MLflow's API describes them.
        scores: scores of one project.
    """
    filters = {_filter(score): score.project for score in scores}
    found = {}  # searches overlap where one has no condition on a part of an identity
    for filter_string, project in filters.items():
        for info in search(filter_string):
            trace_id, tags = str(info["trace_id"]), info.get("tags") or {}
            identity = TrajectoryIdentity.of_stored(tags, project, tags.get(semconv.RUN_ID))
            found[trace_id] = Candidate(identity, trace_id, time_of_timestamp(info.get("request_time")))
    return list(found.values())


def has_trajectories(search: Search, run: str) -> bool:
    """Return whether a run has stored a trajectory."""
    found = search(f"tags.`{semconv.RUN_ID}` = {quoted(run)}")
    return any(semconv.short_name(semconv.VALIDATE) in (info.get("tags") or {}) for info in found)


def feedback_for(scores: Iterable[tuple[Span, Candidate[str]]]) -> Iterator[MlflowFeedback]:
    """Make the feedback of scores whose traces are found."""
    for span, candidate in scores:
        score = evaluations.recorded_in(span.attributes, span.start_ns)
        if score is not None and len(score.name) <= MAX_NAME_CHARS:
            yield _feedback(candidate.handle, "", score, tagged=True)


def _filter(score: TrajectoryIdentity) -> str:
    """Return the condition for the trajectories of a score's step, in MLflow's syntax."""
    wanted = {
        semconv.STEP: score.step,
        semconv.EXPERIMENT_NAME: score.experiment,
        semconv.VALIDATE: str(score.validate),
    }
    return " AND ".join(
        f"tags.{semconv.short_name(name)} = {quoted(storable_text(text))}"
        for name, text in wanted.items()
        if text and not ("'" in text and '"' in text)  # no quotation holds such a text
    )
