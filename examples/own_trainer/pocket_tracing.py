"""Trace pocket_trainer: import this module, and let OTEL_TRACES_EXPORTER name an exporter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.kit.seams import Ended, Seams, after, timed
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes

if TYPE_CHECKING:  # this module does not import the trainer, but waits for its import
    from pocket_trainer import Conversation, Policy, Trainer

seams = Seams("pocket_trainer", __name__)
running: dict[Conversation, OpenTrajectory] = {}  # the trajectories of the present step


def install(module: ModuleType) -> None:
    """Wrap the functions of the trainer, which has just been imported."""
    seams.wrap(module, "Trainer.__init__", after(trace_tools, "tracing tools"), "tools are not traced")
    seams.wrap(module, "Trainer.start", after(begin, "starting trajectories"), "nothing is traced")
    seams.wrap(module, "Policy.generate", timed(note_replies, "recording a batch"), "replies are not traced")
    seams.wrap(module, "Trainer.call_tools", in_trajectory, "tools are not traced")
    seams.wrap(module, "Trainer.reward", timed(note_reward, "recording a reward"), "rewards are not traced")
    seams.wrap(module, "Trainer.train_step", timed(end, "ending trajectories"), "trajectories do not end")


def trace_tools(_: None, trainer: Trainer, *__: object) -> None:
    """Wrap each tool. The trainer turns a tool's exception into text; inside the tool it is an error."""
    for name, tool in trainer.tools.items():
        trainer.tools[name] = rollout_trace_op(name=f"execute_tool {name}", kind="TOOL")(tool)


def begin(conversations: Sequence[Conversation], trainer: Trainer) -> None:
    """Start a trajectory for each conversation; a group's conversations follow one another."""
    size, step = trainer.group_size, trainer.step
    for position, conversation in enumerate(conversations):
        index, sibling = divmod(position, size)
        started = rollout_trace_attr(index, step, sibling, group_size=size, policy_version_min=step - 1)
        running[conversation] = OpenTrajectory(started)


def note_replies(call: Ended, policy: Policy, conversations: Sequence[Conversation]) -> None:
    """Record a batched model call as one span of each conversation."""
    batch = {"rollout.batch_id": f"{call.times[0]:x}", "rollout.batch_size": len(conversations)}
    for position, conversation in enumerate(conversations):
        asked = {"messages": conversation.messages}
        reply = call.result[position] if call.error is None else None
        running[conversation].record(
            "generate", "LLM", call.times, input=asked, output=reply, attributes=batch, error=call.error
        )


def in_trajectory(call_tools: Callable[..., bool]) -> Callable[..., bool]:
    """Run a conversation's tools inside its trajectory, in which their spans are recorded."""

    @functools.wraps(call_tools)
    def traced(trainer: Trainer, conversation: Conversation) -> bool:
        trajectory = running.get(conversation)
        with trajectory.inside() if trajectory is not None else nullcontext():
            return call_tools(trainer, conversation)

    return traced


def note_reward(call: Ended, trainer: Trainer, conversation: Conversation, name: str) -> None:
    """Record the reward function's call, and the reward as a score."""
    running[conversation].record(name, "EVALUATOR", call.times, output=call.result, error=call.error)
    if call.error is None:
        running[conversation].score(name, call.result)


def end(call: Ended, trainer: Trainer) -> None:
    """End the step's trajectories, with what training made of them; after an exception, as failed."""
    if call.error is None:
        record_training_outcomes(
            TrainingOutcomes(
                advantage=[conversation.advantage for conversation in running],
                trained=[conversation.advantage != 0 for conversation in running],
                reason=[None if conversation.advantage else "as its group" for conversation in running],
            ),
            trajectory=[trajectory.trajectory.id for trajectory in running.values()],
        )
    for conversation, trajectory in running.items():
        trajectory.trajectory.set_input(conversation.messages[0])
        trajectory.trajectory.set_output(conversation.messages[-1])
        if call.error is None:
            trajectory.score("reward", sum(conversation.rewards.values()))
        trajectory.end(call.error)
    running.clear()


seams.install({"pocket_trainer": (__name__,)}, {})
