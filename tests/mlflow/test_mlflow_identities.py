"""Scores by identity are feedback of the one MLflow trace that fits."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from mlflow_support import stored
from opentelemetry import trace as otel

import otel_rollout
from otel_rollout import rollout_trace_attr, score
from otel_rollout.otlp.score_identity import Unresolved
from tests import identity_scores
from tests.identity_scores import resolve
from tests.sdk_spans import Rollouts, deliver
from tests.waits import set_waits

SECOND = 10**9
START = 1_700_000_000 * SECOND


@pytest.fixture
def rollouts_of(project):
    """Return a function that makes a builder of trajectories of a run."""
    return lambda run: Rollouts(project, {"rollout.run.id": run})


def root(rollouts, sample, rollout, after=0, **given):
    attributes = {"rollout__sample_index": sample, "rollout__rollout_n": rollout, **given}
    rollouts.begin("Agent.run", START + after, **attributes).end(START + after + SECOND)
    return rollouts.ended()[-1]


def given(rollouts, value, at, *identity, **more):
    """Return a score by identity, and the identity."""
    return identity_scores.given(rollouts, value, START + at, *identity, **more)


def rewards(uri, project):
    """Map the path of each trace to value, time and tag of its only reward."""
    found = {}
    for trace in stored(uri, project):
        tags = trace.info.tags
        found[f"{tags['sample_index']}/{tags['rollout_n']}"] = [
            (one.value, int(one.metadata["rollout.score_time"]) - START, tags["reward"])
            for one in trace.info.assessments
        ]
    return found


def test_score_by_identity_is_feedback_of_its_trace_alone(uri, project, rollouts_of, exporter_for):
    """Sample, rollout, step and experiment are found by their tags; others get nothing."""
    exporter, rollouts = exporter_for(uri), rollouts_of("run-1")
    deliver(exporter, [root(rollouts, 1, 0), root(rollouts, 1, 1), root(rollouts, "it's", 0)])
    problems = resolve(
        exporter,
        given(rollouts, 0.5, 20, 1, 1),
        given(rollouts, 0.7, 30, "it's", 0),
        given(rollouts, 0.9, 30, 5, 0),
        given(rollouts, 0.9, 30, 1, 0, rollout__step=2),
        given(rollouts, 0.9, 30, 1, 0, rollout__experiment_name="other's"),
    )
    assert problems == [Unresolved.UNKNOWN] * 3
    assert rewards(uri, project) == {
        "1/0": [],
        "1/1": [(0.5, 20, "0.5")],
        "it's/0": [(0.7, 30, "0.7")],
    }
    assert exporter.has_trajectories(project, "run-1") is True
    assert exporter.has_trajectories(project, "run-2") is False


def test_newest_score_stays_whether_by_identity_of_the_root_or_by_id(uri, project, rollouts_of, exporter_for):
    """Every order of delivery leaves one feedback and one tag, of the newest."""
    exporter, rollouts = exporter_for(uri), rollouts_of("run-1")
    times = {"root": 10, "id": 20, "identity": 30}
    for sample, (order, newest) in enumerate(itertools.product(itertools.permutations(times), times)):
        at = {**times, newest: 40}
        scored = root(
            rollouts, sample, 0, rollout__score__reward=0.1, rollout__score_time__reward=START + at["root"]
        )
        above = otel.set_span_in_context(otel.NonRecordingSpan(scored.context))
        by_id = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.2}
        by_id["rollout.score_origin"] = "outside"
        rollouts.begin("score reward", START + at["id"], above, **by_id).end(START + at["id"])
        late = rollouts.ended()[-1]
        exporter.announce([scored])
        for source in order:
            if source == "identity":
                assert resolve(exporter, given(rollouts, 0.3, at["identity"], sample, 0)) == []
            else:
                deliver(exporter, [scored if source == "root" else late])
        value = {"root": 0.1, "id": 0.2, "identity": 0.3}[newest]
        assert rewards(uri, project)[f"{sample}/0"] == [(value, 40, str(value))], (order, newest)


def test_identity_of_several_traces_is_ambiguous(uri, project, rollouts_of, exporter_for):
    """A step tried again is; another run counts for a run without trajectories."""
    exporter, first, second = exporter_for(uri), rollouts_of("run-1"), rollouts_of("run-2")
    deliver(exporter, [root(first, 1, 0), root(first, 1, 0), root(first, 2, 0), root(second, 2, 0)])
    deliver(exporter, [root(first, 3, 0)])
    assert resolve(exporter, given(first, 0.1, 1, 1, 0)) == [Unresolved.AMBIGUOUS]
    assert resolve(exporter, given(first, 0.1, 1, 2, 0)) == []
    assert resolve(exporter, given(second, 0.1, 1, 3, 0)) == [Unresolved.UNKNOWN]
    judge = rollouts_of("run-3")
    assert resolve(exporter, given(judge, 0.1, 1, 2, 0), has_own=False) == [Unresolved.AMBIGUOUS]
    assert resolve(exporter, given(judge, 0.9, 9, 3, 0), has_own=False) == []
    assert rewards(uri, project)["3/0"] == [(0.9, 9, "0.9")]


def test_score_of_a_step_goes_to_no_later_repetition_of_it(uri, project, rollouts_of, exporter_for):
    """The trace that had begun when the score was given gets it, though both fit."""
    exporter, rollouts = exporter_for(uri), rollouts_of("run-1")
    deliver(exporter, [root(rollouts, 1, 0, tries=1), root(rollouts, 1, 0, 10 * SECOND, tries=2)])
    assert resolve(exporter, given(rollouts, 0.1, 5 * SECOND, 1, 0)) == []
    assert resolve(exporter, given(rollouts, 0.2, 15 * SECOND, 1, 0)) == [Unresolved.AMBIGUOUS]
    scores = {
        trace.info.request_time: [one.value for one in trace.info.assessments]
        for trace in stored(uri, project)
    }
    assert [values for _, values in sorted(scores.items())] == [[0.1], []]


def test_scores_of_other_processes_reach_their_trajectory(fresh_process, uri, project, monkeypatch):
    """A trainer's process gives them before and after the trajectory, which may still be running."""
    set_waits(monkeypatch, last_score=60)  # no process records while the next one starts
    otel_rollout.configure(
        {"mlflow": {"tracking_uri": uri}}, project_name=project, experiment_name="e", forwarder_linger=60
    )
    trainer = (
        "import sys, otel_rollout\n"
        "otel_rollout.score(sys.argv[1], float(sys.argv[2]), step=3, sample_index=1, rollout_n=0)"
    )

    def train(name, value):
        subprocess.run([sys.executable, "-c", trainer, name, str(value)], check=True, timeout=120)

    train("reward", 0.1)
    train("advantage", -1.0)
    with rollout_trace_attr(step=3, sample_index=1, rollout_n=0):
        score("reward", 0.2)
    with rollout_trace_attr(step=3, sample_index=1, rollout_n=1):
        pass
    train("trained_at", 4.0)
    report = otel_rollout.shutdown(120)
    assert (report.undelivered, report.lost) == (0, 0), report.summary()
    found = {trace.info.tags["rollout_n"]: trace for trace in stored(uri, project)}
    assert {one.name: one.value for one in found["0"].info.assessments} == {
        "reward": 0.2,
        "advantage": -1.0,
        "trained_at": 4.0,
    }
    assert found["1"].info.assessments == []
    assert found["0"].info.tags["trained_at"] == "4.0"


def test_step_without_a_text_leaves_other_steps_their_scores(uri, project, rollouts_of, exporter_for):
    """The search for its trajectories has no condition on the step, so it finds those of other steps, too."""
    exporter, rollouts = exporter_for(uri), rollouts_of("run-1")
    deliver(exporter, [root(rollouts, 1, 0), root(rollouts, 2, 0, rollout__step="")])
    problems = resolve(
        exporter, given(rollouts, 0.5, 20, 1, 0), given(rollouts, 0.7, 30, 2, 0, rollout__step="")
    )
    assert problems == []
    assert rewards(uri, project) == {"1/0": [(0.5, 20, "0.5")], "2/0": [(0.7, 30, "0.7")]}
