"""Keep a task in the trajectory that it has entered.

A library may make a span current inside a generator. When the generator is closed, the library restores the
context from before the span. The task may be in a later trajectory then: its spans and scores would be
recorded in the earlier trajectory, which is over.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, get_current_span

from otel_rollout.base.finalizers import attach
from otel_rollout.record.recording.identity import SUBMITTED
from otel_rollout.record.recording.runtime_context import TRAJECTORY


class EnteredTrajectory(Protocol):
    """A trajectory that was entered, as the modules below ``capture/trajectory.py`` see it.

    Attributes:
        identity: attribute of the identity → value, as the caller gave it.
        is_over: whether its block has been left.
        is_left_open: whether the garbage collector has left the block, without restoring the context.
        task: id of the task that entered the block.
        inside: the context in the block, while it runs.
        context_outside: the context around the block.
    """

    identity: dict[str, Any]
    is_over: bool
    is_left_open: bool
    task: int
    inside: Context | None
    context_outside: Context

    @property
    def root(self) -> Span | None:
        """The root span."""

    def another(self) -> AbstractContextManager[object]:
        """Return a trajectory like this one, not yet entered."""

    def offer_output(self, encoded: bytes, text_of: str | None = None) -> None:
        """Record the output of the last operation directly below as the trajectory's."""


ENTERED: Final[ContextVar[EnteredTrajectory | None]] = ContextVar("otel-rollout-entered", default=None)
"""The trajectory that this task has entered last and not left, or the one in which the task was started."""


def present_context(is_for_score: bool = False) -> Context:
    """Return the current context; first replace the context of a trajectory that this task has left.

    Args:
        is_for_score: whether a score is recorded. A program may attach the context of an ended trajectory to
            score it late, so this context stays if the task is in no other trajectory.
    """
    context = get_current()
    around = _block_of(context)
    if around is None or not around.is_over:
        return context
    entered, submitted = ENTERED.get(), SUBMITTED.get()
    if (entered is around and not around.is_left_open) or (
        submitted is not None and _block_of(submitted) is around
    ):
        return context  # a task, or a call in a thread pool, that outlives its trajectory
    if around.task != running_task() or get_current_span(context).is_recording():
        return context  # the trajectory of another task, or an operation that goes on
    if entered is not None and not entered.is_over and entered.inside is not None:
        present = entered.inside
    elif is_for_score:
        return context
    else:
        present = around.context_outside
        while (around := _block_of(present)) is not None and around.is_over:
            present = around.context_outside
    attach(present)
    return present


def _block_of(context: Context) -> EnteredTrajectory | None:
    found: Any = context.get(TRAJECTORY)
    return found  # type: ignore[no-any-return] # nobody else has the key


def running_task() -> int:
    """Return an id of the current asyncio task; outside any task, of the thread."""
    asyncio = sys.modules.get("asyncio")  # importing it takes a program without event loop 30 ms
    running_loop = getattr(asyncio, "_get_running_loop", None)  # missing while another thread imports asyncio
    loop = None if running_loop is None else running_loop()
    if asyncio is not None and loop is not None:
        task = asyncio.current_task(loop)  # without `loop`, it takes 0.16 us longer
        if task is not None:
            return id(task)
    return threading.get_ident()
