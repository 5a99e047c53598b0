"""Find trajectories in an OpenTelemetry context, and leave those that have ended.

A task keeps the context in which it was started. So a context may hold a trajectory, a span, or a call from
another process, that has already ended.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, get_current_span

from otel_rollout.base.finalizers import attach
from otel_rollout.record.capture import remote_call
from otel_rollout.record.capture.trajectory_attributes import are_of_two_trajectories
from otel_rollout.record.recording.entered import EnteredTrajectory, running_task
from otel_rollout.record.recording.identity import NO_IDENTITY, OUTSIDE, identity_in, with_identity
from otel_rollout.record.recording.provider import UnrecordedSpan
from otel_rollout.record.recording.runtime_context import SPAN, TRAJECTORY

OPERATION: Final = otel_context.create_key("otel-rollout-operation")
"""Key of the current operation, if it is a method."""
STARTING: Final = "starting a trajectory"
"""What fails where a trajectory cannot be recorded; its scores are then outside any trajectory."""


def trajectory_in(context: Context) -> EnteredTrajectory | None:
    """Return the trajectory of a context if it was started in this process, or None."""
    return context.get(TRAJECTORY)  # type: ignore[return-value] # nobody else has the key


def is_in_trajectory(context: Context) -> bool:
    """Return whether a context is inside a trajectory, recorded or not.

    A traced operation outside any trajectory counts as one. A trajectory of another process is known by its
    identity, or, if it is sampled out, by the unrecorded span that the call carried.
    """
    if TRAJECTORY in context or OPERATION in context or identity_in(context).attributes:
        return True
    span = get_current_span(context)
    is_sampled = span.get_span_context().trace_flags.sampled
    return type(span) is UnrecordedSpan or (not is_sampled and remote_call.is_in(context))


def span_of_another(trajectory: EnteredTrajectory, context: Context) -> Span | None:
    """Return the current span if a trajectory that starts in the context does not belong to that span.

    The trajectory does not belong to the span if the span's trajectory, operation, request or call has ended,
    or if another caller has started the span's trajectory. Nor does it belong to an operation outside any
    trajectory, which would be the root of its trace. This process does not know whether a trajectory of
    another process has ended. It knows whether the call from that process has ended.
    """
    around = trajectory_in(context)
    if around is not None:
        is_another = around.is_over or _is_of_another_caller(trajectory, around)
        return around.root or trace.INVALID_SPAN if is_another else None
    span = get_current_span(context)
    if identity_in(context) is OUTSIDE:
        return span
    if isinstance(span, NonRecordingSpan):
        return span if remote_call.has_ended(context) else None
    return None if span.is_recording() else span


def _is_of_another_caller(trajectory: EnteredTrajectory, around: EnteredTrajectory | None) -> bool:
    """Return whether a trajectory that starts inside ``around`` is not part of it.

    The inner trajectory is not part of the outer one if different tasks have started them, with different
    steps, samples or rollouts. For example, a worker task that was started inside one trajectory may serve
    other ones.
    """
    while around is not None and around.task != trajectory.task:
        if are_of_two_trajectories(trajectory.identity, around.identity):
            return True
        around = trajectory_in(around.context_outside)
    return False


def without_trajectory(context: Context) -> Context:
    """Return a context without span and identity, in which a new trace starts."""
    return with_identity(NO_IDENTITY, Context({**context, SPAN: trace.INVALID_SPAN}))


def leave_ended_trajectories(context: Context) -> None:
    """Leave enclosing trajectories that ended before the trajectory inside them."""
    outside, around = context, trajectory_in(context)
    while around is not None and around.is_over:
        outside = around.context_outside
        around = trajectory_in(outside)
    if outside is not context:
        entries = {SPAN: get_current_span(outside), TRAJECTORY: around, OPERATION: outside.get(OPERATION)}
        attach(with_identity(identity_in(outside), Context({**context, **entries})))


def is_left_by(trajectory: EnteredTrajectory, context: Context) -> bool:
    """Return whether a context that is current when a trajectory ends belongs to that trajectory.

    The context may hold a library's span that is still open, for example of an abandoned stream. A context of
    another task does not belong to the trajectory.
    """
    around = trajectory_in(context)
    while around is not None and around is not trajectory and around.is_over:
        around = trajectory_in(around.context_outside)
    return around is trajectory and trajectory.task == running_task()
