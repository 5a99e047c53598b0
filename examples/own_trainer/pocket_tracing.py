"""Trace pocket_trainer: import this module, and let OTEL_TRACES_EXPORTER name an exporter."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.kit.seams import Seams, after
from otel_rollout.integrations.kit.training_outcome import record_training_outcome

seams = Seams("pocket_trainer", __name__)
running: dict[Any, OpenTrajectory] = {}  # a conversation of the step → its trajectory


def install(module: ModuleType) -> None:  # the kit calls it when the trainer has been imported
    seams.wrap(module, "Trainer.__init__", after(trace_tools, "tracing tools"), "tools are not traced")
    seams.wrap(module, "Trainer.start", after(begin, "starting trajectories"), "nothing is traced")
    seams.wrap(module, "Policy.generate", timed(record_model_calls), "model calls are not traced")
    seams.wrap(module, "Trainer.call_tools", inside, "tools are not traced")
    seams.wrap(module, "Trainer.reward", timed(record_reward), "rewards are not traced")
    seams.wrap(module, "Trainer.train_step", timed(end), "trajectories do not end")


def begin(conversations: list[Any], trainer: Any) -> None:
    for position, conversation in enumerate(conversations):  # the identity: from the trainer's loop
        index, sibling = divmod(position, trainer.group_size)
        known = {"group_size": trainer.group_size, "policy_version_min": trainer.step - 1}
        running[conversation] = OpenTrajectory(rollout_trace_attr(index, trainer.step, sibling, **known))


def timed(observe: Callable[..., None]) -> Callable[..., Any]:  # observe(times, error, result, *arguments)
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any) -> Any:
            start_ns = time.time_ns()
            try:
                result = original(*args)
            except BaseException as error:
                observe((start_ns, time.time_ns()), error, None, *args)
                raise
            observe((start_ns, time.time_ns()), None, result, *args)
            return result

        return call

    return wrapper


@internal_errors("recording model calls")
def record_model_calls(times: Any, error: Any, replies: Any, policy: Any, conversations: Any) -> None:
    batch = {"rollout.batch_id": f"{times[0]:x}", "rollout.batch_size": len(conversations)}
    for conversation, reply in zip(conversations, replies or [None] * len(conversations), strict=True):
        context = {"messages": conversation.messages}
        running[conversation].record("generate", "LLM", times, input=context, output=reply, attributes=batch, error=error)


def trace_tools(_: None, trainer: Any, *__: Any) -> None:
    for name, tool in trainer.tools.items():  # inside the trainer's `except`, so that a failure is an error
        trainer.tools[name] = rollout_trace_op(name=f"execute_tool {name}", kind="TOOL")(tool)


def inside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_tools(trainer: Any, conversation: Any) -> Any:
        with running[conversation].inside():
            return original(trainer, conversation)

    return call_tools


@internal_errors("recording a reward")
def record_reward(times: Any, error: Any, reward: Any, trainer: Any, conversation: Any, name: str) -> None:
    running[conversation].record(name, "EVALUATOR", times, output=reward, error=error)
    if error is None:
        running[conversation].score(name, reward)


@internal_errors("ending the trajectories of a step")
def end(times: Any, error: Any, conversations: Any, trainer: Any) -> None:
    for conversation, trajectory in running.items():
        trajectory.trajectory.set_input(conversation.messages[0])
        trajectory.trajectory.set_output(conversation.messages[-1])
        if error is None:
            advantage = conversation.advantage
            record_training_outcome(trajectory, advantage=advantage, trained=advantage != 0, reason="no advantage")
            trajectory.score("reward", sum(conversation.rewards.values()))
        trajectory.end(error)
    running.clear()


seams.install({"pocket_trainer": (__name__,)}, {})
