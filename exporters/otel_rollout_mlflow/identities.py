"""Find traces by the identity of their trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp.score_identity import Candidate, TrajectoryIdentity
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow.feedback import MlflowFeedback, given_to_trace
from otel_rollout_mlflow.run_links import quoted
from otel_rollout_mlflow.storable import storable_text
from otel_rollout_mlflow.target import Target
from otel_rollout_mlflow.trace_reader import unix_ns

_TAG_OF: Final = {name: semconv.short_name(name) for name in semconv.IDENTITY if name != semconv.PROJECT_NAME}


def find(target: Target, experiment_id: str, scores: Sequence[TrajectoryIdentity]) -> list[Candidate[str]]:
    """Return the trajectories of the scores' steps, with one search for each step.

    Args:
        experiment_id: MLflow's experiment.
        scores: scores of one project.
    """
    filters = {_filter(score): score.project for score in scores}
    found = {}  # searches overlap where one has no condition on a part of an identity
    for filter_string, project in filters.items():
        for info in target.traces_of(filter_string, [experiment_id]):
            found[str(info["trace_id"])] = Candidate(
                _identity_of(info.get("tags") or {}, project),
                str(info["trace_id"]),
                unix_ns(str(info.get("request_time", ""))),
            )
    return list(found.values())


def has_trajectories(target: Target, experiment_id: str, run: str) -> bool:
    """Return whether a run has stored a trajectory in an experiment."""
    wanted = f"tags.`{semconv.RUN_ID}` = {quoted(run)}"
    found = target.traces_of(wanted, [experiment_id])
    return any(_TAG_OF[semconv.VALIDATE] in (info.get("tags") or {}) for info in found)


def feedback_for(scores: Iterable[tuple[Span, Candidate[str]]]) -> list[MlflowFeedback]:
    """Make the feedback of scores whose traces are found."""
    made = (given_to_trace(span, candidate.handle) for span, candidate in scores)
    return [feedback for feedback in made if feedback is not None]


def _filter(score: TrajectoryIdentity) -> str:
    """Return the condition for the trajectories of a score's step, in MLflow's syntax."""
    wanted = {
        semconv.STEP: score.step,
        semconv.EXPERIMENT_NAME: score.experiment,
        semconv.VALIDATE: str(score.validate),
    }
    return " AND ".join(
        f"tags.{_TAG_OF[name]} = {quoted(storable_text(text))}"
        for name, text in wanted.items()
        if text and not ("'" in text and '"' in text)  # no quotation holds such a text
    )


def _identity_of(tags: Mapping[str, Any], project: str) -> TrajectoryIdentity:
    attributes = {name: tags.get(tag) for name, tag in _TAG_OF.items()}
    return TrajectoryIdentity.of({**attributes, semconv.PROJECT_NAME: project}, tags.get(semconv.RUN_ID))
