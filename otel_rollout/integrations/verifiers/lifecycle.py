"""Record verifiers' rollouts: from ``Rollout.open`` to ``Rollout.close`` or ``Rollout.abort``.

A rollout's trajectory is current while the agent, the finalize hooks and the scoring run. It is not current
while the rollout opens: servers that are started then serve other rollouts too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from otel_rollout.integrations.verifiers import chat, episodes, model_calls, rollouts, scores, seams
from otel_rollout.integrations.verifiers.rollouts import TracedRollout

_STAGES: Final = ("boot", "setup", "finalize")
"""Stages in ``Trace.timing`` that get a span. Model and tool calls are spans of the agent's stage, and
rewards are spans of scoring.
"""


@seams.around("verifiers.v1.rollout", "Rollout.open", "no rollouts are traced")
async def _open(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    _start(self)
    try:
        return await original(self, *args, **kwargs)
    except BaseException as error:
        _end(self, error)  # callers of `open` need not call `close` or `abort` then
        raise


@seams.around("verifiers.v1.rollout", "Rollout.step", "in-process agents are traced apart from their rollout")
async def _step(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    traced = rollouts.running(self.trace)
    if traced is None:
        return await original(self, *args, **kwargs)
    with _inside(traced):
        return await original(self, *args, **kwargs)


@seams.around("verifiers.v1.rollout", "Rollout.close", "rollouts have no scores and no end")
async def _close(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    traced = rollouts.here().running.get(self.trace.id)  # also if it is sampled out
    if traced is None or getattr(self, "closed", False):  # the first call ends the trajectory
        return await original(self, *args, **kwargs)
    with _inside(traced):
        trace = await original(self, *args, **kwargs)
    _end(self, self.failure)
    return trace


@seams.around("verifiers.v1.rollout", "Rollout.abort", "cancelled rollouts have no end")
async def _abort(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    handled = sys.exc_info()[1]
    try:
        return await original(self, *args, **kwargs)
    finally:
        traced = rollouts.here().running.get(self.trace.id)
        if traced is not None:
            _end(self, traced.failure or handled or asyncio.CancelledError("the rollout was aborted"))


@contextmanager
def _inside(traced: TracedRollout) -> Iterator[None]:
    """Make a rollout's trajectory current, and note the exception that leaves one of its stages."""
    with traced.trajectory.inside():
        try:
            yield
        except BaseException as error:
            traced.failure = error
            raise


# --- start -------------------------------------------------------------------------------------------------


@internal_errors("starting a rollout of verifiers")
def _start(rollout: Any) -> None:
    """Start a rollout's trajectory. Never raises."""
    trace, episode = rollout.trace, episodes.current()
    play = 0 if episode is None else episode.started(trace)
    trajectory = OpenTrajectory(_identified(rollout, episode, play))
    rollouts.here().running[trace.id] = TracedRollout(trajectory)
    if trajectory.is_recording:
        trajectory.trajectory.set_input(chat.prompt_of(rollout.task.data))


def _identified(rollout: Any, episode: episodes.RunningEpisode | None, play: int) -> otel_rollout.Trajectory:
    """Return the trajectory of a rollout, not yet started.

    Args:
        rollout: verifiers' rollout.
        episode: its episode, if there is one.
        play: number of the rollout among those of its agent and task in the episode.
    """
    trace, sibling = rollout.trace, None if episode is None else episode.sibling
    facts = {
        semconv.short_name(semconv.AGENT_NAME): trace.agent.name,
        semconv.short_name(semconv.GROUP_ID): trace.task.key,
        semconv.short_name(semconv.GROUP_SIZE): None if sibling is None else sibling.group_size,
        "environment": None if episode is None else episode.environment,
        "harness": rollout.harness.config.id,
        "verifiers_run_id": rollouts.here().run_id or os.environ.get("VF_RUN_ID"),
        "verifiers_trace_id": trace.id,
    }
    return otel_rollout.rollout_trace_attr(
        sample_index=_sample_index(rollout, episode),
        rollout_n=None if sibling is None else sibling.number + play * sibling.group_size,
        validate=episode is not None and episode.is_evaluation,
        **{name: fact for name, fact in facts.items() if fact is not None},
    )


def _sample_index(rollout: Any, episode: episodes.RunningEpisode | None) -> Any:
    """Return the index of the rollout's task.

    An agent may work on a task that the environment has made, such as judging. Its rollout is no sibling of
    the others, so its index names the episode's task and the agent.
    """
    index = rollout.task.data.idx
    if episode is None or index == episode.task_index:
        return index
    return f"{episode.task_index}:{rollout.trace.agent.name}"


# --- end ---------------------------------------------------------------------------------------------------


def _end(rollout: Any, error: BaseException | None) -> None:
    """End a rollout's trajectory with what verifiers has recorded about it. Never raises."""
    traced = rollouts.here().running.pop(rollout.trace.id, None)
    if traced is None:
        return
    trajectory = traced.trajectory
    if trajectory.is_recording:
        _record_stages(trajectory, rollout.trace)
        model_calls.record_unanswered(traced, rollout.trace, error)
        scores.record_all(trajectory, rollout.trace)
        _describe(trajectory, rollout.trace)
    trajectory.end(error)
    if trajectory.trajectory.id is not None:
        rollouts.here().ended[rollout.trace.id] = trajectory.trajectory.id


@internal_errors("recording the stages of a rollout")
def _record_stages(trajectory: OpenTrajectory, trace: Any) -> None:
    for stage in _STAGES:
        span = getattr(trace.timing, stage)
        if span.start and span.end:
            trajectory.record(stage, semconv.KIND_CHAIN, (chat.ns(span.start), chat.ns(span.end)))


@internal_errors("recording the result of a rollout")
def _describe(trajectory: OpenTrajectory, trace: Any) -> None:
    trajectory.trajectory.set_output(trace.last_reply)
    trajectory.describe(
        {
            semconv.NUM_TURNS: trace.num_turns,
            semconv.EXTRA_PREFIX + "stop_condition": trace.stop_condition,
            semconv.EXTRA_PREFIX + "is_timeout": trace.is_timeout or None,
            semconv.EXTRA_PREFIX + "is_truncated": trace.is_truncated or None,
        }
    )
