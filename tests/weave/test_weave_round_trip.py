"""Recorded trajectories, read back by Weave's own client from Weave's own server."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from opentelemetry import trace as otel

from tests.local_weave import ENTITY, where
from tests.sdk_spans import ROLLOUT_RUN, deliver


def named(calls, name):
    """Return the only call of a name."""
    [call] = [call for call in calls if call["op_name"] == name]
    return call


def names(calls):
    return [call["op_name"] for call in calls]


def test_trajectory_reads_back_as_recorded(weave, project, rollouts, exporter):
    """Names, parents, inputs, outputs and times are those that were recorded."""
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
    """Return Unix time in µs, exactly."""
    since = datetime.fromisoformat(iso) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 10**6 + since.microseconds


def test_summary_has_status_usage_and_latency(weave, project, rollouts, exporter):
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


@pytest.mark.parametrize("kind", ["AGENT", "CHAIN", "EMBEDDING"])
def test_only_model_calls_have_usage(kind, weave, project, rollouts, exporter):
    """Agent libraries repeat the counts of their calls on what is above; Weave's server would add both up."""
    counts = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 5}
    with (
        rollouts.span("Agent.run", "AGENT"),
        rollouts.span("outer", kind, **counts),
        rollouts.span("chat", "LLM", **counts),
    ):
        pass

    deliver(exporter, rollouts.ended())

    root = named(weave.calls(project), "Agent.run")["id"]
    (usage,) = weave.usage(project, [root])[root].values()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 5)


@pytest.mark.parametrize(
    ("order", "input_tokens"), [("together", 12), ("outer first", 12), ("inner first", 10)]
)
def test_model_call_around_another_one_has_no_usage_twice(
    order, input_tokens, weave, project, rollouts, exporter
):
    """The outer one counts, as in a table, unless the inner one was written before anybody knew of it."""
    with rollouts.span("Agent.run", "AGENT"):
        counts = {"gen_ai__usage__input_tokens": 12, "gen_ai__usage__output_tokens": 5}
        with rollouts.span("client", "LLM", **counts), rollouts.span("retry", "CHAIN"):
            counts["gen_ai__usage__input_tokens"] = 10
            with rollouts.span("engine", "LLM", **counts):
                pass
    inner, *around = rollouts.ended()
    parts = {
        "together": ([inner, *around],),
        "outer first": (around, [inner]),
        "inner first": ([inner], around),
    }

    for spans in parts[order]:
        deliver(exporter, spans)

    calls = by_name(weave.calls(project))
    (usage,) = weave.usage(project, [calls["Agent.run"]["id"]])[calls["Agent.run"]["id"]].values()
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["requests"]) == (input_tokens, 5, 1)
    (thread,) = weave.threads(project)
    assert thread["turn_count"] == (2 if order == "inner first" else 1)


def test_counts_that_an_outer_model_call_lacks_are_those_inside(weave, project, rollouts, exporter):
    """Two attempts inside a call without counts are summed, whichever span has which count."""
    with rollouts.span("Agent.run", "AGENT"), rollouts.span("client", "LLM", gen_ai__usage__output_tokens=5):
        for _ in range(2):
            with rollouts.span(
                "engine", "LLM", gen_ai__usage__input_tokens=10, gen_ai__usage__output_tokens=3
            ):
                pass

    deliver(exporter, rollouts.ended())

    calls = by_name(weave.calls(project))
    (usage,) = weave.usage(project, [calls["Agent.run"]["id"]])[calls["Agent.run"]["id"]].values()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 5)


def test_usage_is_counted_under_the_model_that_answered(weave, project, rollouts, exporter):
    """A reply names its model where the request does not; the cost of a trajectory depends on it."""
    with rollouts.span("generate", "LLM", gen_ai__response__model="gpt-x", gen_ai__usage__output_tokens=5):
        pass

    deliver(exporter, rollouts.ended())

    (call,) = weave.calls(project)
    assert list(call["summary"]["usage"]) == ["gpt-x"]


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


def test_filter_finds_one_trajectory_by_each_criterion(weave, project, rollouts, exporter):
    """Identity, extras, kind and reward each single out their trajectory."""
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


def test_late_score_is_feedback_on_the_scored_call(weave, project, rollouts, exporter):
    """It has its explanation, and is there once."""
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


def test_newer_score_of_a_name_replaces_the_older(weave, project, rollouts, exporter):
    """Root attribute and evaluation span of one name are one feedback, the newest."""
    rollouts.trajectory(reward=0.1)
    *_, root = spans = rollouts.ended()
    deliver(exporter, spans)
    with otel.use_span(otel.NonRecordingSpan(root.context)):
        rollouts.evaluation("reward", 0.9)
    deliver(exporter, rollouts.ended())

    assert [score["payload"]["value"] for score in weave.feedback(project)] == [0.9]


def test_batch_sent_twice_is_stored_once(weave, project, rollouts, new_exporter):
    """Calls or spans and scores read back as after one delivery."""
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


def test_failed_operation_has_its_exception(weave, project, rollouts, exporter):
    """Type, message and frames are shown, and the call counts as an error."""
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


def test_trajectory_is_a_thread_of_its_model_calls(weave, project, rollouts, exporter):
    """The Threads page lists each trajectory with a turn for each model call."""
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


def test_model_calls_of_other_processes_are_turns_of_the_trajectory(weave, project, rollouts, exporter):
    """A Ray actor's method, and a proxy's call, have a parent elsewhere; a call's session is no thread."""
    with rollouts.span("Agent.run", "AGENT") as root:
        own = root.get_span_context()
    caller = otel.NonRecordingSpan(otel.SpanContext(own.trace_id, own.span_id, True, own.trace_flags))
    with rollouts.span("generate", "LLM", otel.set_span_in_context(caller), session__id="chat 1"):
        pass

    deliver(exporter, rollouts.ended())

    (thread,) = weave.threads(project)
    assert (thread["thread_id"], thread["turn_count"]) == (f"{own.trace_id:032x}", 1)


def test_calls_belong_to_the_run_and_step(weave, project, rollouts, new_exporter, monkeypatch):
    """WANDB_RUN_ID links every call to the run, at its training step."""
    monkeypatch.setenv("WANDB_RUN_ID", "run7")
    rollouts.trajectory()

    deliver(new_exporter(), rollouts.ended())

    linked = {(call["wb_run_id"], call["wb_run_step"]) for call in weave.calls(project)}
    assert linked == {(f"{ENTITY}/{project}/run7", 1)}


def test_run_published_late_is_linked_to_earlier_trajectories(weave, project, rollouts, new_exporter):
    """Earlier trajectories get the run as feedback once, and later calls belong to it."""
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


def test_malformed_run_is_refused_with_the_expected_form(exporter):
    """The form is entity/project/run."""
    failure = exporter.link_run("run8", ROLLOUT_RUN)
    assert "entity/project/run" in failure.message


def test_announced_trajectory_is_shown_until_it_ends(weave, project, rollouts, new_exporter):
    """When it ends it is there once, with inputs, and its children below it."""
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


def test_successor_removes_the_marker_of_an_ended_trajectory(weave, project, rollouts, new_exporter):
    """A dead forwarder's trajectory is neither announced again nor left running."""
    with rollouts.span("Agent.run", "AGENT") as root:
        new_exporter().announce([root])
        successor = new_exporter()
        successor.announce([root])
        assert len(weave.calls(project)) == 1
    spans = rollouts.ended()

    deliver(new_exporter(), spans)

    [call] = weave.calls(project)
    assert call["ended_at"] is not None


def test_attributes_are_nested_where_filters_look(weave, project, rollouts, exporter):
    """A name that cannot be nested, events and links are kept as well."""
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


def test_span_of_other_instrumentation_goes_to_its_trace(weave, project, rollouts, exporter):
    """A span without a project goes to its trace's project, even if it comes first."""
    with rollouts.span("Agent.run", "AGENT"), rollouts.foreign_span("GET /search"):
        pass

    deliver(exporter, rollouts.ended())

    calls = weave.calls(project)
    assert named(calls, "GET /search")["parent_id"] == named(calls, "Agent.run")["id"]
    assert named(calls, "GET /search")["thread_id"] is None


def test_project_of_the_settings_takes_all_spans(weave, project, rollouts, new_exporter, monkeypatch):
    """A project from an argument wins over one from the environment."""
    monkeypatch.setenv("WANDB_PROJECT", f"{project}-environment")
    for name, arguments in (("environment", {}), ("argument", {"project": f"{ENTITY}/{project}-argument"})):
        with rollouts.span(name):
            pass
        deliver(new_exporter(**arguments), rollouts.ended())
        assert names(weave.calls(f"{project}-{name}")) == [name]


def test_forbidden_characters_of_a_project_name_become_dashes(weave, project, exporter, rollouts):
    """W&B would not take the name."""
    rollouts.identity["rollout.project_name"] = f"{project}/50%"
    rollouts.trajectory()

    deliver(exporter, rollouts.ended())

    assert len(weave.calls(f"{project}-50-")) == 3
