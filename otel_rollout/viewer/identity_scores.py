"""Give scores by identity to the trajectories of a spool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_rollout.base import semconv
from otel_rollout.otlp.score_identity import (
    Candidate,
    TrajectoryIdentity,
    Unresolved,
    is_by_identity,
    trajectory_of,
)


def by_trajectory(
    scores: Iterable[ReadableSpan], roots: Iterable[ReadableSpan]
) -> Mapping[str, Sequence[ReadableSpan]]:
    """Map trace ids to the scores by identity of their trajectories.

    The returned spans are below the trajectories' roots, as scores by id are. Scores that fit no trajectory,
    or several, are left out.

    Args:
        scores: evaluation spans; spans other than scores by identity are ignored.
        roots: root spans of trajectories; further spans are ignored.
    """
    trajectories: dict[TrajectoryIdentity, list[Candidate[SpanContext]]] = {}
    runs = set()
    for root in roots:
        attributes = root.attributes or {}
        is_root = root.context is not None and root.parent is None and semconv.VALIDATE in attributes
        if is_root and root.context is not None and not is_by_identity(attributes):
            identity = identity_of(root)
            runs.add(identity.run)
            key = identity._replace(rollout_n="", run="")
            trajectories.setdefault(key, []).append(Candidate(identity, root.context, root.start_time or 0))
    found: dict[str, list[ReadableSpan]] = {}
    for score in scores:
        if not is_by_identity(score.attributes or {}):
            continue
        identity = identity_of(score)
        candidates = trajectories.get(identity._replace(rollout_n="", run=""), ())
        chosen = trajectory_of(
            identity, candidates, has_own=identity.run in runs, given_ns=score.start_time or 0
        )
        if not isinstance(chosen, Unresolved):
            found.setdefault(f"{chosen.handle.trace_id:032x}", []).append(_below(score, chosen.handle))
    return found


def identity_of(span: ReadableSpan) -> TrajectoryIdentity:
    """Return the identity that a root span or a score by identity has."""
    return TrajectoryIdentity.of(span.attributes or {}, span.resource.attributes.get(semconv.RUN_ID))


def _below(score: ReadableSpan, root: SpanContext) -> ReadableSpan:
    """Return a score by identity as a span below a root."""
    own = score.context
    return ReadableSpan(
        name=score.name,
        context=own
        and SpanContext(root.trace_id, own.span_id, own.is_remote, own.trace_flags, own.trace_state),
        parent=root,
        resource=score.resource,
        attributes=score.attributes,
        instrumentation_scope=score.instrumentation_scope,
        status=score.status,
        start_time=score.start_time,
        end_time=score.end_time,
    )
