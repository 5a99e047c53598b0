"""Record trajectories that are open at the same time in one thread.

A framework that generates a whole batch at once advances many trajectories together, so no block of its code
belongs to one of them. Each :class:`OpenTrajectory` has a context of its own. The integration enters this
context where the framework runs code for one trajectory, such as a tool, and records what the framework did
for all of them, such as a batched model call, afterwards with its times.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.context import Context, get_current

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import attach, set_variable
from otel_rollout.base.given import reading
from otel_rollout.integrations.kit.open_operation import OpenOperation
from otel_rollout.integrations.kit.spans import set_attributes
from otel_rollout.record.capture.context import trajectory_in
from otel_rollout.record.recording.entered import ENTERED, EnteredTrajectory


@dataclass(slots=True)
class _Block:
    """A block of :meth:`OpenTrajectory.inside`.

    Attributes:
        trajectory: the trajectory that is current in the block.
        outer: the block around this one.
        outside: the context around the block.
        entered: the trajectory that the task had entered before the block.
        is_over: whether the block has been left.
    """

    trajectory: otel_rollout.Trajectory
    outer: _Block | None
    outside: Context
    entered: EnteredTrajectory | None
    is_over: bool = False


_INNERMOST: Final[ContextVar[_Block | None]] = ContextVar("otel-rollout-inside", default=None)


def _leave(block: _Block) -> None:
    """Leave a block, and the blocks around it that were left before it.

    Blocks of generators are left in any order, and perhaps by the garbage collector in another context. So
    this function uses no context token, and does not touch a context that is not the block's.
    """
    block.is_over = True
    if _INNERMOST.get() is not block:
        return
    outermost = block
    while outermost.outer is not None and outermost.outer.is_over:
        outermost = outermost.outer
    set_variable(_INNERMOST, outermost.outer)
    if trajectory_in(get_current()) is block.trajectory:
        attach(outermost.outside)
    if ENTERED.get() is block.trajectory:
        set_variable(ENTERED, outermost.entered)


class OpenTrajectory:
    """A started trajectory, which is current only in blocks of :meth:`inside`.

    Args:
        trajectory: a trajectory that is not yet entered; it starts now. If it is sampled out, nothing is
            recorded for it, and its methods remain callable.
    """

    def __init__(self, trajectory: otel_rollout.Trajectory) -> None:
        self.trajectory = trajectory
        self._context = contextvars.copy_context()
        self._context.run(trajectory.__enter__)

    @property
    def is_recording(self) -> bool:
        """Whether spans are recorded for this trajectory."""
        root = self.trajectory.root
        return root is not None and root.is_recording()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make the trajectory current in this thread or task; other trajectories stay open.

        Do not ``yield`` inside: the code that advances the generator would be inside, too.
        """
        context = self.trajectory.inside
        if context is None:
            yield
            return
        block = _Block(self.trajectory, _INNERMOST.get(), get_current(), ENTERED.get())
        attach(context)
        set_variable(ENTERED, self.trajectory)
        set_variable(_INNERMOST, block)
        try:
            yield
        finally:
            _leave(block)

    @internal_errors("recording an operation of a trajectory")
    def record(
        self,
        name: str,
        kind: str,
        times: tuple[int, int],
        *,
        input: Any = None,
        output: Any = None,
        attributes: Mapping[str, Any] | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """Record an operation that is over, directly below the root. Never raises.

        Args:
            name: name of the span.
            kind: OpenInference span kind, one of ``semconv.SPAN_KINDS``.
            times: start and end, Unix time in ns.
            input: what the operation took; None records nothing.
            output: what it gave; None records nothing.
            attributes: further attributes; those with the value None are left out.
            error: the exception, or the message, with which the operation failed.
        """
        context = self.trajectory.inside
        if context is not None and self.is_recording:
            with reading("times="):
                start_ns, end_ns = times
            operation = OpenOperation(
                name, kind, context, input=input, attributes=attributes, start_ns=start_ns
            )
            operation.end(output=output, error=error, end_ns=end_ns)

    @internal_errors("describing a trajectory")
    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the root span; those with the value None are left out. Never raises."""
        root = self.trajectory.root
        if root is not None and root.is_recording():
            set_attributes(root, attributes)

    def score(self, name: str, value: Any, comment: str | None = None) -> None:
        """Record a score of this trajectory, also after its end, as :func:`otel_rollout.score` does.

        Never raises.
        """
        if self.trajectory.inside is None:
            if self.trajectory.id is not None:
                otel_rollout.score(name, value, comment=comment, trajectory=self.trajectory.id)
            return
        with self.inside():
            otel_rollout.score(name, value, comment=comment)

    def end(self, error: BaseException | None = None) -> None:
        """End the trajectory; with an error, as failed. Never raises."""
        self._context.run(self.trajectory.__exit__, None if error is None else type(error), error, None)
