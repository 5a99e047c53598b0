"""Identify the episode of a rollout: its task, its number among siblings, whether it is an evaluation.

Episodes also run in the processes of verifiers' environment server, which prime-rl's orchestrator uses. A
request to the server names neither step nor group nor sibling. The orchestrator adds these to the episode
that it gets back. So the server's reply carries the ids of the trajectories too, and the orchestrator's
process can score them.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import variable_set
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.tracker import unless_set
from otel_rollout.integrations.verifiers import rollouts, seams
from otel_rollout.integrations.verifiers.rollouts import RolloutSibling
from otel_rollout.record.runs import membership

_EVALUATION: Final = "verifiers.v1.cli.eval."
"""Beginning of the module whose callback an evaluation's episodes have."""
_KEY: Final = "otel_rollout_trajectories"
"""Key of an episode's record on the wire; verifiers ignores keys that it does not know."""
_UNKNOWN_TRAINING: Final = "the trainer's step, policy versions and late rewards are not recorded"


@dataclass
class RunningEpisode:
    """The episode in whose context a rollout starts.

    Attributes:
        task_index: index of the episode's task.
        sibling: the episode's number; None if it is not known.
        is_evaluation: whether ``vf-eval`` runs the episode.
        environment: the environment's id.
        slot: verifiers' planned episode. Its ``traces`` are those of the current attempt. Before a retry
            starts, the trace that it replaces is removed from them.
        plays: id of a started trace → its agent, its task's index, and its number among their rollouts.
    """

    task_index: Any
    sibling: RolloutSibling | None
    is_evaluation: bool
    environment: str
    slot: weakref.ref[Any]
    plays: dict[str, tuple[str, Any, int]] = field(default_factory=dict)

    def started(self, trace: Any) -> int:
        """Note a rollout that starts; return its number among those of its agent and task.

        A rollout that a retry repeats has the number of the one that it replaces. The replaced rollout gets
        the score ``discarded``.
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
"""Whether an episode runs for another process, which alone knows the siblings."""


def current() -> RunningEpisode | None:
    """Return the episode in whose context this code runs."""
    return _current.get()


@seams.after("verifiers.v1.env", "Env.slots", "rollouts have no rollout_n and no group_size")
def _number(slots: list[Any], *_: Any, **__: Any) -> None:
    if not _is_served.get():
        for number, slot in enumerate(slots):
            rollouts.here().number(slot, RolloutSibling(number, len(slots)))


@seams.around(
    "verifiers.v1.env",
    "Env.run_slot",
    "rollouts have no sample_index of their episode, and evaluations are not marked",
)
async def _run_slot(original: Function, /, self: Any, slot: Any, *args: Any, **kwargs: Any) -> Any:
    episode: RunningEpisode | None = None
    with internal_errors("identifying an episode of verifiers"):
        given = inspect.signature(original).bind(self, slot, *args, **kwargs).arguments
        episode = RunningEpisode(
            task_index=slot.task.data.idx,
            sibling=rollouts.here().sibling(slot),
            is_evaluation=str(getattr(given.get("on_complete"), "__module__", "")).startswith(_EVALUATION),
            environment=str(self.config.env_id),
            slot=weakref.ref(slot),
        )
    with variable_set(_current, episode):
        return await original(self, slot, *args, **kwargs)


@internal_errors("marking a rollout that was tried again")
def _mark_discarded(trace_id: str) -> None:
    """Score a rollout that a retry has replaced: verifiers' own record does not have it."""
    trajectory = rollouts.here().ended.get(trace_id)
    if trajectory is not None:
        otel_rollout.score("discarded", True, trajectory=trajectory, comment="a retry replaced it")


# --- the environment server --------------------------------------------------------------------------------


@seams.around("verifiers.v1.serve.server", "EnvServer._run", _UNKNOWN_TRAINING)
async def _run(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    with variable_set(_is_served, True):
        response = await original(*args, **kwargs)
    with internal_errors("sending the ids of trajectories"):
        ended = rollouts.here().ended
        served = [trace.id for trace in response.traces if trace.id in ended]
        response.head[_KEY] = {trace_id: ended[trace_id] for trace_id in served}
    return response


@seams.before("verifiers.v1.serve.client", "EnvClient._validate_episode", _UNKNOWN_TRAINING)
def _receive(_: Any, record: Any, *__: Any, **___: Any) -> None:
    rollouts.here().ended.update(record.pop(_KEY, {}))


# --- evaluations -------------------------------------------------------------------------------------------


@seams.before(
    "verifiers.v1.cli.eval.runner", "run_eval", "the experiment is not named after the evaluation's run"
)
def _name_experiment(config: Any) -> None:
    membership.configure({"experiment_name": unless_set("OTEL_ROLLOUT_EXPERIMENT", config.run.name)})
    rollouts.here().run_id = config.run.id
