"""What is to be written about scores, by what MLflow has of them: the newest of a name stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_rollout_mlflow.mapping import Feedback, is_tagged, rank_of, tag_text
from otel_rollout_mlflow.target import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def changes_of(scores: Sequence[Feedback], info: Mapping[str, Any]) -> list[tuple[Change, Feedback]]:
    """Decide which Feedback of a trace to write.

    Args:
        scores: those of one trace, in any order.
        info: the trace as MLflow's API describes it, once its spans are written.
    """
    stored = {str(one.get("assessment_id")): one for one in info.get("assessments") or ()}
    changes = []
    for score in _newest(scores):
        known = stored.get(score.id)
        if known is None:
            changes.append((Change.CREATE, score))
        elif score.rank > rank_of(known):
            changes.append((Change.REPLACE, score))
        elif score.tagged and not is_tagged(known):
            changes.append((Change.MARK, score))
    return changes


def _newest(scores: Sequence[Feedback]) -> list[Feedback]:
    """One score per id. Of root and evaluation span, which hold the same one, only the root says whose."""
    by_id: dict[str, Feedback] = {}
    for score in scores:
        known = by_id.setdefault(score.id, score)
        best = known if score.rank < known.rank else score
        by_id[score.id] = replace(best, tagged=known.tagged or score.tagged)
    return list(by_id.values())


def tags_of(scores: Sequence[Feedback], info: Mapping[str, Any]) -> list[tuple[Change, Feedback]]:
    """Decide which tags of a trace to write: the newest scores of the trajectory, where they are none yet.

    To be written before the Feedback: by the scores that are there a tag is known to be a score's.

    Args:
        scores: those of one trace, in any order.
        info: the trace as MLflow's API describes it, once its spans are written.
    """
    tags = info.get("tags") or {}
    found = []
    for name in {score.name: None for score in _newest(scores) if score.tagged}:
        ours = [score for score in scores if score.name == name]
        stored = [one for one in info.get("assessments") or () if one.get("assessment_name") == name]
        best = _newest_tagged(ours, stored)
        current = tags.get(name)
        known = {score.tag_text for score in ours} | {tag_text(_value(one) or "") for one in stored}
        # A tag that no score explains is an attribute's, which counts before a score.
        if current is None or (current != best.tag_text and current in known):
            found.append((Change.TAG, best))
    return found


def _newest_tagged(ours: Sequence[Feedback], stored: Sequence[Mapping[str, Any]]) -> Feedback:
    """The newest of a trajectory's scores of one name, those that MLflow has included."""
    tagged = {score.id: score for score in _newest(ours) if score.tagged}
    best = max(tagged.values(), key=lambda score: score.rank)
    for one in stored:
        value = _value(one)
        is_meant = is_tagged(one) or one.get("assessment_id") in tagged
        if is_meant and rank_of(one) > best.rank and value is not None:
            best = replace(best, value=value, time_ns=rank_of(one)[1], is_dated=True)
    return best


def _value(assessment: Mapping[str, Any]) -> bool | float | str | None:
    value = (assessment.get("feedback") or {}).get("value")
    return value if isinstance(value, (bool, int, float, str)) else None
