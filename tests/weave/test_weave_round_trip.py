"""What was recorded is what the unmodified weave client reads back from Weave's own server."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from opentelemetry import trace as otel

from tests.local_weave import ENTITY, where
from tests.sdk_spans import JSON, ROLLOUT_RUN, deliver


def named(calls, name):
    """The one call of that name."""
    [call] = [call for call in calls if call["op_name"] == name]
    return call


def names(calls):
    return [call["op_name"] for call in calls]


def test_a_trajectory_arrives_as_recorded(weave, project, rollouts, exporter):
    """Names, parents, inputs, outputs and times come back as they were recorded, under one trace id."""
    rollouts.trajectory()
    spans = rollouts.ended()

    deliver(exporter, spans)

    calls = weave.calls(project)
    root = named(calls, "Agent.run")
    name_of = {call["id"]: call["op_name"] for call in calls}
    assert {
        call["op_name"]: (name_of.get(call["parent_id"]), call["inputs"], call["output"]) for call in calls
    } == {
        "Agent.run": (None, {"question": "3+4?"}, {"answer": "7", "reward": 0.5}),
        "generate": ("Agent.run", {"ids": [1, 2, 3]}, {"text": "calc(3+4)"}),
        "calculator": ("Agent.run", {"expression": "3+4"}, 7),
    }
    assert names(weave.children(project, root["id"])) == ["generate", "calculator"]
    assert {call["trace_id"] for call in calls} == {f"{spans[0].context.trace_id:032x}"}
    assert {
        name: (at(call["started_at"]), at(call["ended_at"])) for name, call in by_name(calls).items()
    } == {span.name: (span.start_time // 1000, span.end_time // 1000) for span in spans}


def by_name(calls):
    return {call["op_name"]: call for call in calls}


def at(iso):
    """Unix time in µs, exactly."""
    since = datetime.fromisoformat(iso) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86400 + since.seconds) * 10**6 + since.microseconds


def test_status_usage_and_latency_are_in_the_summary(weave, project, rollouts, exporter):
    """Weave shows tokens per model, latency and status of each call."""
    rollouts.trajectory()
    spans = {span.name: span for span in rollouts.ended()}

    deliver(exporter, list(spans.values()))

    generate = named(weave.calls(project), "generate")["summary"]
    assert generate["usage"] == {
        "qwen": {"requests": 1, "input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    }
    assert generate["status_counts"] == {"success": 1, "error": 0}
    assert generate["weave"]["status"] == "success"
    took = (spans["generate"].end_time - spans["generate"].start_time) / 1e6
    assert abs(generate["weave"]["latency_ms"] - took) <= 1


FILTERS = [
    {"attributes__step": 2},
    {"attributes__sample_index": 7, "attributes__rollout_n": 3},
    {"attributes__validate": True},
    {"attributes__experiment_name": "ppo"},
    {"attributes__policy_version": 12},
    {"attributes__weave__kind": "agent", "attributes__step": 2},
    {"output__reward": 0.9},
    {"feedback__[reward]__payload__value": 0.9},
]


def test_filters_find_the_one_trajectory_meant(weave, project, rollouts, exporter):
    """Each part of the identity, extras, kind and reward single out the trajectory that has them."""
    rollouts.trajectory()
    rollouts.identity |= {
        "rollout.step": 2,
        "rollout.rollout_n": 3,
        "rollout.validate": True,
        "rollout.experiment_name": "ppo",
        "rollout.policy_version": 12,
    }
    rollouts.trajectory("Agent.other", 0.9)
    deliver(exporter, rollouts.ended())

    for matching in FILTERS:
        found = weave.calls(project, query=where(**matching), filter={"trace_roots_only": True})
        assert names(found) == ["Agent.other"], matching


def test_trajectories_sort_by_reward(weave, project, rollouts, exporter):
    """The best trajectory comes first, by the root's output as by feedback."""
    for reward in (0.25, 0.75, 0.5):
        rollouts.trajectory(f"Agent {reward}", reward)
    deliver(exporter, rollouts.ended())

    for field in ("output.reward", "feedback.[reward].payload.value"):
        by = [{"field": field, "direction": "desc"}]
        found = weave.calls(project, filter={"trace_roots_only": True}, sort_by=by)
        assert names(found) == ["Agent 0.75", "Agent 0.5", "Agent 0.25"], field


def test_a_score_is_feedback_on_what_was_scored(weave, project, rollouts, exporter):
    """A late evaluation becomes feedback of the trajectory, with its explanation, once."""
    rollouts.trajectory(reward=None)
    *_, root = spans = rollouts.ended()
    deliver(exporter, spans)
    with otel.use_span(otel.NonRecordingSpan(root.context)):
        rollouts.evaluation("reward", 0.75, "exact match")
    late = rollouts.ended()

    deliver(exporter, late)

    [feedback] = weave.feedback(project)
    call = named(weave.calls(project), "Agent.run")
    assert feedback["weave_ref"].endswith(f"/{ENTITY}/{project}/call/{call['id']}")
    assert feedback["feedback_type"] == "reward"
    assert (feedback["payload"]["value"], feedback["payload"]["explanation"]) == (0.75, "exact match")
    assert call["output"] == {"answer": "7"}


def test_a_score_given_again_replaces_the_first(weave, project, rollouts, exporter):
    """Root attribute and evaluation span of one name are one feedback, with the value given last."""
    rollouts.trajectory(reward=0.1)
    *_, root = spans = rollouts.ended()
    deliver(exporter, spans)
    with otel.use_span(otel.NonRecordingSpan(root.context)):
        rollouts.evaluation("reward", 0.9)
    deliver(exporter, rollouts.ended())

    assert [score["payload"]["value"] for score in weave.feedback(project)] == [0.9]


def test_sending_again_changes_nothing(weave, project, rollouts, new_exporter):
    """A batch delivered twice, by the same exporter or its successor, is there once: calls and scores."""
    rollouts.trajectory()
    spans = rollouts.ended()
    exporter = new_exporter()
    deliver(exporter, spans)
    once = weave.calls(project), weave.feedback(project)

    deliver(exporter, spans)
    deliver(new_exporter(), spans)

    calls, feedback = weave.calls(project), weave.feedback(project)
    assert calls == once[0]
    assert [score["payload"] for score in feedback] == [score["payload"] for score in once[1]]


def test_an_exception_is_kept(weave, project, rollouts, exporter):
    """A failed operation shows type, message and frames, and counts as an error."""
    with pytest.raises(ValueError, match="no such tool"), rollouts.span("Agent.run", "AGENT"):
        raise ValueError("no such tool")

    deliver(exporter, rollouts.ended())

    [call] = weave.calls(project)
    told = json.loads(call["exception"])
    assert (told["type"], told["message"]) == ("ValueError", "no such tool")
    assert told["traceback"][-1]["filename"] == __file__
    assert call["summary"]["weave"]["status"] == "error"
    [event] = call["attributes"]["otel"]["events"]
    assert event["attributes"]["exception.stacktrace"].startswith("Traceback")


def test_a_trajectory_is_a_thread_and_its_model_calls_are_turns(weave, project, rollouts, exporter):
    """The Threads page lists each trajectory, with as many turns as the model was called."""
    rollouts.trajectory()
    with rollouts.span("Agent.long", "AGENT"):
        for _ in range(3):
            with rollouts.span("generate", "LLM"):
                pass
    spans = rollouts.ended()

    deliver(exporter, spans)

    assert {thread["thread_id"]: thread["turn_count"] for thread in weave.threads(project)} == {
        f"{spans[0].context.trace_id:032x}": 1,
        f"{spans[-1].context.trace_id:032x}": 3,
    }


def test_calls_belong_to_the_run_and_step(weave, project, rollouts, new_exporter, monkeypatch):
    """WANDB_RUN_ID links every call to the run, at its training step."""
    monkeypatch.setenv("WANDB_RUN_ID", "run7")
    rollouts.trajectory()

    deliver(new_exporter(), rollouts.ended())

    linked = {(call["wb_run_id"], call["wb_run_step"]) for call in weave.calls(project)}
    assert linked == {(f"{ENTITY}/{project}/run7", 1)}


def test_a_run_that_starts_later_is_linked(weave, project, rollouts, new_exporter):
    """Earlier trajectories get the run as feedback, once; later ones belong to it; others are untouched."""
    run = f"{ENTITY}/{project}/run8"
    rollouts.trajectory("early")
    exporter = new_exporter()
    deliver(exporter, rollouts.ended())

    assert exporter.link_run(run, ROLLOUT_RUN) is None
    rollouts.trajectory("late")
    deliver(exporter, rollouts.ended())
    assert exporter.link_run(run, ROLLOUT_RUN) is None
    assert new_exporter().link_run(run, ROLLOUT_RUN) is None
    assert new_exporter().link_run(f"{ENTITY}/{project}/other", "another rollout") is None

    early = weave.calls(project, query=where(feedback__x="y") | linked_by_feedback(run))
    assert names(early) == ["early"]
    by_run = weave.calls(project, filter={"wb_run_ids": [run], "trace_roots_only": True})
    assert names(by_run) == ["late"]
    links = [score for score in weave.feedback(project) if score["feedback_type"] == "wb_run"]
    assert [link["payload"]["value"] for link in links] == [run]
    assert len(weave.calls(project)) == 6


def linked_by_feedback(run):
    return {"$expr": {"$eq": [{"$getField": "feedback.[wb_run].payload.value"}, {"$literal": run}]}}


def test_a_bad_run_is_explained(exporter):
    """A reference that is not entity/project/run is refused with the form expected."""
    failure = exporter.link_run("run8", ROLLOUT_RUN)
    assert "entity/project/run" in failure.message


def test_a_running_trajectory_is_seen_until_it_ends(weave, project, rollouts, new_exporter):
    """Announced, it is listed as running; ended, it is there once, with inputs, and its children below it."""
    exporter = new_exporter()
    with rollouts.span("Agent.run", "AGENT", rollout__agent_name="slow") as root:
        exporter.announce([root])
        exporter.announce([root])
        [running] = weave.calls(project)
        with rollouts.span("generate", "LLM"):
            pass
        deliver(exporter, rollouts.ended())
        root.set_attribute("input.value", "asked late")
    deliver(exporter, rollouts.ended())

    assert running["summary"]["weave"]["status"] == "running"
    assert running["attributes"]["agent_name"] == "slow"
    calls = by_name(weave.calls(project))
    assert set(calls) == {"Agent.run", "generate"}
    assert calls["Agent.run"]["inputs"] == {"value": "asked late"}
    assert calls["generate"]["parent_id"] == calls["Agent.run"]["id"]


def test_a_successor_takes_off_what_was_announced(weave, project, rollouts, new_exporter):
    """A trajectory announced by a forwarder that died is neither announced again nor left running."""
    with rollouts.span("Agent.run", "AGENT") as root:
        new_exporter().announce([root])
        successor = new_exporter()
        successor.announce([root])
        assert len(weave.calls(project)) == 1
    spans = rollouts.ended()

    deliver(new_exporter(), spans)

    [call] = weave.calls(project)
    assert call["ended_at"] is not None


VALUES = [
    ('{"a": [1, null]}', "application/json", {"a": [1, None]}),
    ('"text"', "application/json", "text"),
    ("0.25", "application/json", 0.25),
    ("true", "application/json", True),
    ("null", "application/json", None),
    ("123456789012345678901234567890", "application/json", 123456789012345678901234567890),
    ('{"x": NaN, "y": [Infinity]}', "application/json", {"x": None, "y": [None]}),
    ('{"half": "\\ud800"}', "application/json", {"half": "?"}),
    ("not JSON", "application/json", "not JSON"),
    ("plain words", "text/plain", "plain words"),
    ('{"looks": "like JSON"}', "text/plain", '{"looks": "like JSON"}'),
    ("42", "text/plain", "42"),
    ("界 🎲", "text/plain", "界 🎲"),
    ("", "text/plain", ""),
]


def test_every_kind_of_value_comes_back_as_itself(weave, project, rollouts, exporter):
    """JSON is read back as the value it stands for, and text as the same text, on both sides of a call."""
    for number, (text, mime_type, _) in enumerate(VALUES):
        given = {"input__mime_type": mime_type, "output__mime_type": mime_type}
        with rollouts.span(f"op {number}", input__value=text, output__value=text, **given):
            pass

    deliver(exporter, rollouts.ended())

    calls = by_name(weave.calls(project))
    for number, (text, _, expected) in enumerate(VALUES):
        call = calls[f"op {number}"]
        assert call["output"] == expected, text
        assert call["inputs"] == (expected if isinstance(expected, dict) else {"value": expected}), text


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_line_separators_keep_no_project_from_being_read(weave, project, rollouts, exporter, separator):
    """Weave's client takes them for line ends of the answer: they come back as line ends of text."""
    text = f"one{separator}two"
    given = {
        "input__value": json.dumps({text: [text]}, ensure_ascii=False),
        "output__value": json.dumps(text),
    }
    with pytest.raises(ValueError, match="one"), rollouts.span(text, "AGENT", note=text, **given, **JSON):
        raise ValueError(text)
    deliver(exporter, rollouts.ended())
    [call] = weave.calls(project)
    assert (call["inputs"], call["output"]) == ({"one\ntwo": ["one\ntwo"]}, "one\ntwo")
    assert (call["display_name"], call["attributes"]["note"]) == ("one\ntwo", "one\ntwo")
    assert json.loads(call["exception"])["message"] == "one\ntwo"


def test_values_that_are_too_large_are_shortened_visibly(weave, project, rollouts, exporter):
    """Megabytes in one call arrive cut, saying so; what is small in the same call is whole."""
    big = "界" * 600_000
    with rollouts.span(
        "n" * 2000,
        "AGENT",
        input__value=json.dumps({"text": big, "question": "3+4?"}),
        output__value=json.dumps(["x" * 2_000_000]),
        rollout__note="kept",
        **JSON,
    ):
        pass
    with rollouts.span("many", output__value=json.dumps(list(range(600_000))), **JSON):
        pass

    deliver(exporter, rollouts.ended())

    calls = weave.calls(project)
    call = next(call for call in calls if call["op_name"] == "n" * 128)
    assert call["display_name"] == "n" * 1024
    assert call["inputs"]["question"] == "3+4?"
    assert call["inputs"]["text"].startswith("界" * 1000)
    assert "of 600000 characters left out" in call["inputs"]["text"]
    assert "of 2000000 characters left out" in call["output"][0]
    assert call["attributes"]["note"] == "kept"
    assert named(calls, "many")["output"]["shortened"].startswith("[0,1,2")


def test_attributes_are_where_filters_look(weave, project, rollouts, exporter):
    """Dotted names are nested; a name that cannot be, and events and links, are kept as well."""
    with rollouts.span("first"):
        first = otel.get_current_span().get_span_context()
    with rollouts.span(
        "second", gen_ai__request__temperature=0.5, app="x", app__mode="y", step="mine"
    ) as second:
        second.add_link(first, {"why": "resumed"})
        second.add_event("retried", {"attempt": 2})

    deliver(exporter, rollouts.ended())

    query = where(attributes__gen_ai__request__temperature=0.5)
    [call] = weave.calls(project, query=query)
    assert call["attributes"]["gen_ai"] == {"request": {"temperature": 0.5}}
    assert (call["attributes"]["app"], call["attributes"]["app.mode"]) == ("x", "y")
    assert (call["attributes"]["step"], call["attributes"]["_step"]) == (1, "mine")
    assert call["attributes"]["rollout_run_id"] == ROLLOUT_RUN
    otel_part = call["attributes"]["otel"]
    assert (otel_part["events"][0]["name"], otel_part["events"][0]["attributes"]) == (
        "retried",
        {"attempt": 2},
    )
    assert otel_part["links"][0]["call_id"] == named(weave.calls(project), "first")["id"]


def test_spans_of_other_instrumentation_stay_with_their_trace(weave, project, rollouts, exporter):
    """A span that names no project lands in its trace's project, below its parent."""
    with rollouts.span("Agent.run", "AGENT"), rollouts.foreign_span("GET /search"):
        pass

    deliver(exporter, rollouts.ended())

    calls = weave.calls(project)
    assert named(calls, "GET /search")["parent_id"] == named(calls, "Agent.run")["id"]
    assert named(calls, "GET /search")["thread_id"] is None


def test_the_project_can_be_overridden(weave, project, rollouts, new_exporter, monkeypatch):
    """A project from the environment takes all spans, and one from an argument wins over it."""
    monkeypatch.setenv("WANDB_PROJECT", f"{project}-environment")
    for name, arguments in (("environment", {}), ("argument", {"project": f"{ENTITY}/{project}-argument"})):
        with rollouts.span(name):
            pass
        deliver(new_exporter(**arguments), rollouts.ended())
        assert names(weave.calls(f"{project}-{name}")) == [name]


def test_a_project_name_that_wandb_refuses_is_made_fit(weave, project, exporter, rollouts):
    """Characters that W&B does not take in a project's name become dashes."""
    rollouts.identity["rollout.project_name"] = f"{project}/50%"
    rollouts.trajectory()

    deliver(exporter, rollouts.ended())

    assert len(weave.calls(f"{project}-50-")) == 3
