"""Scores and tags in MLflow, in every order of delivery."""

from __future__ import annotations

import itertools
import logging

import pytest
from mlflow import MlflowClient
from mlflow_support import stored
from opentelemetry import trace as otel
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.exporting.api import FailureKind
from tests.sdk_spans import deliver

SECOND = 10**9
START = 1_700_000_000 * SECOND
OUTSIDE, INSIDE, PROCESS = "outside", None, "process"


@pytest.fixture
def trajectory(rollouts):
    """A root that repeats a score of 0.1, and a function that makes its evaluations."""
    given = {"rollout.score.reward": 0.1, "rollout.score_time.reward": START + 10}
    root = rollouts.begin("Agent.run", START, **given)
    above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
    root.end(START + SECOND)

    def evaluation(value, at, origin, name="reward", why=None):
        given = {"gen_ai.evaluation.name": name}
        given["gen_ai.evaluation.score." + ("label" if isinstance(value, str) else "value")] = value
        given |= {"rollout.score_origin": origin} if origin else {}
        given |= {"gen_ai.evaluation.explanation": why} if why else {}
        span = rollouts.begin(f"score {name}", START + at, above, **given)
        span.end(START + at)
        return rollouts.ended()[-1]

    [ended] = rollouts.ended()
    return ended, evaluation


def shown(uri, project):
    """Map each score's name to value, comment, time and tag."""
    [found] = stored(uri, project)
    assert len({one.name for one in found.info.assessments}) == len(found.info.assessments)
    return {
        one.name: (
            one.value,
            one.rationale or None,
            int(one.metadata["rollout.score_time"]) - START,
            found.info.tags.get(one.name),
        )
        for one in found.info.assessments
    }


def test_newest_score_stays_in_every_order_of_delivery(uri, project, trajectory, exporter_for):
    """Scores inside, of the root and by id, alone or together, show the newest."""
    root, evaluation = trajectory
    spans = [root, evaluation(0.1, 10, INSIDE, why="first"), evaluation(0.9, 20, OUTSIDE)]
    exporter = exporter_for(uri)
    for order in itertools.permutations(spans):
        for batches in ([list(order)], [[span] for span in order]):
            for batch in batches:
                deliver(exporter, batch)
            assert shown(uri, project) == {"reward": (0.9, None, 20, "0.9")}


def test_scores_delivered_in_every_order_show_the_newest(uri, project, rollouts, exporter_for):
    """Four sources in each order show the newest value with its comment, time and tag."""
    exporter = exporter_for(uri)
    for number, order in enumerate(itertools.permutations(range(4))):
        root = rollouts.begin(
            f"run {number}", START, rollout__score__reward=0.1, rollout__score_time__reward=START + 10
        )
        above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
        root.end(START + SECOND)
        sources = [(0.1, 10, INSIDE), (0.7, 30, OUTSIDE), (0.4, 20, OUTSIDE)]
        for value, at, origin in sources:
            given = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": value}
            given |= {"rollout.score_origin": origin} if origin else {}
            given["gen_ai.evaluation.explanation"] = f"at {at}"
            rollouts.begin("score reward", START + at, above, **given).end(START + at)
        spans = rollouts.ended()
        for index in order:
            deliver(exporter, [spans[index]])
    found = stored(uri, project)
    assert len(found) == 24
    for trace in found:
        [one] = trace.info.assessments
        assert (one.value, one.rationale, trace.info.tags["reward"]) == (0.7, "at 30", "0.7")
        assert one.metadata["rollout.score_time"] == str(START + 30)


def test_replayed_older_segment_reverts_no_score(uri, project, trajectory, exporter_for):
    """Delivery by another forwarder keeps the later score, once."""
    root, evaluation = trajectory
    first = evaluation(0.1, 10, INSIDE)
    deliver(exporter_for(uri), [first, root])
    deliver(exporter_for(uri), [evaluation(0.9, 5 * SECOND, OUTSIDE, why="on reflection")])
    before = shown(uri, project)
    assert before == {"reward": (0.9, "on reflection", 5 * SECOND, "0.9")}
    for batch in ([first, root], [root], [first]):
        deliver(exporter_for(uri), batch)
        assert shown(uri, project) == before


def test_newer_score_without_comment_removes_the_older_comment(uri, project, trajectory, exporter_for):
    """A comment belongs to the score it was given with."""
    root, evaluation = trajectory
    exporter = exporter_for(uri)
    deliver(exporter, [evaluation(0.1, 10, INSIDE, why="too long"), root])
    deliver(exporter, [evaluation(0.9, 20, OUTSIDE)])
    assert shown(uri, project) == {"reward": (0.9, None, 20, "0.9")}


def test_tag_is_the_newest_score_of_root_and_workers(uri, project, rollouts, exporter_for):
    """A worker's score is Feedback of a span there, and may be the trace's tag."""
    root = rollouts.begin("run", START, rollout__score__reward=0.1, rollout__score_time__reward=START + 10)
    above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
    worker = rollouts.begin("worker", START, above)
    below = otel.set_span_in_context(otel.NonRecordingSpan(worker.get_span_context()))
    worker.end(START + SECOND)
    root.end(START + SECOND)
    given = {"gen_ai.evaluation.name": "reward", "rollout.score_origin": PROCESS}
    for value, at in ((0.05, 5), (0.3, 30), (0.2, 20)):
        given["gen_ai.evaluation.score.value"] = value
        rollouts.begin("score reward", START + at, below, **given).end(START + at)
    worker_span, root_span, early, late, between = rollouts.ended()
    exporter = exporter_for(uri)
    for batch, tag in (
        ([early, worker_span], "0.05"),
        ([root_span], "0.1"),
        ([late], "0.3"),
        ([between], "0.3"),
        ([root_span], "0.3"),
    ):
        deliver(exporter, batch)
        [found] = stored(uri, project)
        assert found.info.tags["reward"] == tag
    assert sorted(one.value for one in found.info.assessments) == [0.1, 0.3]


@pytest.mark.parametrize("first", [0.0, False])
def test_tag_of_zero_or_false_gives_way_to_a_later_score(uri, project, rollouts, exporter_for, first):
    """A reward of 0 is a score that a trainer may correct hours later."""
    root = rollouts.begin("run", START, rollout__score__reward=first, rollout__score_time__reward=START)
    above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
    root.end(START + SECOND)
    deliver(exporter_for(uri), rollouts.ended())
    given = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5}
    given["rollout.score_origin"] = OUTSIDE
    rollouts.begin("score reward", START + 20, above, **given).end(START + 20)
    deliver(exporter_for(uri), rollouts.ended())
    assert shown(uri, project) == {"reward": (0.5, None, 20, "0.5")}


def test_score_named_as_a_part_of_the_identity_leaves_the_tag(uri, project, trajectory, exporter_for):
    """A score with a name of the identity or the run is feedback only; others replace an attribute's tag."""
    root, evaluation = trajectory
    root._attributes = {**root.attributes, "rollout.agent_name": "tool_agent"}
    names = ("step", "validate", "rollout.run.id", "project_name", "agent_name")
    deliver(exporter_for(uri), [root])
    [before] = stored(uri, project)
    for _ in range(2):
        for name in names:
            deliver(exporter_for(uri), [evaluation(7.0, 50, OUTSIDE, name)])
    [after] = stored(uri, project)
    assert after.info.tags == {**before.info.tags, "agent_name": "7.0"}
    values = {one.name: one.value for one in after.info.assessments}
    assert values == {"reward": 0.1, **dict.fromkeys(names, 7.0)}


REFUSED = ("a*b", "mlflow.user", "n" * 251, "a//b", "/a", "../a", "r\u00e9ponse?")


def test_tag_that_mlflow_drops_is_warned_of_once(uri, project, rollouts, exporter_for, caplog):
    """Its attribute is on the span, and other tags are written."""
    exporter = exporter_for(uri)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            given = {f"rollout__{name}": 1 for name in REFUSED} | {"rollout__accent\u00e9": 2}
            with rollouts.span("Agent.run", rollout__score_x=1, **given):
                pass
            deliver(exporter, rollouts.ended())
    told = [record.getMessage() for record in caplog.records if "no trace tag" in record.getMessage()]
    assert len(told) == len(REFUSED)
    for found in stored(uri, project):
        assert (found.info.tags["score_x"], found.info.tags["accent\u00e9"]) == ("1", "2")
        [span] = found.data.spans
        assert {span.attributes[f"rollout.{name}"] for name in REFUSED} == {1}
        assert not set(found.info.tags) & set(REFUSED)


@pytest.mark.parametrize("name", ["a*b", "mlflow.x", "a//b", "step", "\u754c" * 100, "n" * 250])
def test_score_with_a_name_that_is_no_tag_is_feedback(uri, project, trajectory, exporter_for, name):
    """A name that MLflow takes for no tag costs the tag, and no batch."""
    root, evaluation = trajectory
    exporter = exporter_for(uri)
    deliver(exporter, [root])
    deliver(exporter, [evaluation(0.5, 30, OUTSIDE, name), evaluation("good", 31, OUTSIDE, "verdict")])
    [found] = stored(uri, project)
    assert {one.name: one.value for one in found.info.assessments} == {
        "reward": 0.1,
        name: 0.5,
        "verdict": "good",
    }
    assert found.info.tags["verdict"] == "good"


def test_export_to_a_trashed_experiment_is_refused(uri, project, rollouts, exporter_for):
    """MLflow stores the spans and shows none.

    The message says how to restore the experiment.
    """
    exporter = exporter_for(uri)

    def export():
        with rollouts.span("Agent.run", rollout__score__reward=0.5):
            pass
        return exporter.export(spans := rollouts.ended()), spans

    assert export()[0] is SpanExportResult.SUCCESS
    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.get_experiment_by_name(project).experiment_id
    client.delete_experiment(experiment_id)
    for _ in range(2):
        result, spans = export()
        assert result is SpanExportResult.FAILURE
        assert exporter.last_failure.kind is FailureKind.REFUSED
        assert f"mlflow experiments restore --experiment-id {experiment_id}" in exporter.last_failure.message
    client.restore_experiment(experiment_id)
    deliver(exporter, spans)
    assert len(stored(uri, project)) >= 2


def test_late_score_of_a_sub_trajectory_is_no_tag(uri, project, rollouts, exporter_for):
    """It is feedback of the sub-trajectory's span, and the trace's tag stays that of the outer trajectory."""
    given = {"rollout.score.reward": 0.1, "rollout.score_time.reward": START + 10}
    with (
        rollouts.span("outer", "AGENT", **given),
        rollouts.span("inner", "AGENT", rollout__begins_trajectory=True) as inner,
    ):
        pass
    exporter = exporter_for(uri)
    deliver(exporter, rollouts.ended())
    for name in ("reward", "judge"):
        late = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": 0.9}
        with otel.use_span(inner), rollouts.span(f"score {name}", **late, rollout__score_origin=OUTSIDE):
            pass
    deliver(exporter, rollouts.ended())
    [found] = stored(uri, project)
    assert {one.name for one in found.info.assessments} == {"reward", "judge"}
    assert found.info.tags["reward"] == "0.1"
    assert "judge" not in found.info.tags
