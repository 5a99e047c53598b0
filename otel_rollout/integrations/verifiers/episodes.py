"""Know the episode of a rollout: its task, its number among siblings, whether it is an evaluation."""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import variable_set
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.verifiers import rollouts
from otel_rollout.integrations.verifiers.patched_modules import seams
from otel_rollout.integrations.verifiers.rollouts import Sibling

_EVALUATION: Final = "verifiers.v1.cli.eval."
"""Beginning of the module whose callback an evaluation's episodes have."""


def install(module: ModuleType) -> None:
    """Wrap the methods of ``Env`` that plan and run episodes."""
    numbering = after(_number, "numbering planned episodes")
    seams.wrap(module, "Env.slots", numbering, "rollouts have no rollout_n and no group_size")
    loss = "rollouts have no sample_index of their episode, and evaluations are not marked"
    seams.wrap(module, "Env.run_slot", _tracing, loss)


@dataclass
class RunningEpisode:
    """The episode in whose context a rollout starts.

    Attributes:
        task_index: index of the episode's task.
        sibling: the episode's number; None if it is not known.
        is_evaluation: whether ``vf-eval`` runs the episode.
        environment: the environment's id.
        slot: verifiers' planned episode. Its ``traces`` are those of the current attempt. A trace that a
            retry replaces leaves them before the replacement starts.
        plays: id of a started trace → its agent, its task's index, and its number among their rollouts.
    """

    task_index: Any
    sibling: Sibling | None
    is_evaluation: bool
    environment: str
    slot: weakref.ref[Any]
    plays: dict[str, tuple[str, Any, int]] = field(default_factory=dict)

    def started(self, trace: Any) -> int:
        """Note a rollout that starts; return its number among those of its agent and task.

        A rollout that a retry repeats has the number of the one that it replaces. The latter is scored as
        discarded.
        """
        slot = self.slot()
        live = set() if slot is None else {known.id for known in slot.traces}
        if trace.id in live:  # otherwise the environment does not report its traces
            for replaced in [known for known in self.plays if known not in live]:
                del self.plays[replaced]
                _mark_discarded(replaced)
        agent, index = trace.agent.name, trace.task.data.idx
        taken = {number for *whose, number in self.plays.values() if whose == [agent, index]}
        number = next(free for free in itertools.count() if free not in taken)
        self.plays[trace.id] = agent, index, number
        return number


_current: ContextVar[RunningEpisode | None] = ContextVar("otel-rollout-verifiers-episode", default=None)
_is_served: ContextVar[bool] = ContextVar("otel-rollout-verifiers-served", default=False)


def current() -> RunningEpisode | None:
    """Return the episode in whose context this code runs."""
    return _current.get()


def served() -> AbstractContextManager[None]:
    """Mark a block that runs an episode for another process, which alone knows the siblings."""
    return variable_set(_is_served, True)


def _number(slots: list[Any], *_: Any, **__: Any) -> None:
    if not _is_served.get():
        for number, slot in enumerate(slots):
            rollouts.here().number(slot, Sibling(number, len(slots)))


def _tracing(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    async def run_slot(self: Any, slot: Any, *args: Any, **kwargs: Any) -> Any:
        episode: RunningEpisode | None = None
        with internal_errors("identifying an episode of verifiers"):
            given = signature.bind(self, slot, *args, **kwargs).arguments
            episode = _episode_of(self, slot, given.get("on_complete"))
        with variable_set(_current, episode):
            return await original(self, slot, *args, **kwargs)

    return run_slot


def _episode_of(env: Any, slot: Any, on_complete: Any) -> RunningEpisode:
    return RunningEpisode(
        task_index=slot.task.data.idx,
        sibling=rollouts.here().sibling(slot),
        is_evaluation=str(getattr(on_complete, "__module__", "")).startswith(_EVALUATION),
        environment=str(env.config.env_id),
        slot=weakref.ref(slot),
    )


@internal_errors("marking a rollout that was tried again")
def _mark_discarded(trace_id: str) -> None:
    """Score a rollout that a retry has replaced: verifiers' own record does not have it."""
    trajectory = rollouts.here().ended.get(trace_id)
    if trajectory is not None:
        otel_rollout.score("discarded", True, trajectory=trajectory, comment="a retry replaced it")
