"""Recorded trajectories, read back from server and database by MLflow's client."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import SpanStatusCode, Trace, TraceState
from mlflow_support import not_in_3_14, stored
from opentelemetry import trace as otel

from otel_rollout.otlp.json_line import spans_of
from otel_rollout_mlflow.server_target import ServerTarget
from otel_rollout_mlflow.settings import resolve
from otel_rollout_mlflow.trace_reader import MlflowTraces
from tests.fake_server import serving
from tests.sdk_spans import JSON, Rollouts, deliver


def tree(trace: Trace) -> dict[str, tuple[str | None, str, Any, Any]]:
    """Map each span's name to its parent's name, type, inputs and outputs."""
    name_of = {span.span_id: span.name for span in trace.data.spans}
    return {
        span.name: (name_of.get(span.parent_id), span.span_type, span.inputs, span.outputs)
        for span in trace.data.spans
    }


def test_trajectory_reads_back_as_recorded(uri, project, rollouts, exporter_for):
    """Names, parents, inputs, outputs and times are those that were recorded."""
    rollouts.trajectory()
    spans = rollouts.ended()

    deliver(exporter_for(uri), spans)

    [trace] = stored(uri, project)
    assert tree(trace) == {
        "Agent.run": (None, "AGENT", {"question": "3+4?"}, {"answer": "7"}),
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


def test_trajectory_has_the_tags_that_verl_users_search(uri, project, rollouts, exporter_for):
    """Identity, extras and scores are trace tags holding str(value)."""
    rollouts.identity["rollout.policy_version"] = 12
    rollouts.trajectory()

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
        pytest.param("feedback.reward > 0.8", marks=not_in_3_14),
        "tags.reward = '0.9'",
        "span.type = 'RETRIEVER'",
    ],
)
def test_search_finds_one_trajectory_by_each_criterion(uri, project, rollouts, exporter_for, matching):
    """Step, name, score and span type each single out the trajectory that has them."""
    rollouts.trajectory()
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


@not_in_3_14
def test_batch_sent_twice_is_stored_once(uri, project, rollouts, exporter_for):
    """Calls or spans and scores read back as after one delivery."""
    rollouts.trajectory()
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


@not_in_3_14
def test_root_exported_after_its_children_completes_the_trace(uri, project, rollouts, exporter_for):
    """A trace whose root comes in a later export is whole and searchable."""
    rollouts.trajectory()
    *children, root = rollouts.ended()
    exporter = exporter_for(uri)

    deliver(exporter, children)
    [running] = stored(uri, project)
    assert running.info.state is TraceState.IN_PROGRESS
    deliver(exporter, [root])

    [trace] = stored(uri, project, "tags.step = '1' AND feedback.reward > 0.2")
    assert trace.info.state is TraceState.OK
    assert set(tree(trace)) == {"Agent.run", "generate", "calculator"}


def test_tokens_of_a_late_model_call_are_added_to_a_scored_trace(uri, project, rollouts, exporter_for):
    """Writing the score does not freeze the trace."""
    rollouts.trajectory()
    generate, calculator, root = rollouts.ended()
    exporter = exporter_for(uri)

    deliver(exporter, [calculator, root])
    deliver(exporter, [generate])

    [trace] = stored(uri, project)
    assert json.loads(trace.info.trace_metadata["mlflow.trace.tokenUsage"])["total_tokens"] == 8


@not_in_3_14
def test_late_score_becomes_feedback(uri, project, rollouts, exporter_for):
    """A late evaluation span of another library adds a tag, and leaves the trace's state unchanged."""
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
    assert after.info.tags == {**before.info.tags, "reward": "0.75"}
    assert (after.info.state, after.info.request_time) == (before.info.state, before.info.request_time)


def test_score_delivered_before_its_trajectory_is_kept(uri, project, rollouts, exporter_for):
    """A score by id from another node starts the trace, and the root completes it."""
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
    """An application may set any attribute.

    Only an evaluation span is a score from outside.
    """
    with rollouts.span("Agent.run", "AGENT", rollout__score_origin="outside"):
        pass
    deliver(exporter_for(uri), rollouts.ended())
    [found] = stored(uri, project)
    assert [span.name for span in found.data.spans] == ["Agent.run"]
    assert found.info.state.value == "OK"


def test_newer_score_of_a_name_replaces_the_older(uri, project, rollouts, exporter_for):
    """Root attribute and evaluation span of one name are one feedback, the newest."""
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


def test_root_exported_after_its_score_keeps_the_comment(uri, project, rollouts, exporter_for):
    """The root repeats the score without its comment."""
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


def test_failed_operation_has_its_exception_event(uri, project, rollouts, exporter_for):
    """A failed operation is an ERROR span, and a failed root an ERROR trace."""
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


def test_span_link_keeps_its_target(uri, project, rollouts, exporter_for):
    """A link points to one trace and span before and after."""
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


def test_validation_has_a_session_of_its_own(uri, project, rollouts, exporter_for):
    """Validation at step 1 is not in the session of training step 1."""
    rollouts.identity["rollout.validate"] = True
    with rollouts.span("Agent.run", "AGENT"):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    [trace] = stored(uri, project, "tags.validate = 'True'")
    assert trace.info.trace_metadata["mlflow.trace.session"] == "step 1 (validation) - grpo"


def test_all_traces_are_linked_to_the_run(uri, project, rollouts, exporter_for):
    """The run finds all 120 traces, though MLflow links at most 100 per request."""
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


def test_span_of_other_instrumentation_goes_to_its_trace(uri, project, rollouts, exporter_for):
    """A span without a project goes to its trace's project, even if it comes first."""
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


def test_experiment_of_the_settings_takes_all_spans(uri, project, rollouts, exporter_for, monkeypatch):
    """An experiment from an argument wins over one from the environment."""
    for name in ("environment", "argument"):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"{project}-environment")
        arguments = {"experiment_name": f"{project}-argument"} if name == "argument" else {}
        with rollouts.span(name):
            pass
        deliver(exporter_for(uri, **arguments), rollouts.ended())

        [trace] = stored(uri, f"{project}-{name}")
        assert trace.info.tags["mlflow.traceName"] == name


def test_span_without_a_project_goes_to_the_default_experiment(uri, rollouts, exporter_for):
    """It is found in MLflow's Default experiment."""
    name = f"foreign-{time.time_ns()}"
    with rollouts.foreign_span(name):
        pass

    deliver(exporter_for(uri), rollouts.ended())

    assert len(stored(uri, "Default", f"trace.name = '{name}'")) == 1


def test_traces_of_a_server_are_read_page_by_page():
    """Each page names the next one, until one does not."""
    route = "/api/3.0/mlflow/traces/search"
    with serving({route: (200, {}, b'{"traces": [{"trace_id": "tr-1"}], "next_page_token": "2"}')}) as fake:
        target = ServerTarget(resolve(tracking_uri=fake.uri))
        found = target.traces_of("tags.step = '1'", ["7"])
        assert next(found) == {"trace_id": "tr-1"}
        fake.answers[route] = (200, {}, b'{"traces": [{"trace_id": "tr-2"}]}')
        assert list(found) == [{"trace_id": "tr-2"}]
        asked = [json.loads(request.body) for request in fake.requests(route)]
        target.close()
    assert [each.get("page_token") for each in asked] == [None, "2"]
    assert {each["filter"] for each in asked} == {"tags.step = '1'"}


def test_trace_is_read_with_the_texts_that_were_recorded(uri, project, rollouts, exporter_for):
    """Input and output are JSON text again, so a table made of MLflow has replies, messages and arguments."""
    with rollouts.span("run", "AGENT"):
        rollouts.trajectory()
        with rollouts.span("search", "TOOL", input__value='"q"', output__value='"found \\"wool\\""', **JSON):
            pass
    spans = rollouts.ended()
    deliver(exporter_for(uri), spans)

    traces = MlflowTraces(uri, project)
    [found] = traces.find({"step": ""})
    read = spans_of(traces.line_of(found))
    traces.close()

    def said(of):
        return {
            span.name: [
                (json.loads(span.attributes[f"{side}.value"]), span.attributes[f"{side}.mime_type"])
                for side in ("input", "output")
            ]
            for span in of
            if "input.value" in span.attributes
        }

    assert said(read) == said(spans)
