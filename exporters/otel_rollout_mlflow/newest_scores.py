"""Decide which scores to write so that the newest of each name stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from otel_rollout.otlp import evaluations
from otel_rollout_mlflow.feedback import MlflowFeedback, is_tagged, rank_of
from otel_rollout_mlflow.tags import FEEDBACK_ONLY, tag_text
from otel_rollout_mlflow.target import Change


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

    The result has the newest scores of the trajectory that are not yet tags. Tags must be written before
    feedback: stored feedback with an older value shows that a tag is a score's and may be replaced.

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
        current = tags.get(name)
        known = {score.tag_text for score in ours} | {tag_text(_value(one) or "") for one in stored}
        # A tag with a value of no score comes from an attribute, which wins over a score.
        if current is None or (current != newest.tag_text and current in known):
            found.append((Change.TAG, newest))
    return found


def _adopted(score: MlflowFeedback, info: Mapping[str, Any]) -> MlflowFeedback:
    """Return a score as that of the span to which the trajectory's stored score of its name belongs.

    A score by identity, which belongs to no span, takes the place of the root's, and the root's takes that of
    a score by identity. So the trace has one feedback of a name.
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

    Root and evaluation span may hold one score, but only the root tells that it is the trajectory's.
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
