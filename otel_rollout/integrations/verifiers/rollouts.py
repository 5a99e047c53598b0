"""Keep the rollouts of this process by the ids of verifiers' traces."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.state import state

_MAX_RUNNING: Final = 100_000
"""Maximum rollouts that run at the same time; with more, the oldest are not recorded to their end."""
_MAX_ENDED: Final = 100_000
"""Maximum ended rollouts for which late scores are still recorded."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call in a reply.

    Attributes:
        id: the model's id of the call; some models use one id for several calls.
        name: name of the tool.
        arguments: arguments as the model wrote them.
    """

    id: str
    name: str
    arguments: str


@dataclass
class AskingReply:
    """A reply that calls tools.

    Attributes:
        node: index of the reply in verifiers' message graph.
        calls: its tool calls.
        asked_ns: Unix time in ns at which the reply was complete.
        waiting: positions of the calls without a result so far.
    """

    node: int
    calls: list[ToolCall]
    asked_ns: int
    waiting: list[int]


@dataclass
class TracedRollout:
    """A rollout that runs.

    Attributes:
        trajectory: the rollout's trajectory.
        failure: exception that left one of the rollout's stages.
        asking: the replies that call tools, in their order.
    """

    trajectory: OpenTrajectory
    failure: BaseException | None = None
    asking: list[AskingReply] = field(default_factory=list)


@dataclass(frozen=True)
class RolloutSibling:
    """Number of a planned episode among those of its task, and how many there are."""

    number: int
    group_size: int


class Rollouts:
    """The rollouts of this process.

    Attributes:
        running: id of verifiers' trace → rollout.
        ended: id of verifiers' trace → :attr:`otel_rollout.Trajectory.id`. In the client of an environment
            server, also of rollouts that the server ran.
        run_id: id of the evaluation that runs; None if none has begun in this process.
    """

    def __init__(self) -> None:
        self.running: BoundedDict[str, TracedRollout] = BoundedDict(_MAX_RUNNING)
        self.ended: BoundedDict[str, str] = BoundedDict(_MAX_ENDED)
        self.run_id: str | None = None
        self._siblings: dict[int, RolloutSibling] = {}

    def number(self, slot: Any, sibling: RolloutSibling) -> None:
        """Remember the number of a planned episode until the plan is forgotten."""
        self._siblings[id(slot)] = sibling
        weakref.finalize(slot, self._siblings.pop, id(slot), None)

    def sibling(self, slot: Any) -> RolloutSibling | None:
        """Return the number of a planned episode; None if it is not known."""
        return self._siblings.get(id(slot))


def here() -> Rollouts:
    """Return the rollouts of this process."""
    known = state.adapters.get("verifiers")
    if not isinstance(known, Rollouts):
        known = state.adapters["verifiers"] = Rollouts()
    return known


def running(trace: Any) -> TracedRollout | None:
    """Return the running rollout that verifiers' ``trace`` describes; None if it is not recorded."""
    found = here().running.get(getattr(trace, "id", ""))
    return found if found is not None and found.trajectory.is_recording else None


def ended(trace: Any) -> str | None:
    """Return the trajectory id of the ended rollout that verifiers' ``trace`` describes."""
    return here().ended.get(getattr(trace, "id", ""))
