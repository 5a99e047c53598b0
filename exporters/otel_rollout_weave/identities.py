"""Find calls by the identity of their trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout_weave.attributes import RUN_ID_ATTRIBUTE
from otel_rollout_weave.feedback import unix_ns
from otel_rollout_weave.server import Server

_ATTRIBUTE_OF: Final = {name: semconv.short_name(name) for name in semconv.IDENTITY}


def find(server: Server, project_id: str, scores: Sequence[TrajectoryIdentity]) -> list[Candidate[str]]:
    """Return the trajectories of the scores' steps, with one query for each step.

    Args:
        project_id: ``entity/project``.
        scores: scores of one project.
    """
    steps = dict.fromkeys((score.project, score.experiment, score.step) for score in scores)
    return [
        Candidate(_identity_of(call["attributes"], project), str(call["id"]), unix_ns(call.get("started_at")))
        for project, experiment, step in steps
        for call in _trajectories(
            server, project_id, {semconv.EXPERIMENT_NAME: experiment, semconv.STEP: step}
        )
    ]


def has_trajectories(server: Server, project_id: str, run: str) -> bool:
    """Return whether a run has stored a trajectory in a project."""
    return any(True for _ in _trajectories(server, project_id, {RUN_ID_ATTRIBUTE: run}))


def _trajectories(server: Server, project_id: str, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the root calls of ended trajectories with attributes of these texts."""
    equal = [
        {"$eq": [_text_of(_ATTRIBUTE_OF.get(name, name)), {"$literal": text}]}
        for name, text in wanted.items()
        if text
    ]
    calls = server.find_calls(
        project_id,
        ["id", "started_at", "ended_at", "attributes"],
        "looking for the trajectories of scores",
        filter={"trace_roots_only": True},
        query={"$expr": {"$and": equal}},
        sort_by=[{"field": "started_at", "direction": "asc"}],
    )
    for call in calls:
        # The call that shows a running trajectory is deleted when the trajectory has ended.
        if call.get("ended_at") and _ATTRIBUTE_OF[semconv.VALIDATE] in (call.get("attributes") or {}):
            yield call


def _text_of(attribute: str) -> dict[str, Any]:
    """Make the expression for an attribute as text: a step may be a number."""
    return {"$convert": {"input": {"$getField": f"attributes.{attribute}"}, "to": "string"}}


def _identity_of(attributes: Mapping[str, Any], project: str) -> TrajectoryIdentity:
    known = {name: attributes.get(attribute) for name, attribute in _ATTRIBUTE_OF.items()}
    known[semconv.PROJECT_NAME] = project
    return TrajectoryIdentity.of(known, attributes.get(RUN_ID_ATTRIBUTE))
