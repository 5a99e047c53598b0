"""Scores: rewards, verdicts and labels, of the trajectory around or of one that is over."""

from __future__ import annotations

import math
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout import runtime, semconv
from otel_rollout.capture import spans, values
from otel_rollout.capture.guard import fault
from otel_rollout.capture.trajectory import PREVIEW_BYTES, trajectory_in
from otel_rollout.record.identity import Identity, identity_in, with_identity

Score = float | bool | str
_traceparent = TraceContextTextMapPropagator()


def score(name: str, value: Any, *, comment: str | None = None, trajectory: str | None = None) -> None:
    """Score a trajectory: a reward, an advantage, a verdict, a label.

    By default it is the trajectory that the caller is inside of. In the process that runs it the score is
    also put on its root span; in another one, which a Ray call has reached, it is recorded below the current
    span. Outside any trajectory it is ignored.

    A score of the same name replaces the one before. Never raises; a trajectory that is not recorded, or an
    id that is none, is counted (``Report.left_out``).

    Args:
        name: what is scored, e.g. ``"reward"``.
        value: a number, a bool or a label; numpy and torch scalars are numbers.
        comment: why, in words.
        trajectory: :attr:`Trajectory.id` of another trajectory, running or over, of any process that
            delivers to the same place.
    """
    try:
        active = runtime.current()
        if active is None:
            return
        if trajectory is not None:
            _score_by_id(active, trajectory, name, _score_value(value), comment)
            return
        context = otel_context.get_current()
        inside = trajectory_in(context)
        if inside is not None and inside.root is not None:
            # A root that has ended, in whose context a task lives on, takes no attributes any more.
            origin = semconv.ORIGIN_OUTSIDE if inside.is_over else None
            _record(active, inside.root, context, name, _score_value(value), comment, origin)
            inside.root.set_attribute(semconv.SCORE_PREFIX + name, _score_value(value))
        elif inside is None and identity_in(context).attributes:
            scored = trace.get_current_span(context)
            _record(active, scored, context, name, _score_value(value), comment, semconv.ORIGIN_PROCESS)
    except Exception as error:  # noqa: BLE001
        fault("recording a score", error)


def _score_by_id(active: runtime.Runtime, id_: str, name: str, value: Score, comment: str | None) -> None:
    # Nothing of the trajectory that the caller may be inside of: an empty context.
    context = _traceparent.extract({"traceparent": str(id_)}, Context())
    scored = trace.get_current_span(context)
    if not scored.get_span_context().is_valid:
        active.writer.skip("score_of_unknown")
    elif not scored.get_span_context().trace_flags.sampled:
        active.writer.skip("score_of_unrecorded")
    else:
        settings = active.settings
        project = {semconv.PROJECT_NAME: settings.project_name, semconv.EXPERIMENT_NAME: settings.experiment}
        context = with_identity(Identity(project), context)
        _record(active, scored, context, name, value, comment, semconv.ORIGIN_OUTSIDE)


def _record(
    active: runtime.Runtime,
    scored: Span,
    context: Context,
    name: str,
    value: Score,
    comment: str | None,
    origin: str | None,
) -> None:
    """Record a score as a zero-length evaluation span below what is scored."""
    below = trace.set_span_in_context(scored, context)
    span = spans.start(active, f"score {name}", semconv.KIND_EVALUATOR, scored, below)
    if span is None:
        return
    try:
        span.set_attribute(semconv.GEN_AI_EVALUATION_NAME, name)
        if isinstance(value, (bool, str)):
            span.set_attribute(semconv.GEN_AI_EVALUATION_SCORE_LABEL, str(value))
        if not isinstance(value, str):
            span.set_attribute(semconv.GEN_AI_EVALUATION_SCORE_VALUE, float(value))
        if comment is not None:
            span.set_attribute(semconv.GEN_AI_EVALUATION_EXPLANATION, comment)
        if origin is not None:
            span.set_attribute(semconv.SCORE_ORIGIN, origin)
        spans.put_json(span, semconv.OUTPUT_VALUE, values.to_json(value, PREVIEW_BYTES))
    finally:
        span.end()


def _score_value(value: Any) -> Score:
    if isinstance(value, (bool, str)):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
