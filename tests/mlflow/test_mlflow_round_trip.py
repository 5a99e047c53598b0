"""What was recorded is what MLflow's own client reads back, by either way in."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import SpanStatusCode, Trace, TraceState
from mlflow_support import stored
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout_mlflow import mapping
from otel_rollout_mlflow.exporter import requests_of
from tests.sdk_spans import Rollouts, deliver

JSON = {"input__mime_type": "application/json", "output__mime_type": "application/json"}


def record_trajectory(rollouts: Rollouts, name: str = "Agent.run") -> None:
    """agent → (generate, calculator), a score at the end."""
    with rollouts.span(
        name, "AGENT", input__value='{"question": "3+4?"}', output__value='"7"', **JSON
    ) as root:
        with rollouts.span(
            "generate",
            "LLM",
            input__value='{"ids": [1, 2, 3]}',
            output__value='{"text": "calc(3+4)"}',
            gen_ai__usage__input_tokens=3,
            gen_ai__usage__output_tokens=5,
            **JSON,
        ):
            pass
        with rollouts.span(
            "calculator", "TOOL", input__value='{"expression": "3+4"}', output__value="7", **JSON
        ):
            pass
        root.set_attribute("rollout.score.reward", 0.5)


def tree(trace: Trace) -> dict[str, tuple[str | None, str, Any, Any]]:
    """name → (parent's name, type, inputs, outputs)."""
    name_of = {span.span_id: span.name for span in trace.data.spans}
    return {
        span.name: (name_of.get(span.parent_id), span.span_type, span.inputs, span.outputs)
        for span in trace.data.spans
    }


def test_a_trajectory_arrives_as_recorded(uri, project, rollouts, exporter_for):
    """Names, parents, types, inputs, outputs and times in ns come back as they were recorded."""
    record_trajectory(rollouts)
    spans = rollouts.ended()

    deliver(exporter_for(uri), spans)

    [trace] = stored(uri, project)
    assert tree(trace) == {
        "Agent.run": (None, "AGENT", {"question": "3+4?"}, "7"),
        "generate": ("Agent.run", "LLM", {"ids": [1, 2, 3]}, {"text": "calc(3+4)"}),
        "calculator": ("Agent.run", "TOOL", {"expression": "3+4"}, 7),
    }
    assert {span.name: (span.start_time_ns, span.end_time_ns) for span in trace.data.spans} == {
        span.name: (span.start_time, span.end_time) for span in spans
    }
    assert trace.info.state is TraceState.OK
    root = next(span for span in trace.data.spans if span.parent_id is None)
    assert "input.value" not in root.attributes
    assert "output.value" not in root.attributes


def test_a_trajectory_is_tagged_as_verl_users_search(uri, project, rollouts, exporter_for):
    """The five identity tags, the extras and the scores are trace tags holding str(value)."""
    rollouts.identity["rollout.policy_version"] = 12
    record_trajectory(rollouts)

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project)
    tags = {key: value for key, value in trace.info.tags.items() if not key.startswith("mlflow.")}
    assert tags == {
        "step": "1",
        "sample_index": "7",
        "rollout_n": "0",
        "validate": "False",
        "experiment_name": "grpo",
        "policy_version": "12",
        "reward": "0.5",
    }
    assert trace.info.tags["mlflow.traceName"] == "Agent.run"
    assert trace.info.trace_metadata["mlflow.trace.session"] == "step 1 - grpo"
    assert json.loads(trace.info.request_preview) == {"question": "3+4?"}
    assert json.loads(trace.info.trace_metadata["mlflow.trace.tokenUsage"]) == {
        "input_tokens": 3,
        "output_tokens": 5,
        "total_tokens": 8,
    }


@pytest.mark.parametrize(
    "matching",
    [
        "tags.step = '2'",
        "tags.step = '2' AND tags.validate = 'False' AND tags.sample_index = '7'",
        "trace.name = 'Agent.other'",
        "feedback.reward > 0.8",
        "tags.reward = '0.9'",
        "span.type = 'RETRIEVER'",
    ],
)
def test_search_finds_the_one_trajectory_meant(uri, project, rollouts, exporter_for, matching):
    """Step, name, score and span type each single out the trajectory that has them."""
    record_trajectory(rollouts)
    rollouts.identity["rollout.step"] = 2
    with (
        rollouts.span("Agent.other", "AGENT", rollout__score__reward=0.9),
        rollouts.span("lookup", "RETRIEVER"),
    ):
        pass
    deliver(exporter_for(uri), rollouts.ended())

    assert [trace.info.tags["mlflow.traceName"] for trace in stored(uri, project, matching)] == [
        "Agent.other"
    ]


def test_sending_again_changes_nothing(uri, project, rollouts, exporter_for):
    """A batch that is delivered twice reads back like one that is delivered once."""
    record_trajectory(rollouts)
    spans = rollouts.ended()
    exporter = exporter_for(uri)

    deliver(exporter, spans)
    [once] = stored(uri, project)
    deliver(exporter, spans)
    [twice] = stored(uri, project)

    assert tree(once) == tree(twice)
    assert once.info.tags == twice.info.tags
    assert once.info.trace_metadata == twice.info.trace_metadata
    assert (once.info.state, once.info.request_time, once.info.execution_duration) == (
        twice.info.state,
        twice.info.request_time,
        twice.info.execution_duration,
    )
    assert [(score.name, score.value) for score in twice.info.assessments] == [("reward", 0.5)]


def test_children_may_come_before_their_root(uri, project, rollouts, exporter_for):
    """A trace whose root comes in a later export is whole and searchable in the end."""
    record_trajectory(rollouts)
    *children, root = rollouts.ended()
    exporter = exporter_for(uri)

    deliver(exporter, children)
    [running] = stored(uri, project)
    assert running.info.state is TraceState.IN_PROGRESS
    deliver(exporter, [root])

    [trace] = stored(uri, project, "tags.step = '1' AND feedback.reward > 0.2")
    assert trace.info.state is TraceState.OK
    assert set(tree(trace)) == {"Agent.run", "generate", "calculator"}


def test_what_comes_after_a_scored_root_still_counts(uri, project, rollouts, exporter_for):
    """Writing the score does not freeze the trace: tokens of a model call delivered later are added."""
    record_trajectory(rollouts)
    generate, calculator, root = rollouts.ended()
    exporter = exporter_for(uri)

    deliver(exporter, [calculator, root])
    deliver(exporter, [generate])

    [trace] = stored(uri, project)
    assert json.loads(trace.info.trace_metadata["mlflow.trace.tokenUsage"])["total_tokens"] == 8


def test_a_late_score_becomes_feedback(uri, project, rollouts, exporter_for):
    """An evaluation span sent long after its trajectory adds a Feedback and leaves state and tags alone."""
    with rollouts.span("Agent.run", "AGENT") as root:
        pass
    exporter = exporter_for(uri)
    deliver(exporter, rollouts.ended())
    [before] = stored(uri, project)
    with (
        otel.use_span(root, end_on_exit=False),
        rollouts.span(
            "score reward",
            "EVALUATOR",
            gen_ai__evaluation__name="reward",
            gen_ai__evaluation__score__value=0.75,
            gen_ai__evaluation__explanation="exact match",
        ),
    ):
        pass

    deliver(exporter, rollouts.ended())

    [after] = stored(uri, project, "feedback.reward > 0.7")
    [feedback] = after.info.assessments
    assert (feedback.value, feedback.rationale) == (0.75, "exact match")
    assert feedback.span_id == f"{root.get_span_context().span_id:016x}"
    assert tree(after)["score reward"][:2] == ("Agent.run", "EVALUATOR")
    assert after.info.tags == before.info.tags
    assert (after.info.state, after.info.request_time) == (before.info.state, before.info.request_time)


def test_a_score_that_comes_before_its_trajectory_is_kept(uri, project, rollouts, exporter_for):
    """Given by id and delivered first, by another node, it begins the trace; the root completes it."""
    with rollouts.span("Agent.run", "AGENT") as root:
        pass
    above = otel.set_span_in_context(otel.NonRecordingSpan(root.get_span_context()))
    with rollouts.span(
        "score reward",
        "EVALUATOR",
        above,
        rollout__score_origin="outside",
        gen_ai__evaluation__name="reward",
        gen_ai__evaluation__score__value=0.75,
    ):
        pass
    ended, score = rollouts.ended()
    exporter = exporter_for(uri)
    deliver(exporter, [score])
    deliver(exporter, [ended])
    [found] = stored(uri, project)
    assert found.info.state.value == "OK"
    assert [(one.name, one.value) for one in found.info.assessments] == [("reward", 0.75)]
    assert (found.info.tags["reward"], found.info.tags["step"]) == ("0.75", "1")


def test_span_that_is_no_score_is_stored_whatever_its_score_origin(uri, project, rollouts, exporter_for):
    """An application may set any attribute; only an evaluation span is a score from outside."""
    with rollouts.span("Agent.run", "AGENT", rollout__score_origin="outside"):
        pass
    deliver(exporter_for(uri), rollouts.ended())
    [found] = stored(uri, project)
    assert [span.name for span in found.data.spans] == ["Agent.run"]
    assert found.info.state.value == "OK"


def test_a_score_given_again_replaces_the_first(uri, project, rollouts, exporter_for):
    """Root attribute and evaluation span of one name are one Feedback, with the value given last."""
    with rollouts.span("Agent.run", "AGENT", rollout__score__reward=0.1) as root:
        pass
    with (
        otel.use_span(root, end_on_exit=False),
        rollouts.span(
            "score reward",
            "EVALUATOR",
            gen_ai__evaluation__name="reward",
            gen_ai__evaluation__score__value=0.9,
        ),
    ):
        pass
    exporter = exporter_for(uri)

    *_, late = spans = rollouts.ended()
    deliver(exporter, spans[:1])
    deliver(exporter, [late])

    [trace] = stored(uri, project)
    assert [(score.name, score.value) for score in trace.info.assessments] == [("reward", 0.9)]


def test_a_root_that_ends_after_its_scores_leaves_their_comments(uri, project, rollouts, exporter_for):
    """What the root repeats of a score, in an export of its own, does not undo the comment given with it."""
    with (
        rollouts.span("Agent.run", "AGENT", rollout__score__solved=True),
        rollouts.span(
            "score solved",
            "EVALUATOR",
            gen_ai__evaluation__name="solved",
            gen_ai__evaluation__score__value=1.0,
            gen_ai__evaluation__score__label="True",
            gen_ai__evaluation__explanation="the tests pass",
        ),
    ):
        pass
    exporter = exporter_for(uri)
    for span in rollouts.ended():
        deliver(exporter, [span])

    [trace] = stored(uri, project)
    [feedback] = trace.info.assessments
    assert (feedback.value, feedback.rationale) == (True, "the tests pass")


def test_an_exception_is_kept_with_its_event(uri, project, rollouts, exporter_for):
    """A failed operation is an ERROR span with its exception event, and a failed root an ERROR trace."""
    with pytest.raises(ValueError, match="no such tool"), rollouts.span("Agent.run", "AGENT"):
        raise ValueError("no such tool")
    [recorded] = rollouts.ended()

    deliver(exporter_for(uri), [recorded])

    [trace] = stored(uri, project)
    [span] = trace.data.spans
    assert trace.info.state is TraceState.ERROR
    assert span.status.status_code is SpanStatusCode.ERROR
    [event] = span.events
    assert (event.name, event.timestamp) == ("exception", recorded.events[0].timestamp)
    assert event.attributes["exception.message"] == "no such tool"


def test_links_keep_their_targets(uri, project, rollouts, exporter_for):
    """A span link points to the same trace and span in MLflow."""
    with rollouts.span("first"):
        first = otel.get_current_span().get_span_context()
    with rollouts.span("second") as second:
        second.add_link(first, {"why": "resumed"})

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project, "trace.name = 'second'")
    [link] = trace.data.spans[0].links
    assert (link.trace_id, link.span_id) == (f"tr-{first.trace_id:032x}", f"{first.span_id:016x}")


def test_only_useful_resource_attributes_become_tags(uri, project, exporter_for):
    """The service's name is a tag; ids of processes, files and hosts are not."""
    rollouts = Rollouts(
        project,
        {
            "service.name": "trainer",
            "service.instance.id": "worker-3",
            "rollout.segment.id": "0001",
            "host.name": "node-1",
            "telemetry.sdk.name": "opentelemetry",
        },
    )
    with rollouts.span("Agent.run", "AGENT"):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project)
    assert trace.info.tags["service.name"] == "trainer"
    assert not {"service.instance.id", "rollout.segment.id", "host.name"} & set(trace.info.tags)


def test_validation_is_a_session_of_its_own(uri, project, rollouts, exporter_for):
    """Validation at step 1 does not fall into the session of training step 1."""
    rollouts.identity["rollout.validate"] = True
    with rollouts.span("Agent.run", "AGENT"):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project, "tags.validate = 'True'")
    assert trace.info.trace_metadata["mlflow.trace.session"] == "step 1 (validation) - grpo"


def test_values_that_are_too_long_do_not_cost_the_batch(uri, project, rollouts, exporter_for):
    """A session id and names past MLflow's limits are cut, and a megabyte of input comes back whole."""
    big = "界" * 400_000
    with rollouts.span(
        "n" * 5000,
        "AGENT",
        session__id="s" * 1000,
        input__value=json.dumps({"text": big}),
        rollout__note="t" * 9000,
        rollout__score__bad=float("nan"),
        **JSON,
    ):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project)
    assert trace.data.spans[0].inputs == {"text": big}
    assert trace.info.trace_metadata["mlflow.trace.session"] == "s" * 250


def test_integers_beyond_64_bits_keep_no_trace_from_being_read(uri, project, rollouts, exporter_for):
    """They come back as their digits; of numbers MLflow's server gives back neither the trace nor others."""
    seeds = f'{{"seeds": [{2**64 - 1}, {-(2**63) - 1}, {2**63 - 1}], "text": "{2**70}", "cut": "\\ud83d"}}'
    with rollouts.span("op", input__value=seeds, input__mime_type="application/json"):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project)
    inputs = trace.data.spans[0].inputs
    assert inputs["seeds"] == [str(2**64 - 1), str(-(2**63) - 1), 2**63 - 1]
    assert inputs["text"] == str(2**70)


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**40])
@pytest.mark.parametrize("before", range(40))
def test_integers_beyond_64_bits_are_found_wherever_they_stand(before, number):
    """Whatever stands before it, a number that MLflow cannot hold is text, and one that it can is none."""
    given = json.dumps(["a" * before, number, "a"])
    attributes = {"input.value": given, "input.mime_type": "application/json"}
    shown = mapping.to_mlflow(ReadableSpan("op", otel.SpanContext(1, 1, False), attributes=attributes))
    kept = number if number < 2**63 else str(number)
    assert json.loads(shown.attributes["mlflow.spanInputs"]) == ["a" * before, kept, "a"]


NUMBERS = ["0", "-0.0", "1.0", "1e22", "-1e22", "1e300", "5e-324", "0.1", str(2**53 + 1), "1e16"]
NUMBERS += [str(2**63 - 1), str(-(2**63)), "true", "false", "null"]


def test_every_number_comes_back_with_its_type(sqlite_uri, project, rollouts, exporter_for):
    """Alone, in an object and in a list: 1.0 stays a float, 1e22 is no text, the smallest integer is one."""
    shapes = ["{}", '{{"held": {}}}', "[{}, {}]"]
    texts = [shape.format(number, number) for number in NUMBERS for shape in shapes]
    for text in texts:
        with rollouts.span(text, "AGENT", input__value=text, output__value=text, **JSON):
            pass
    deliver(exporter_for(sqlite_uri), rollouts.ended())
    shown = {trace.data.spans[0].name: trace.data.spans[0] for trace in stored(sqlite_uri, project)}
    for text in texts:
        assert repr(shown[text].inputs) == repr(shown[text].outputs) == repr(json.loads(text)), text


@pytest.mark.parametrize(
    ("text", "mime_type", "expected"),
    [
        ('{"a": [1, null]}', "application/json", {"a": [1, None]}),
        ('"text"', "application/json", "text"),
        ("0.25", "application/json", 0.25),
        ("true", "application/json", True),
        ("null", "application/json", None),
        ("123456789012345678901234567890", "application/json", "123456789012345678901234567890"),
        ("plain words", "text/plain", "plain words"),
        ('{"looks": "like JSON"}', "text/plain", '{"looks": "like JSON"}'),
        ("42", "text/plain", "42"),
        ("", "text/plain", ""),
    ],
)
def test_every_kind_of_value_comes_back_as_itself(
    sqlite_uri, project, rollouts, exporter_for, text, mime_type, expected
):
    """JSON is read back as the value it stands for, and text as the same text."""
    with rollouts.span("op", input__value=text, input__mime_type=mime_type):
        pass

    deliver(exporter_for(sqlite_uri), rollouts.ended())

    [trace] = stored(sqlite_uri, project)
    assert trace.data.spans[0].inputs == expected


def test_traces_are_linked_to_the_run(uri, project, rollouts, exporter_for):
    """All of 120 traces are found by the run, though MLflow links at most 100 in one request."""
    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.create_experiment(project)
    run_id = client.create_run(experiment_id).info.run_id
    for _ in range(120):
        with rollouts.span("Agent.run", "AGENT"):
            pass

    deliver(exporter_for(uri, run_id=run_id), rollouts.ended())

    linked = client.search_traces(
        locations=[experiment_id], run_id=run_id, max_results=500, include_spans=False
    )
    assert len(linked) == 120


def test_requests_are_bounded_in_bytes(rollouts):
    """Spans that do not fit one request go in several, and one that never fits goes alone."""
    with rollouts.span("Agent.run", "AGENT"):
        for size in (20_000, 4_000, 4_000, 4_000, 4_000):
            with rollouts.span("generate", "LLM", input__value="x" * size):
                pass

    requests = list(requests_of(rollouts.ended(), max_bytes=10_000))

    counts = [len(request.resource_spans[0].scope_spans[0].spans) for request in requests]
    assert sum(counts) == 6
    assert [counts[at] for at, request in enumerate(requests) if request.ByteSize() > 10_000] == [1]


def test_spans_of_other_instrumentation_stay_with_their_trace(uri, project, rollouts, exporter_for):
    """A span that names no project lands in its trace's experiment, even where it comes first."""
    exporter = exporter_for(uri)
    with rollouts.span("warm-up"):
        pass
    deliver(exporter, rollouts.ended())
    with rollouts.span("Agent.run", "AGENT"), rollouts.foreign_span("GET /search"):
        pass
    foreign, root = rollouts.ended()

    deliver(exporter, [foreign])
    deliver(exporter, [root])

    [trace] = stored(uri, project, "trace.name = 'Agent.run'")
    assert set(tree(trace)) == {"Agent.run", "GET /search"}


def test_the_experiment_can_be_overridden(uri, project, rollouts, exporter_for, monkeypatch):
    """An experiment from the environment takes all spans, and one from an argument wins over it."""
    for name in ("environment", "argument"):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"{project}-environment")
        arguments = {"experiment_name": f"{project}-argument"} if name == "argument" else {}
        with rollouts.span(name):
            pass
        deliver(exporter_for(uri, **arguments), rollouts.ended())

        [trace] = stored(uri, f"{project}-{name}")
        assert trace.info.tags["mlflow.traceName"] == name


def test_spans_without_a_project_go_to_the_default_experiment(uri, rollouts, exporter_for):
    """A trace that names no project is found in MLflow's Default experiment."""
    name = f"foreign-{time.time_ns()}"
    with rollouts.foreign_span(name):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    assert len(stored(uri, "Default", f"trace.name = '{name}'")) == 1


def test_export_after_shutdown_fails_quietly(sqlite_uri, rollouts, exporter_for):
    """After shutdown an export is a FAILURE with a reason, not an exception."""
    exporter = exporter_for(sqlite_uri)
    exporter.shutdown()

    assert exporter.export(rollouts.ended()) is SpanExportResult.FAILURE
    assert "shut down" in exporter.last_failure.message
    assert exporter.force_flush() is True
