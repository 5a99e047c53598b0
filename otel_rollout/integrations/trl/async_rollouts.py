"""Keep the trajectories of TRL's asynchronous worker, from their start until their group is scored.

The worker dispatches the siblings of a group in order, and scores them in the order in which they end. So
each trajectory is found by the list of messages that it returned.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry.context import Context, get_current

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import variable_set
from otel_rollout.integrations.kit.open_operation import OpenOperation

_ATTRIBUTE: Final = "_otel_rollout_rollouts"
"""Attribute of TRL's rollout loop that holds its :class:`Rollouts`."""


class Rollout:
    """A trajectory that runs, or that waits for its rewards."""

    def __init__(self, trajectory: otel_rollout.Trajectory, prompt: Any) -> None:
        self.trajectory = trajectory
        self.context: Context = get_current()
        self.messages: list[Any] | None = list(prompt) if isinstance(prompt, list) else None
        """The conversation so far; None if it is not known."""
        self.call: OpenOperation | None = None
        """The model call whose answer TRL has not yet parsed."""
        self.answer: dict[str, Any] = {}
        self.answered_ns = 0
        self.turns = 0
        self.policy_versions: set[int] = set()

    @property
    def is_recording(self) -> bool:
        """Whether spans are recorded for this trajectory."""
        root = self.trajectory.root
        return root is not None and root.is_recording()

    def oldest_version(self, otherwise: int) -> int:
        """Return the oldest policy version that the model calls saw."""
        return min(self.policy_versions, default=otherwise)

    def take_answer(self, ids: list[int], log_probs: list[float]) -> None:
        """Keep the answer of the model call, whose message is not yet known."""
        self.answer = {"response_ids": ids, "log_probs": log_probs}
        self.answered_ns = time.time_ns()
        self.turns += 1

    def end_call(self, message: Any = None) -> None:
        """End the open model call; its answer is ``message``, or unknown."""
        call, self.call = self.call, None
        if call is None:
            return
        output = self.answer if message is None else {**message, **self.answer}
        call.end(output=output, end_ns=self.answered_ns)
        self.answer = {}
        if message is None or self.messages is None:
            self.messages = None
        else:
            self.messages.append(message)

    def add_messages(self, messages: list[Any]) -> None:
        """Add messages of tools to the conversation."""
        if self.messages is not None:
            self.messages.extend(messages)


class _Group:
    def __init__(self, step: int) -> None:
        self.step = step
        self.started = 0


class Rollouts:
    """The trajectories of one rollout loop.

    Args:
        first_prompt: position in the dataset of the prompt of group 0.
    """

    def __init__(self, first_prompt: int = 0) -> None:
        self.first_prompt = first_prompt
        self._groups: dict[int, _Group] = {}
        self._returned: dict[int, tuple[Any, Rollout]] = {}

    def count_sibling(self, group_id: int, policy_version: int, size: int) -> tuple[int, int]:
        """Count a trajectory of a group; return the group's step and the trajectory's index in it."""
        group = self._groups.setdefault(group_id, _Group(policy_version))
        index = group.started
        group.started += 1
        if group.started >= size:
            del self._groups[group_id]
        return group.step, index

    def keep(self, completion: Any, rollout: Rollout) -> None:
        """Keep a trajectory until :meth:`take` is asked for the messages that it returned."""
        self._returned[id(completion)] = (completion, rollout)

    def take(self, completion: Any) -> Rollout | None:
        """Return the trajectory that returned exactly this list, and forget it."""
        kept = self._returned.pop(id(completion), None)
        return kept[1] if kept is not None and kept[0] is completion else None


@internal_errors("preparing to trace TRL's rollout loop")
def prepare(loop: Any, first_prompt: int) -> None:
    """Give a rollout loop its :class:`Rollouts`. Never raises."""
    setattr(loop, _ATTRIBUTE, Rollouts(first_prompt))


def rollouts_of(loop: Any) -> Rollouts:
    """Return the trajectories of a rollout loop."""
    found: Rollouts | None = getattr(loop, _ATTRIBUTE, None)
    if found is None:
        found = Rollouts()
        setattr(loop, _ATTRIBUTE, found)
    return found


_current: ContextVar[Rollout | None] = ContextVar("otel-rollout-trl-rollout", default=None)


def current() -> Rollout | None:
    """Return the trajectory that runs in this task; None if it is not recorded."""
    rollout = _current.get()
    return rollout if rollout is not None and rollout.is_recording else None


def running(rollout: Rollout) -> AbstractContextManager[None]:
    """Return a block in which a trajectory runs in this task."""
    return variable_set(_current, rollout)
