"""Scores by identity are feedback of the one trajectory in Weave that fits."""

from __future__ import annotations

import time

import pytest

from otel_rollout.otlp.score_identity import Unresolved
from tests.identity_scores import given, resolve
from tests.sdk_spans import Rollouts, deliver

SECOND = 10**9


@pytest.fixture
def rollouts_of(project):
    """Return a function that makes a builder of trajectories of a run."""
    return lambda run: Rollouts(project, {"rollout.run.id": run})


@pytest.fixture
def start():
    """A time shortly before the test."""
    return (int(time.time()) - 5) * SECOND


def root(rollouts, start, sample, rollout, **given):
    attributes = {"rollout__sample_index": sample, "rollout__rollout_n": rollout, **given}
    rollouts.begin("Agent.run", start, **attributes).end(start + SECOND)
    return rollouts.ended()[-1]


def rewards(weave, project):
    """Return the values of all rewards."""
    return sorted(score["payload"]["value"] for score in weave.feedback(project))


def test_score_by_identity_is_feedback_of_its_trajectory(weave, project, rollouts_of, exporter, start):
    """Sample, rollout, step and experiment select it; the newest score stays."""
    rollouts = rollouts_of("run-1")
    scored = {"rollout__score__reward": 0.1, "rollout__score_time__reward": start + 10_000}
    deliver(exporter, [root(rollouts, start, 1, 0), root(rollouts, start, "it's", 0, **scored)])
    assert (
        resolve(
            exporter,
            given(rollouts, 0.5, start + 20_000, 1, 0),
            given(rollouts, 0.7, start + 20_000, "it's", 0),
            given(rollouts, 0.9, start, 5, 0),
            given(rollouts, 0.9, start, 1, 0, rollout__step=2),
            given(rollouts, 0.9, start, 1, 0, rollout__validate=True),
            given(rollouts, 0.9, start, 1, 0, rollout__experiment_name="other"),
        )
        == [Unresolved.UNKNOWN] * 4
    )
    assert rewards(weave, project) == [0.5, 0.7]
    assert resolve(exporter, given(rollouts, 0.3, start + 5_000, 1, 0)) == []
    assert rewards(weave, project) == [0.5, 0.7]
    assert exporter.has_trajectories(project, "run-1") is True
    assert exporter.has_trajectories(project, "run-2") is False


def test_identity_of_several_trajectories_is_ambiguous(weave, project, rollouts_of, exporter, start):
    """A step tried again is; another run counts for a run without trajectories."""
    first, second, judge = map(rollouts_of, ("run-1", "run-2", "run-3"))
    deliver(exporter, [root(first, start, 1, 0), root(first, start, 1, 0), root(second, start, 1, 0)])
    deliver(exporter, [root(first, start, 2, 0)])
    assert resolve(exporter, given(first, 0.1, start, 1, 0)) == [Unresolved.AMBIGUOUS]
    assert resolve(exporter, given(judge, 0.1, start, 1, 0), has_own=False) == [Unresolved.AMBIGUOUS]
    assert resolve(exporter, given(second, 0.2, start, 2, 0)) == [Unresolved.UNKNOWN]
    assert resolve(exporter, given(second, 0.3, start, 1, 0)) == []
    assert resolve(exporter, given(judge, 0.4, start, 2, 0), has_own=False) == []
    assert rewards(weave, project) == [0.3, 0.4]


def test_score_without_a_step_makes_no_other_score_ambiguous(weave, project, rollouts_of, exporter, start):
    """Scores are looked up together, and the one without a step finds the trajectories of all steps."""
    rollouts = rollouts_of("run-1")
    deliver(exporter, [root(rollouts, start, 1, 0, rollout__step=step) for step in ("", 1, 2)])
    scores = [
        given(rollouts, 0.1 * place, start, 1, 0, rollout__step=step) for place, step in enumerate(("", 1, 2))
    ]
    assert resolve(exporter, *scores) == []
    assert rewards(weave, project) == [0, 0.1, 0.2]


def test_score_of_a_step_goes_to_no_later_repetition_of_it(weave, project, rollouts_of, exporter, start):
    """The trajectory that had begun when the score was given gets it, though both fit."""
    rollouts = rollouts_of("run-1")
    deliver(exporter, [root(rollouts, start, 1, 0), root(rollouts, start + 2 * SECOND, 1, 0)])
    assert resolve(exporter, given(rollouts, 0.1, start + SECOND, 1, 0)) == []
    assert resolve(exporter, given(rollouts, 0.2, start + 3 * SECOND, 1, 0)) == [Unresolved.AMBIGUOUS]
    assert rewards(weave, project) == [0.1]


def test_running_trajectory_is_not_scored_before_it_ends(weave, project, rollouts_of, exporter, start):
    """The marker of a running trajectory is no trajectory: the score would go with it."""
    rollouts = rollouts_of("run-1")
    running = root(rollouts, start, 1, 0)
    exporter.announce([running])
    assert resolve(exporter, given(rollouts, 0.5, start, 1, 0)) == [Unresolved.UNKNOWN]
    deliver(exporter, [running])
    assert resolve(exporter, given(rollouts, 0.5, start, 1, 0)) == []
    assert rewards(weave, project) == [0.5]
