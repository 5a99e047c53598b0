"""Trajectories: identity, what the root shows, scores, and switching off."""

import asyncio
import gc
import math
import weakref

import numpy as np
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.propagate.carrier import extract, inject

IDENTITY = {
    "rollout.project_name": "project",
    "rollout.experiment_name": "experiment",
    "rollout.step": 4,
    "rollout.sample_index": "row-7",
    "rollout.rollout_n": 2,
    "rollout.validate": True,
}


@rollout_trace_op(name="turn")
def turn(text: str) -> str:
    return text.upper()


def test_every_span_carries_the_identity(recorded):
    """Root, operation and score carry the same identity with the same types."""
    with rollout_trace_attr("row-7", step=4, rollout_n=2, validate=True, agent_name="math"):
        turn("hi")
        score("reward", 0.5)
    spans = recorded()
    assert [s.name for s in spans] == ["turn", "score reward", "rollout_trace"]
    for span in spans:
        assert {k: v for k, v in span.attributes.items() if k in IDENTITY} == IDENTITY
    assert spans[-1].attributes["rollout.agent_name"] == "math"
    assert spans[-1].attributes["openinference.span.kind"] == "AGENT"


def test_numpy_identity_has_plain_types(recorded):
    """Datasets yield numpy scalars; what is recorded is an integer all the same."""
    with rollout_trace_attr(sample_index=np.int64(3), step=np.int32(1), validate=np.bool_(False)):
        pass
    attributes = recorded()[0].attributes
    assert [attributes[f"rollout.{key}"] for key in ("sample_index", "step", "validate")] == [3, 1, False]


def test_an_odd_extra_does_not_cost_the_trajectory(recorded):
    """A value that is no scalar is recorded as JSON; the trajectory and what is in it stay whole."""
    with rollout_trace_attr(step=1, who=np.arange(3), what=object):
        turn("x")
    call, root = recorded()
    assert call.span.parent_span_id == root.span.span_id
    assert root.attributes["rollout.who"] == "[0,1,2]"


def test_a_trajectory_leaves_nothing_behind(recorded):
    """With the garbage collector off, as trainers have it, ended trajectories take no memory."""
    gc.collect()
    gc.disable()
    try:
        with rollout_trace_attr(step=1) as trajectory:
            turn("x" * 1000)
        alive = weakref.ref(trajectory)
        del trajectory
        assert alive() is None
    finally:
        gc.enable()


def test_what_was_not_given_is_not_recorded(recorded):
    """No identity attribute appears with a null in it."""
    with rollout_trace_attr(step=1):
        pass
    assert "rollout.sample_index" not in recorded()[0].attributes


def test_identity_cannot_be_overwritten_inside(recorded):
    """Setting an identity attribute by hand neither changes nor duplicates it."""
    with rollout_trace_attr(step=1):
        trace.get_current_span().set_attribute("rollout.step", 99)
    assert recorded()[0].attributes["rollout.step"] == 1


def test_the_root_shows_the_first_input_and_the_last_output(recorded):
    """A list of traces shows what went in and what came out, without being told."""
    with rollout_trace_attr():
        turn("question")
        turn("answer")
    root = recorded()[-1]
    assert (root.input, root.output) == ({"text": "question"}, "ANSWER")


def test_the_root_shows_what_it_is_told_to(recorded):
    """set_input and set_output win over the operations'."""
    with rollout_trace_attr() as trajectory:
        trajectory.set_input("What is 2+2?")
        turn("x")
        trajectory.set_output({"answer": "4"})
    root = recorded()[-1]
    assert (root.input, root.output) == ("What is 2+2?", {"answer": "4"})


def test_a_large_input_is_previewed_on_the_root(recorded):
    """The operation keeps its input whole; the root shows its beginning and how much is missing."""
    with rollout_trace_attr():
        turn("x" * 100_000)
    call, root = recorded()
    assert len(call.input["text"]) == 100_000
    assert len(root.input) < 20_000
    assert root.input.endswith("more bytes)")


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


def test_trace_false_switches_off_everything_inside_and_only_there(recorded):
    """Neither the trajectory nor its operations are recorded, also in tasks; afterwards tracing is back."""

    async def inside() -> None:
        turn("task")

    with rollout_trace_attr(trace=False) as trajectory:
        turn("hidden")
        asyncio.run(inside())
        score("reward", 1.0)
        assert not trace.get_current_span().get_span_context().trace_flags.sampled
    assert trajectory.trace_id is None
    with pytest.raises(KeyError), rollout_trace_attr(trace=False):
        raise KeyError
    turn("shown")
    assert [s.input for s in recorded()] == [{"text": "shown"}]


def test_a_trajectory_inside_a_trajectory_is_a_span_of_it(recorded):
    """The inner one has its own identity inside, and one trace holds both."""
    with rollout_trace_attr(step=1, name="outer"):
        with rollout_trace_attr(step=2, name="inner"):
            turn("x")
        turn("y")
    spans = recorded()
    assert [(s.name, s.attributes["rollout.step"]) for s in spans] == [
        ("turn", 2),
        ("inner", 2),
        ("turn", 1),
        ("outer", 1),
    ]
    assert len({s.span.trace_id for s in spans}) == 1


def test_the_trace_id_is_known_while_it_runs(recorded):
    """A trajectory can be found again by the id it hands out."""
    with rollout_trace_attr() as trajectory:
        pass
    assert trajectory.trace_id == recorded()[0].span.trace_id.hex()
