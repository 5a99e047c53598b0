"""Scores in Weave: newest, types, and beside output and identity."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from opentelemetry import trace as otel

from otel_rollout.otlp import evaluations
from tests.sdk_spans import JSON, deliver

SECOND = 10**9
OUTSIDE = "outside"


@pytest.fixture
def scored(rollouts):
    """A function that makes a root with a repeated score of 0.1, and its evaluations."""

    def make(start, *given, output=None, **attributes):
        repeated = {"rollout.score.reward": 0.1, "rollout.score_time.reward": start + 10_000}
        shown = {"output.value": json.dumps(output), **JSON} if output is not None else {}
        root = rollouts.begin("Agent.run", start, **(attributes or repeated), **shown)
        above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
        root.end(start + SECOND)
        for value, at, origin, why in given:
            named = evaluations.attributes_of("reward", value, why, origin)
            rollouts.begin("score reward", start + at, above, **named).end(start + at)
        return rollouts.ended()

    return make


def values(weave, project):
    """Return value, time and explanation of each trajectory's reward."""
    found = [score["payload"] for score in weave.feedback(project)]
    return [(one["value"], one["given_at"][-12:], one.get("explanation")) for one in found]


@pytest.mark.parametrize("is_alone", [True, False], ids=["one exporter", "one for each batch"])
@pytest.mark.parametrize("age", [-60, +1], ids=["older than the exporter", "newer"])
def test_newest_score_stays_in_every_order_of_delivery(
    weave, project, scored, exporter, new_exporter, age, is_alone
):
    """Scores inside, of the root and by id, alone or together, show the newest."""
    start = (int(time.time()) + age) * SECOND
    given = (0.1, 10_000, None, "first"), (0.9, 20_000, OUTSIDE, "last"), (0.5, 15_000, OUTSIDE, None)
    orders = list(itertools.permutations(range(4)))[:: 1 if is_alone else 5]
    for order in orders:
        spans = scored(start, *given)
        for index in order:
            deliver(exporter if is_alone else new_exporter(), [spans[index]])
    assert values(weave, project) == [(0.9, "000020+00:00", "last")] * len(orders)


@pytest.mark.parametrize("order", ["score first", "trajectory first", "together"])
def test_another_librarys_score_of_an_operation_is_the_trajectorys(weave, project, rollouts, exporter, order):
    """As in a table; the operation has it, too, and a trajectory inside this one keeps its own scores."""
    own, of_inner = (evaluations.attributes_of("reward", value, None, None) for value in (0.9, 0.4))
    with rollouts.span("Agent.run", "AGENT", rollout__score__reward=0.1):
        with rollouts.span("search", "TOOL"), rollouts.foreign_span("judge", **own):
            pass
        with rollouts.span("Helper.run", "AGENT", rollout__sample_index=8) as inner:
            inner.set_attribute("rollout.begins_trajectory", True)
            rollouts.identity["rollout.sample_index"] = 8
            with rollouts.span("judge of the helper", "EVALUATOR", **of_inner):
                pass
    judge, search, of_helper, helper, root = rollouts.ended()
    scores, others = [judge, of_helper], [search, helper, root]
    parts = {"score first": [scores, others], "trajectory first": [others, scores]}

    for spans in parts.get(order, [[*scores, *others]]):
        deliver(exporter, spans)

    names = {call["id"]: call["op_name"] for call in weave.calls(project)}
    given = {
        names[one["weave_ref"].split("/")[-1]]: one["payload"]["value"] for one in weave.feedback(project)
    }
    assert given == {"Agent.run": 0.9, "search": 0.9, "Helper.run": 0.4}


def test_replayed_older_segment_reverts_no_score(weave, project, scored, new_exporter):
    """Delivery by another forwarder keeps the later score, once."""
    root, first, later = scored(
        (int(time.time()) - 60) * SECOND, (0.1, 10_000, None, "first"), (0.9, 5 * SECOND, OUTSIDE, "later")
    )
    deliver(new_exporter(), [first, root])
    deliver(new_exporter(), [later])
    before = weave.feedback(project)
    assert [score["payload"]["value"] for score in before] == [0.9]
    for batch in ([first, root], [root], [first]):
        deliver(new_exporter(), batch)
        assert weave.feedback(project) == before


def test_output_shows_the_newest_known_score(weave, project, scored, exporter):
    """A score by id that is delivered with its trajectory is `output.reward`."""
    root, later = scored(int(time.time()) * SECOND, (0.9, 20_000, OUTSIDE, None), output={"answer": "7"})
    deliver(exporter, [later, root])
    [call] = [call for call in weave.calls(project) if call["display_name"] == "Agent.run"]
    assert call["output"] == {"answer": "7", "reward": 0.9}


@pytest.mark.parametrize("value", [True, False, 1.0, 0.0, "True", "good", "nan"])
def test_score_keeps_its_type(weave, project, scored, exporter, value):
    """A bool is no 1.0 and a label no bool, in feedback and in the output."""
    start = int(time.time()) * SECOND
    repeated = {"rollout.score.reward": value, "rollout.score_time.reward": start + 10_000}
    root, inside = scored(start, (value, 10_000, None, None), **repeated)
    deliver(exporter, [inside, root])
    [feedback] = weave.feedback(project)
    [call] = [call for call in weave.calls(project) if call["display_name"] == "Agent.run"]
    for found in (feedback["payload"]["value"], call["output"]["reward"]):
        assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ({"answer": "7"}, {"answer": "7", "reward": 0.5}),
        ({"reward": 0.5}, {"reward": 0.5}),
        ({"reward": "high"}, {"reward": "high", "scores": {"reward": 0.5}}),
        ({"reward": 1, "scores": [1]}, {"reward": 1, "scores": [1], "_scores": {"reward": 0.5}}),
        ("7", {"value": "7", "reward": 0.5}),
    ],
)
def test_output_key_with_a_scores_name_hides_no_score(weave, project, scored, exporter, output, shown):
    """Both can be read; an equal value stands for the score."""
    start = int(time.time()) * SECOND
    spans = scored(start, output=output, **{"rollout.score.reward": 0.5})
    deliver(exporter, spans)
    [call] = weave.calls(project)
    assert call["output"] == shown
    [feedback] = weave.feedback(project)
    assert feedback["payload"]["value"] == 0.5


def test_score_of_any_name_leaves_identity_and_other_scores_unchanged(weave, project, rollouts, exporter):
    """Long and reserved names stay apart."""
    names = ("step", "validate", "n" * 250, "n" * 249 + "m", "wandb.note.1", "wb_run", "\u754c")
    with rollouts.span("Agent.run", "AGENT") as root:
        pass
    above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
    for number, name in enumerate(names):
        given = evaluations.attributes_of(name, float(number), None, OUTSIDE)
        rollouts.begin(f"score {name}", time.time_ns(), above, **given).end()
    deliver(exporter, rollouts.ended())
    found = {score["feedback_type"]: score["payload"]["value"] for score in weave.feedback(project)}
    assert sorted(found.values()) == [float(number) for number in range(len(names))]
    assert (found["step"], found["_wandb.note.1"], found["_wb_run"]) == (0.0, 4.0, 5.0)
    [call] = [call for call in weave.calls(project) if call["display_name"] == "Agent.run"]
    assert (call["attributes"]["step"], call["attributes"]["validate"]) == (1, False)
