"""A step's scores are written in few transactions, and training's scores without tags."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from mlflow.exceptions import MlflowException
from mlflow_support import not_in_3_14, stored
from sqlalchemy import event

from otel_rollout.base import training_scores
from otel_rollout.exporting.api import UndeliveredError
from otel_rollout_mlflow.database_target import one_transaction
from otel_rollout_mlflow.scores import Change, MlflowFeedback
from tests.identity_scores import given, resolve
from tests.mlflow.programs import killed_while_scoring
from tests.sdk_spans import ROLLOUT_RUN, Rollouts, deliver

SECOND = 10**9
START = 1_700_000_000 * SECOND
TRAJECTORIES = 20
TRAINED = (training_scores.ADVANTAGE, training_scores.TRAINED_STEP, training_scores.LOGPROB_DIFF_MEAN)
OWN = ("format", "style")


@pytest.fixture
def rollouts(project):
    """A builder of a run's trajectories."""
    return Rollouts(project, {"rollout.run.id": ROLLOUT_RUN})


@pytest.fixture
def exporter(uri, exporter_for, rollouts):
    """An exporter that has written trajectories; the root of each has an advantage."""
    exporter = exporter_for(uri)
    for sample in range(TRAJECTORIES):
        identity = {"rollout__sample_index": sample, "rollout__score__advantage": -1.0}
        rollouts.begin("Agent.run", START, **identity).end(START + SECOND)
    deliver(exporter, rollouts.ended())
    return exporter


def scores_of(rollouts, *names, seconds=2):
    """Return a score of each name and trajectory; its value names trajectory, name and time."""
    return [
        given(
            rollouts,
            sample + number / 10 + seconds * 100,
            START + seconds * SECOND,
            sample,
            0,
            gen_ai__evaluation__name=name,
        )
        for sample in range(TRAJECTORIES)
        for number, name in enumerate(names)
    ]


def feedback_in(uri, project):
    """Return sample → name → value, one feedback for each."""
    found = {}
    for trace in stored(uri, project):
        values = [(one.name, one.value) for one in trace.info.assessments]
        assert len(values) == len(dict(values))
        found[int(trace.info.tags["sample_index"])] = dict(values)
    return found


@not_in_3_14
def test_scores_of_training_are_feedback_and_others_tags_too(uri, project, exporter, rollouts):
    """Every value is on its trace, of the newest score; feedback finds scores of training."""
    for seconds in (3, 2, 4):
        assert resolve(exporter, *scores_of(rollouts, *TRAINED, *OWN, seconds=seconds)) == []
    assert feedback_in(uri, project) == {
        sample: {name: sample + number / 10 + 400 for number, name in enumerate((*TRAINED, *OWN))}
        for sample in range(TRAJECTORIES)
    }
    for trace in stored(uri, project):
        assert set(trace.info.tags) & {*TRAINED, *OWN} == set(OWN)
    assert len(stored(uri, project, "feedback.advantage > 404.5")) == TRAJECTORIES - 5


@pytest.fixture
def store(exporter):
    """MLflow's own store below an exporter to a database."""
    return exporter._target._client.store


@pytest.mark.parametrize("uri", ["database"], indirect=True)
def test_step_takes_few_commits(exporter, store, rollouts):
    """A commit for each score would take minutes on a slow disk."""
    commits = []
    event.listen(store.engine, "commit", commits.append)
    assert resolve(exporter, *scores_of(rollouts, *TRAINED, *OWN)) == []
    assert len(commits) < TRAJECTORIES / 2


@pytest.mark.parametrize("uri", ["database"], indirect=True)
def test_failed_transaction_writes_no_score(uri, project, exporter):
    """The scores before the one at fault are written when they are sent again without it."""
    ids = [trace.info.trace_id for trace in stored(uri, project)]
    scores = [MlflowFeedback("format", 1.0, START, trace_id=id_, span_id="") for id_ in ids]
    gone = MlflowFeedback("format", 1.0, START, trace_id="tr-" + "0" * 32, span_id="")
    with pytest.raises(UndeliveredError, match=f"writing {TRAJECTORIES + 1} scores"):
        exporter._target.write_feedback([(Change.CREATE, score) for score in (*scores, gone)])
    assert all("format" not in values for values in feedback_in(uri, project).values())
    exporter._target.write_feedback([(Change.CREATE, score) for score in scores])
    assert all("format" in values for values in feedback_in(uri, project).values())


@pytest.mark.parametrize("uri", ["database"], indirect=True)
def test_killed_while_it_writes_scores_each_is_there_once(uri, project, exporter, rollouts):
    """The scores of the last transaction are missing until all are sent again."""
    command = [sys.executable, "-m", killed_while_scoring.__name__, uri, project, str(TRAJECTORIES)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    names = killed_while_scoring.NAMES
    stored_first = sum(name in names for values in feedback_in(uri, project).values() for name in values)
    assert stored_first == 200
    assert resolve(exporter, *killed_while_scoring.scores(rollouts, TRAJECTORIES)) == []
    expected = {name: number / 10 for number, name in enumerate(names)}
    assert feedback_in(uri, project) == {
        sample: {"advantage": -1.0, **expected} for sample in range(TRAJECTORIES)
    }


@pytest.mark.parametrize("uri", ["database"], indirect=True)
@pytest.mark.parametrize("is_caught", [False, True])
def test_rolled_back_transaction_is_a_failure(uri, project, exporter, store, is_caught):
    """Whether MLflow's method reports that it has rolled back, or goes on."""

    def write():
        with one_transaction(store) as batch:
            batch.set_trace_tag(first, "format", "1")
            if not is_caught:
                batch.update_assessment(second, "unknown")
            with batch.ManagedSessionMaker() as session:
                session.rollback()
            batch.set_trace_tag(second, "format", "1")

    first, second = (trace.info.trace_id for trace in stored(uri, project)[:2])
    with pytest.raises(MlflowException):
        write()
    assert not any("format" in trace.info.tags for trace in stored(uri, project))
