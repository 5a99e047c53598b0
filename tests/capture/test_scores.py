"""Scores: of the trajectory around, and by id of one that is over or runs elsewhere."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from opentelemetry import context as otel_context

import otel_rollout
from otel_rollout import rollout_trace_attr, score
from otel_rollout.propagate.carrier import extract, inject
from tests.otlp import read_directory


@pytest.mark.parametrize(
    ("value", "attributes"),
    [
        (1.5, {"gen_ai.evaluation.score.value": 1.5}),
        (np.float32(0.5), {"gen_ai.evaluation.score.value": 0.5}),
        (True, {"gen_ai.evaluation.score.value": 1.0, "gen_ai.evaluation.score.label": "True"}),
        ("correct", {"gen_ai.evaluation.score.label": "correct"}),
        (math.nan, {"gen_ai.evaluation.score.label": "nan"}),
    ],
)
def test_a_score_is_an_evaluation_span_and_an_attribute_of_the_root(recorded, value, attributes):
    """Numbers, verdicts and labels are recorded in GenAI terms, as a zero-length span below the root."""
    with rollout_trace_attr():
        score("reward", value, comment="because")
    span, root = recorded()
    assert span.name == "score reward"
    assert span.span.parent_span_id == root.span.span_id
    found = {k: v for k, v in span.attributes.items() if k.startswith("gen_ai.evaluation.")}
    assert found == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.explanation": "because",
        **attributes,
    }
    assert root.attributes["rollout.score.reward"] == value or math.isnan(float(value))


def test_a_score_given_in_another_process_is_recorded_below_what_runs_there(recorded):
    """Where only context and identity have arrived, the score joins the trace all the same."""
    with rollout_trace_attr(step=1):
        arrived = extract(inject())
    token = otel_context.attach(arrived)
    score("reward", 0.5)
    otel_context.detach(token)
    score("reward", 1.0)  # outside any trajectory: nobody's
    root, evaluation = recorded()
    assert evaluation.span.parent_span_id == root.span.span_id
    assert evaluation.attributes["rollout.step"] == 1


def test_a_score_that_is_no_score_is_harmless(recorded):
    """Scoring with something that is not a number, bool or label records nothing and raises nothing."""
    with rollout_trace_attr():
        score("reward", object())
    assert [s.name for s in recorded()] == ["rollout_trace"]


def evaluation_of(spans, name="score reward"):
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_trajectory_is_scored_later_by_its_id(recorded):
    """Its id is a string of 55 characters; the score stands below the root, outside whatever runs by then."""
    with rollout_trace_attr(step=1) as trajectory:
        pass
    with rollout_trace_attr(step=2):
        score("reward", 0.5, comment="late", trajectory=trajectory.id)
    assert len(trajectory.id) == 55
    spans = recorded()
    root, later = (span for span in spans if span.name == "rollout_trace")
    evaluation = evaluation_of(spans)
    assert evaluation.span.trace_id == root.span.trace_id
    assert evaluation.span.parent_span_id == root.span.span_id
    assert evaluation.attributes["rollout.score_origin"] == "outside"
    assert evaluation.attributes["gen_ai.evaluation.score.value"] == 0.5
    assert evaluation.attributes["gen_ai.evaluation.explanation"] == "late"
    assert evaluation.attributes["rollout.project_name"] == "project"
    assert "rollout.step" not in evaluation.attributes
    assert "rollout.score.reward" not in later.attributes


def test_a_trajectory_is_scored_from_another_process(recorded, tmp_path):
    """Any process of the run will do: it needs the id and nothing else."""
    with rollout_trace_attr(step=1) as trajectory:
        pass
    program = "import sys, otel_rollout; otel_rollout.score('advantage', -1.5, trajectory=sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, trajectory.id], check=True, timeout=60)
    recorded()
    spans = read_directory(tmp_path / "spool")
    root = next(span for span in spans if span.name == "rollout_trace")
    assert evaluation_of(spans, "score advantage").span.parent_span_id == root.span.span_id


@pytest.mark.parametrize("name", ["reward", "\ud800", "", "a" * 10_000])
def test_any_name_and_id_are_harmless(recorded, name):
    """What is no id is counted and not an error, whatever it is."""
    for id_ in ("", "nonsense", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, b"00"):
        score(name, 1.0, trajectory=id_)
    assert otel_rollout.status().left_out == {"score_of_unknown": 6}


def test_scores_of_what_is_not_recorded_are_counted(recorded):
    """The id of a trajectory that is left out says so: nothing is recorded, and the account tells."""
    with rollout_trace_attr(trace=False) as left_out:
        pass
    score("reward", 1.0, trajectory=left_out.id)
    assert recorded() == []
    assert otel_rollout.status().left_out == {"switched_off": 1, "score_of_unrecorded": 1}


def test_the_id_outlives_json_and_is_none_before_the_trajectory(recorded):
    """It is kept in a batch like any other string; there is none before the trajectory has begun."""
    trajectory = rollout_trace_attr(step=1)
    assert trajectory.id is None
    with trajectory:
        inside = trajectory.id
    assert json.loads(json.dumps(trajectory.id)) == inside


def test_without_tracing_there_is_no_id_and_a_score_does_nothing():
    """Code that scores by id runs the same with tracing off."""
    with rollout_trace_attr(step=1) as trajectory:
        assert trajectory.id is None
    score("reward", 1.0, trajectory=trajectory.id)
    score("reward", 1.0, trajectory="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
