"""Scores of the current trajectory, and by id of any other trajectory."""

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
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.otlp import evaluations
from otel_rollout.record.propagation.carrier import extract, inject
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
def test_score_is_an_evaluation_span_and_a_root_attribute(recorded, value, attributes):
    """Numbers, verdicts and labels are recorded in GenAI terms.

    The span below the root has length zero.
    """
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
def test_text_of_a_score_with_a_secret_name_is_redacted(recorded, name, value, redact, told, is_given_by_id):
    """The text is redacted on the evaluation span and on the root span; numbers stay."""
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
    """Return the text unchanged, as an application's redaction."""
    return line


def test_score_in_another_process_is_recorded_below_its_current_span(recorded):
    """The score joins the trace where only context and identity have arrived."""
    with rollout_trace_attr(step=1):
        arrived = extract(inject())
    token = otel_context.attach(arrived)
    score("reward", 0.5)
    otel_context.detach(token)
    score("reward", 1.0)  # outside any trajectory: ignored
    root, evaluation = recorded()
    assert evaluation.span.parent_span_id == root.span.span_id
    assert evaluation.attributes["rollout.step"] == 1


def test_score_outside_any_trajectory_says_once_what_to_do(recorded, caplog):
    """A score after the block is the usual mistake."""
    with rollout_trace_attr():
        pass
    score("reward", 1.0)
    score("other", 1.0)
    assert caplog.messages == [
        "otel-rollout: score('reward', …) is ignored outside any trajectory; call it inside the `with` block "
        "of the trajectory, or pass trajectory=."
    ]


def test_score_in_a_trajectory_that_is_not_recorded_warns_of_nothing(recorded, caplog, monkeypatch):
    """It is sampled out here or in the calling process, or tracing is off; or it is in an operation."""
    monkeypatch.setenv("OTEL_ROLLOUT_SAMPLE_RATE", "0")
    otel_rollout.configure("spool")
    with rollout_trace_attr(step=1):
        score("reward", 1.0)
        carrier = inject()
    token = otel_context.attach(extract(carrier))
    score("reward", 1.0)
    with rollout_trace_attr(step=1):
        score("reward", 1.0)
    otel_context.detach(token)
    with rollout_trace_attr(trace=False):
        score("reward", 1.0)
    rollout_trace_op(score)("reward", 1.0)
    otel_rollout.shutdown()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    score("reward", 1.0)
    assert "outside any trajectory" not in caplog.text


class Uncertain:
    def __float__(self):
        raise RuntimeError("as the test wishes")


@pytest.mark.parametrize(
    "value",
    [object(), None, [1], {}, b"0.5", 1j, np.zeros(2), 10**400, Uncertain(), datetime.date(2026, 1, 1)],
)
def test_value_that_is_no_score_is_refused_with_a_warning(recorded, caplog, monkeypatch, value):
    """Nothing is recorded or raised.

    One line names score, argument and type, and what to give.
    """
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
        ("", "a text of 0 characters, ''"),
        ("n" * 251, f"a text of 251 characters, '{'n' * 60}'"),
    ],
)
def test_invalid_score_name_is_refused_with_a_warning(recorded, caplog, monkeypatch, name, shown):
    """One line names a name that is no text, empty, or too long for destinations."""
    with rollout_trace_attr() as trajectory:
        score(name, 1)
    score(name, 1, trajectory=trajectory.id)
    assert [s.name for s in recorded()] == ["rollout_trace"]
    [line] = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    assert f"name= is {shown}; give a text of 1 to 250 characters" in line


class Verdict(Enum):
    GOOD = "good"
    BEST = 1


class Label(str, Enum):  # noqa: UP042 - text of such a member differs from a StrEnum's
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
def test_scalar_of_any_library_is_recorded_with_its_type(recorded, value, recorded_as):
    """Root and evaluation span have one value of one type."""
    with rollout_trace_attr():
        score("reward", value)
    span, root = recorded()
    read = evaluations.recorded_in(span.attributes, span.span.start_time_unix_nano)
    [repeated] = evaluations.repeated_in(root.attributes, root.span.end_time_unix_nano)
    for found in (read.value, repeated.value):
        assert (type(found), found) == (type(recorded_as), recorded_as)


def test_root_repeats_a_score_with_its_time(recorded):
    """The time is the evaluation span's start, not the root's end.

    Of two scores the newest is repeated.
    """
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


def test_score_after_the_roots_end_is_marked_as_outside(recorded):
    """Destinations know that no root repeats the score of a task that outlives it."""
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
def test_evaluation_span_reads_back(value, comment, origin):
    """Value with its type, comment and origin are read.

    A float without a JSON number is its text.
    """
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
    """True counts 1, infinity is a number, and a text is none, even with digits."""
    assert evaluations.number_of(value) == number


def evaluation_of(spans, name="score reward"):
    (found,) = [span for span in spans if span.name == name]
    return found


def test_ended_trajectory_is_scored_by_its_id(recorded):
    """The score is below the root of the id, not in the trajectory that runs by then."""
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


def test_trajectory_is_scored_by_its_id_from_another_process(recorded, tmp_path):
    """Any process of the run can do it with the id alone."""
    with rollout_trace_attr(step=1) as trajectory:
        pass
    program = "import sys, otel_rollout; otel_rollout.score('advantage', -1.5, trajectory=sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, trajectory.id], check=True, timeout=60)
    recorded()
    spans = read_directory(tmp_path / "spool")
    root = next(span for span in spans if span.name == "rollout_trace")
    assert evaluation_of(spans, "score advantage").span.parent_span_id == root.span.span_id


@pytest.mark.parametrize("name", ["reward", "\ud800", " ", "a" * 250])
def test_any_score_name_and_id_raise_nothing(recorded, name):
    """A text that is no id is counted."""
    for id_ in ("", "nonsense", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, b"00"):
        score(name, 1.0, trajectory=id_)
    assert otel_rollout.status().sampled_out == {"score_of_unknown": 6}


def test_score_of_an_unrecorded_trajectory_is_counted(recorded):
    """The id says that its trajectory is not recorded.

    The score is only counted, in the report.
    """
    with rollout_trace_attr(trace=False) as left_out:
        pass
    score("reward", 1.0, trajectory=left_out.id)
    assert recorded() == []
    assert otel_rollout.status().sampled_out == {"switched_off": 1, "score_of_unrecorded": 1}


def test_trajectory_id_survives_json_and_is_none_before_entry(recorded):
    """The id is kept in a batch like any other string."""
    trajectory = rollout_trace_attr(step=1)
    assert trajectory.id is None
    with trajectory:
        inside = trajectory.id
    assert json.loads(json.dumps(trajectory.id)) == inside


def test_score_without_tracing_does_nothing():
    """Without tracing there is no id, and code that scores by id still runs."""
    with rollout_trace_attr(step=1) as trajectory:
        assert trajectory.id is None
    score("reward", 1.0, trajectory=trajectory.id)
    score("reward", 1.0, trajectory="00-" + "1" * 32 + "-" + "2" * 16 + "-01")


def test_trajectory_is_scored_by_its_identity(recorded):
    """The score is the only span of a trace, with identity, marker, and the time of the call."""
    with rollout_trace_attr(step=1, sample_index=7, rollout_n=0, name="around"):
        score("reward", 0.5, comment="late", step=np.int64(3), sample_index="7", rollout_n=2.0, validate=True)
    score("advantage", -1.0, step=3, sample_index=8)
    first, root, second = recorded()
    assert first.span.trace_id not in (root.span.trace_id, second.span.trace_id)
    assert (first.name, first.span.parent_span_id, second.span.parent_span_id) == ("score reward", b"", b"")
    assert {key: value for key, value in first.attributes.items() if key.startswith("rollout.")} == {
        "rollout.project_name": "project",
        "rollout.experiment_name": root.attributes["rollout.experiment_name"],
        "rollout.step": 3,
        "rollout.sample_index": "7",
        "rollout.rollout_n": 2,
        "rollout.validate": True,
        "rollout.score_origin": "identity",
    }
    assert "rollout.rollout_n" not in second.attributes
    assert second.attributes["rollout.validate"] is False
    read = evaluations.recorded_in(first.attributes, first.span.start_time_unix_nano)
    assert (read.name, read.value, read.comment, read.origin) == ("reward", 0.5, "late", "identity")
    assert first.span.start_time_unix_nano < root.span.end_time_unix_nano


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"step": 1}, "a trajectory is named by step= and sample_index="),
        ({"sample_index": 1, "rollout_n": 0}, "a trajectory is named by step= and sample_index="),
        ({"validate": True}, "a trajectory is named by step= and sample_index="),
        ({"step": 1, "sample_index": 1, "trajectory": "00-1-1-01"}, "it has trajectory= and step="),
    ],
)
def test_unclear_identity_is_refused_with_one_warning(recorded, caplog, given, line):
    """Nothing is recorded or raised, also inside a trajectory."""
    with rollout_trace_attr():
        for _ in range(3):
            score("reward", 1.0, **given)
    assert [span.name for span in recorded()] == ["rollout_trace"]
    [warning] = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    assert line in warning
    assert otel_rollout.status().sampled_out == {}


def test_score_by_identity_of_a_group_that_is_sampled_out_is_counted(fresh_process, tmp_path):
    """The group's name tells, in any process, that its trajectories are not recorded."""
    otel_rollout.configure("spool", spool_dir=tmp_path / "spool", sample_rate=0.5)
    for row in range(40):
        with rollout_trace_attr(step=1, sample_index=row):
            pass
        score("reward", 1.0, step=1, sample_index=row)
    counts = otel_rollout.status().sampled_out
    assert counts["sampled_out"] == counts["score_of_unrecorded"] > 0
    otel_rollout.shutdown(30)
    spans = read_directory(tmp_path / "spool")
    rows = [
        [s.attributes["rollout.sample_index"] for s in spans if s.name == name]
        for name in ("rollout_trace", "score reward")
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 40 - counts["sampled_out"]


@pytest.mark.parametrize("sampler", ["always_off", "traceidratio"])
def test_score_by_identity_is_recorded_whatever_the_sampler_decides(
    fresh_process, tmp_path, monkeypatch, sampler
):
    """A sampler decides by trace ids, and the score's trace is not the trajectory's."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    otel_rollout.configure("spool", spool_dir=tmp_path / "spool")
    score("reward", 1.0, step=1, sample_index=1)
    assert otel_rollout.status().recorded == 1


def test_score_by_identity_without_tracing_does_nothing():
    """Without tracing, code that scores by identity still runs."""
    score("reward", 1.0, step=1, sample_index=1)
    score("reward", 1.0, step=1)
