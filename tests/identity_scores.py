"""Scores by identity as an exporter gets them."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.base import form_for
from otel_rollout.otlp.score_identity import TrajectoryIdentity, Unresolved, trajectory_of
from tests.sdk_spans import Rollouts, decoded

GivenScore = tuple[ReadableSpan, TrajectoryIdentity]


def given(
    rollouts: Rollouts, value: float, time_ns: int, sample: object, rollout: object, **more: object
) -> GivenScore:
    """Return a score by identity, and the identity."""
    attributes: dict[str, Any] = {
        "rollout__sample_index": sample,
        "rollout__rollout_n": rollout,
        "gen_ai__evaluation__name": "reward",
        "gen_ai__evaluation__score__value": value,
        "rollout__score_origin": "identity",
        **more,
    }
    rollouts.begin("score reward", time_ns, **attributes).end(time_ns)
    span = rollouts.ended()[-1]
    return span, TrajectoryIdentity.of(span.attributes, span.resource.attributes["rollout.run.id"])


def resolve(exporter: Any, *scores: GivenScore, has_own: bool = True) -> list[Unresolved]:
    """Find the scores' trajectories and store the scores; return why some have none."""
    found = exporter.find_trajectories([identity for _, identity in scores])
    form = form_for(exporter)
    chosen = [
        (form(decoded(span)), trajectory_of(identity, found, has_own=has_own, given_ns=span.start_time))
        for span, identity in scores
    ]
    resolved = [pair for pair in chosen if not isinstance(pair[1], Unresolved)]
    assert exporter.export_scores(resolved) is SpanExportResult.SUCCESS, exporter.last_failure
    return [one for _, one in chosen if isinstance(one, Unresolved)]
