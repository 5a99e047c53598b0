"""Scores: of the trajectory around, and by id of one that is over or runs elsewhere."""

import datetime
import itertools
import json
import math
import subprocess
import sys
from decimal import Decimal
from enum import Enum
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context

import otel_rollout
from otel_rollout import rollout_trace_attr, score
from otel_rollout.otlp import evaluations
from otel_rollout.propagation.carrier import extract, inject
from tests.spool_reader import read_directory


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


@pytest.mark.parametrize("is_given_by_id", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "redact", "told"),
    [
        ("password", "hunter2", "secrets", "[redacted]"),
        ("db password", "hunter2", "tests.capture.test_scores:as_it_is, secrets", "[redacted]"),
        ("api_key", "sk-" + "a1" * 20, "secrets", "[redacted]"),
        ("label", "sk-" + "a1" * 20, "secrets", "[redacted]"),
        ("password", "hunter2", "", "hunter2"),
        ("password", 0.5, "secrets", 0.5),
        ("password", True, "secrets", True),
        ("password_strength", "good", "secrets", "[redacted]"),
        ("verdict", "good", "secrets", "good"),
    ],
)
def test_text_of_a_score_named_like_a_secret_is_redacted_everywhere(
    recorded, name, value, redact, told, is_given_by_id
):
    """As under such a name elsewhere: text goes, on the score's own span as on the root; numbers stay."""
    otel_rollout.configure("spool", redact=redact)
    with rollout_trace_attr() as trajectory:
        score(name, value, trajectory=trajectory.id if is_given_by_id else None)
    spans = recorded()
    found = [evaluations.recorded_in(span.attributes, 1) for span in spans]
    assert [one.value for one in found if one is not None] == [told]
    if not is_given_by_id:
        root = spans[-1]
        held = root.attributes[f"rollout.score.{name}"]
        assert held == told
    if told == "[redacted]":
        assert not any(value in repr(span.attributes) for span in spans)


def as_it_is(line: str) -> str:
    """A redaction of an application that changes nothing."""
    return line


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


class Uncertain:
    def __float__(self):
        raise RuntimeError("as the test wishes")


@pytest.mark.parametrize(
    "value",
    [object(), None, [1], {}, b"0.5", 1j, np.zeros(2), 10**400, Uncertain(), datetime.date(2026, 1, 1)],
)
def test_value_that_is_no_score_is_named_in_a_warning(recorded, caplog, monkeypatch, value):
    """Nothing is recorded and nothing raised; one line names score, argument, type and what to give."""
    with rollout_trace_attr():
        for _ in range(3):
            score("loss", value)
    assert [s.name for s in recorded()] == ["rollout_trace"]
    [line] = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    assert line == (
        f"otel-rollout: score('loss', …) recorded nothing: value= is a {type(value).__name__}, which is no "
        "score; give a number, True or False, or a text."
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (5, "a int"),
        (None, "a NoneType"),
        ("", "a text of 0 characters"),
        ("n" * 251, "a text of 251 characters"),
    ],
)
def test_name_that_is_none_is_named_in_a_warning(recorded, caplog, monkeypatch, name, shown):
    """A name that is no text, empty, or longer than destinations take: one line says so."""
    with rollout_trace_attr() as trajectory:
        score(name, 1)
    score(name, 1, trajectory=trajectory.id)
    assert [s.name for s in recorded()] == ["rollout_trace"]
    [line] = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    assert f"name= is {shown}; give a text of 1 to 250 characters" in line


class Verdict(Enum):
    GOOD = "good"
    BEST = 1


class Label(str, Enum):
    GOOD = "good"


@pytest.mark.parametrize(
    ("value", "recorded_as"),
    [
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (2**70, float(2**70)),
        (np.bool_(True), True),
        (np.int64(3), 3.0),
        (np.array(0.5), 0.5),
        (np.str_("good"), "good"),
        (Verdict.GOOD, "good"),
        (Verdict.BEST, 1.0),
        (Label.GOOD, "good"),
        (-math.inf, "-inf"),
    ],
)
def test_scalars_of_every_library_are_numbers_bools_and_labels(recorded, value, recorded_as):
    """What the root repeats, and what is read of the evaluation span, has the same value and type."""
    with rollout_trace_attr():
        score("reward", value)
    span, root = recorded()
    read = evaluations.recorded_in(span.attributes, span.span.start_time_unix_nano)
    [repeated] = evaluations.repeated_in(root.attributes, root.span.end_time_unix_nano)
    for found in (read.value, repeated.value):
        assert (type(found), found) == (type(recorded_as), recorded_as)


def test_root_repeats_a_score_with_the_time_it_was_given(recorded):
    """Its time is the evaluation span's, not the root's end; of two the newest is repeated."""
    with rollout_trace_attr() as trajectory:
        score("reward", 0.1)
        score("reward", 0.5)
        score("reward", 0.9, trajectory=trajectory.id)
    *given, root = recorded()
    [repeated] = evaluations.repeated_in(root.attributes, root.span.end_time_unix_nano)
    assert (repeated.value, repeated.is_dated) == (0.5, True)
    assert repeated.time_ns == given[1].span.start_time_unix_nano < root.span.end_time_unix_nano
    read = [evaluations.recorded_in(span.attributes, span.span.start_time_unix_nano) for span in given]
    for order in itertools.permutations([*read, repeated]):
        assert evaluations.newest(order)["reward"].value == 0.9


def test_score_given_inside_after_the_root_ended_says_that_the_root_lacks_it(recorded):
    """A task that outlives its trajectory scores it: destinations know that no root repeats that."""
    with rollout_trace_attr():
        inside = otel_context.get_current()
    token = otel_context.attach(inside)
    score("reward", 0.5)
    otel_context.detach(token)
    root, late = recorded()
    assert late.attributes["rollout.score_origin"] == "outside"
    assert "rollout.score.reward" not in root.attributes


any_value = st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(["True", "False", "nan"])


@given(any_value, st.none() | st.text(max_size=5), st.sampled_from([None, "process", "outside"]))
def test_what_an_evaluation_span_holds_reads_back(value, comment, origin):
    """Value, its type, comment and origin; a float that JSON has no number for is its text."""
    written = evaluations.attributes_of("reward", value, comment, origin)
    read = evaluations.recorded_in(written, 7)
    expected = str(value) if isinstance(value, float) and not math.isfinite(value) else value
    assert (type(read.value), read.value) == (type(expected), expected)
    assert (read.name, read.comment, read.origin, read.time_ns) == ("reward", comment or "", origin, 7)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((True, 1.0), (False, 0.0), (2, 2.0), ("inf", math.inf), ("-Infinity", -math.inf)),
        *(("nan", None), ("good", None), ("1", None), (math.nan, None), ("info", None)),
    ],
)
def test_number_of_a_score(value, number):
    """A yes counts 1, infinity is a number, and a text is none, whatever digits it holds."""
    assert evaluations.number_of(value) == number


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


@pytest.mark.parametrize("name", ["reward", "\ud800", " ", "a" * 250])
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
