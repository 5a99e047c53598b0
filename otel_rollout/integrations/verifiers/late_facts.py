"""Record what becomes known about a rollout after it has ended, as scores.

An environment's ``finalize`` gives rewards after it has seen all rollouts of an episode. A trainer stamps
step and policy versions when it uses the episode.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.verifiers import rollouts, scores
from otel_rollout.integrations.verifiers.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the methods that record rewards, metrics and the run of an episode."""
    if hasattr(module, "Episode"):
        stamping = after(_stamp, "recording the step of an episode")
        seams.wrap(module, "Episode.record_run", stamping, "rollouts for a trainer have no step")
        return
    rewarding = after(_reward, "recording a late reward")
    measuring = after(_measure, "recording a late metric")
    seams.wrap(module, "Trace.record_reward", rewarding, "rewards given after a rollout are not recorded")
    seams.wrap(module, "Trace.record_metric", measuring, "metrics given after a rollout are not recorded")


def _reward(_: None, trace: Any, name: str, *__: Any, **___: Any) -> None:
    trajectory = rollouts.ended(trace)
    if trajectory is None:
        return
    reward = trace.rewards[name]
    if name != scores.REWARD and scores.is_score(reward.score):
        comment = scores.comment_of(reward.weight)
        otel_rollout.score(name, reward.score, comment=comment, trajectory=trajectory)
    if scores.is_score(trace.reward):
        otel_rollout.score(scores.REWARD, trace.reward, trajectory=trajectory)


def _measure(_: None, trace: Any, name: str, *__: Any, **___: Any) -> None:
    trajectory, value = rollouts.ended(trace), trace.metrics[name]
    if trajectory is not None and name not in (scores.REWARD, *trace.rewards) and scores.is_score(value):
        otel_rollout.score(name, value, trajectory=trajectory)


def _stamp(_: None, episode: Any, run: Any) -> None:
    """Record the step, the policy versions and the group that a trainer stamps on an episode."""
    work = getattr(run, "work", None)
    if work is None:  # an evaluation has none
        return
    facts = {
        semconv.STEP: work.step,
        semconv.VALIDATE: work.type == "eval",
        semconv.POLICY_VERSION_MIN: getattr(work.policy, "start", None),
        semconv.POLICY_VERSION_MAX: getattr(work.policy, "end", None),
        semconv.GROUP_ID: getattr(episode.group, "id", None),
    }
    known = {semconv.short_name(name): fact for name, fact in facts.items() if fact is not None}
    for trace in episode.traces:
        trajectory = rollouts.ended(trace)
        if trajectory is not None:
            for name, fact in known.items():
                otel_rollout.score(name, fact, trajectory=trajectory)
