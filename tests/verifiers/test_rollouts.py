"""Rollouts of verifiers in this process: whole span trees, scores, and bad input."""

from __future__ import annotations

import asyncio
import types
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rollout
from otel_rollout.integrations.verifiers import CONFIGURED, rollouts, seams
from otel_rollout.otlp.messages import request_of
from tests.spool_reader import Recorded, tree
from tests.verifiers.running import context, play, played, until
from tests.verifiers.scripted_model import ScriptedModel

Read = Callable[[], list[Recorded]]
STAGES = ["boot", "setup"]
SCORES = ["score calls", "score correct", "score brief", "score polite", "score reward"]
END = ["finalize", "calls", "correct", "parts", *SCORES]


def _by_trace(spans: list[Recorded]) -> list[list[Recorded]]:
    found: dict[bytes, list[Recorded]] = defaultdict(list)
    for span in spans:
        found[span.span.trace_id].append(span)
    return list(found.values())


def _root(spans: list[Recorded]) -> Recorded:
    return next(span for span in spans if not span.span.parent_span_id)


def _named(spans: list[Recorded], name: str) -> list[Recorded]:
    return [span for span in spans if span.name == name]


def _scores(spans: list[Recorded]) -> dict[str, Any]:
    prefix = "rollout.score."
    attributes = _root(spans).attributes
    return {name.removeprefix(prefix): attributes[name] for name in attributes if name.startswith(prefix)}


async def test_rollout_is_one_complete_tree(model: ScriptedModel, environment: Any, recorded: Read) -> None:
    """Stages, model calls, tool calls, reward functions and scores are below one root, in their order."""
    env = environment("sum of 2 and 3 and 4")
    (episode,) = await play(env, model)
    assert episode.ok
    spans = recorded()
    assert tree(spans) == {
        "rollout_trace": [
            *STAGES,
            "chat scripted",
            "execute_tool add",
            "chat scripted",
            "execute_tool add",
            "chat scripted",
            *END,
        ]
    }
    assert all(span.span.status.code != 2 for span in spans)


async def test_root_has_identity_and_results(model: ScriptedModel, environment: Any, recorded: Read) -> None:
    """Task, sibling, group, harness, prompt, last reply and scores; the weight is a score's comment."""
    env = environment("no tool", "sum of 2 and 3")
    episodes = await play(env, model, siblings=2)
    traces = {episode.traces[0].id: episode.traces[0] for episode in episodes}
    found = {}
    for spans in _by_trace(recorded()):
        root = _root(spans)
        said = root.attributes
        trace = traces[said["rollout.verifiers_trace_id"]]
        found[said["rollout.sample_index"], said["rollout.rollout_n"]] = trace
        assert "rollout.step" not in said
        assert (said["rollout.validate"], said["rollout.group_size"]) == (False, 2)
        assert (said["rollout.agent_name"], said["rollout.harness"]) == ("agent", "sums-v1")
        assert (said["rollout.group_id"], said["rollout.environment"]) == (trace.task.key, "sums-v1")
        assert (said["rollout.stop_condition"], said["rollout.num_turns"]) == (
            "agent_completed",
            trace.num_turns,
        )
        assert root.input == [{"role": "user", "content": trace.task.data.prompt}]
        assert root.output == trace.last_reply
        assert _scores(spans) == {
            **trace.metrics,
            **{name: reward.score for name, reward in trace.rewards.items()},
            "reward": trace.reward,
        }
        (polite,) = _named(spans, "score polite")
        assert polite.attributes["gen_ai.evaluation.explanation"] == "weight 0.25"
    assert {identity: trace.task.data.idx for identity, trace in found.items()} == {
        (task, sibling): task for task in range(2) for sibling in range(2)
    }


async def test_model_call_has_messages_reply_and_usage(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The request is the program's, with verifiers' model; the reply is OpenAI's chat message."""
    await play(environment("sum of 2 and 3"), model)
    first, second = _named(recorded(), "chat scripted")
    said = first.attributes
    assert said["openinference.span.kind"] == "LLM"
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("chat", "scripted")
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (10, 3)
    assert [second.input["messages"], second.input["tools"]] == [
        model.requests[1]["messages"],
        model.requests[1]["tools"],
    ]
    call = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert first.output == {"choices": [{"index": 0, "message": reply, "finish_reason": "tool_calls"}]}


async def test_tool_call_lies_between_reply_and_next_request(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """Parallel calls have equal times; each has the result with its own id."""
    await play(environment("parallel"), model)
    spans = recorded()
    first, second = _named(spans, "chat scripted")
    tools = _named(spans, "execute_tool add")
    assert [tool.span.start_time_unix_nano for tool in tools] == [first.span.end_time_unix_nano] * 2
    assert [tool.span.end_time_unix_nano for tool in tools] == [second.span.start_time_unix_nano] * 2
    assert [(tool.attributes["gen_ai.tool.call.id"], tool.output) for tool in tools] == [
        ("call_0", "3"),
        ("call_1", "7"),
    ]
    assert [tool.input for tool in tools] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


async def test_parallel_calls_with_one_id_have_their_results_in_order(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """As many results as calls have the id, so the order tells them apart."""
    await play(environment("parallel with equal ids"), model)
    tools = _named(recorded(), "execute_tool add")
    assert [tool.attributes["gen_ai.tool.call.id"] for tool in tools] == ["call_0"] * 2
    assert [tool.output for tool in tools] == ["3", "7"]


async def test_unanswered_call_has_no_result_of_an_earlier_call_with_its_id(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The model numbers the calls of each reply anew; the call that hangs is an error without output."""
    await play(environment("sum of 2 and 3, then the tool sleeps", timeout={"rollout": 3}), model)
    spans = recorded()
    (answered,), (hung,) = _named(spans, "execute_tool add"), _named(spans, "execute_tool sleep")
    assert [tool.attributes["gen_ai.tool.call.id"] for tool in (answered, hung)] == ["call_0"] * 2
    assert answered.output == "5"
    assert "output.value" not in hung.attributes
    assert "no result: the rollout ended by agent_timeout" in hung.span.status.message


@pytest.mark.parametrize(("dialect", "thought"), [("Responses", "thinking"), ("Anthropic", None)])
async def test_other_dialects_are_recorded_as_chat_messages(
    dialect: str, thought: str | None, model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """Instructions are a system message; calls and results are those of chat messages, in both turns."""
    prompt = f"by {dialect}"
    (episode,) = await play(environment(prompt, sampling={"max_tokens": 77}), model)
    assert episode.ok
    spans = recorded()
    first, second = _named(spans, "chat scripted")
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}]
    reply = first.output["choices"][0]["message"]
    assert (reply["role"], reply.get("reasoning_content")) == ("assistant", thought)
    assert [call["function"]["name"] for call in reply["tool_calls"]] == ["add"]
    (tool,) = _named(spans, "execute_tool add")
    result = {"role": "tool", "content": tool.output, "tool_call_id": "call_0"}
    assert first.input["messages"] == asked
    assert second.input["messages"] == [*asked, reply, result]
    assert [declared["function"]["name"] for declared in first.input["tools"]] == ["add"]
    assert first.attributes["gen_ai.request.max_tokens"] == 77
    assert [turn.text for turn in request_of(second.input).messages][:2] == ["be brief", prompt]


async def test_result_that_anthropic_marks_as_an_error_is_one(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The mark is in the request alone; verifiers' own record lacks it."""
    await play(environment("by Anthropic"), model)
    (tool,) = _named(recorded(), "execute_tool add")
    assert (tool.output, tool.span.status.code) == ("the adder broke", 2)
    assert tool.span.status.message == "the adder broke"


async def test_unknown_tool_is_an_error(model: ScriptedModel, environment: Any, recorded: Read) -> None:
    """verifiers' programs answer the model with a text; in the trace the call has failed."""
    (episode,) = await play(environment("unknown tool"), model)
    assert episode.ok
    (tool,) = _named(recorded(), "execute_tool nowhere")
    assert (tool.span.status.code, tool.span.status.message) == (2, "error: unknown tool 'nowhere'")


async def test_retried_model_call_is_a_failed_and_a_good_call(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The program asks again after a 503; verifiers counts two calls and one turn less."""
    (episode,) = await play(environment("flaky, sum of 2 and 3"), model)
    spans = recorded()
    calls = _named(spans, "chat scripted")
    assert episode.ok
    assert [call.span.status.code == 2 for call in calls] == [True, False, False]
    assert "the engine broke" in calls[0].span.status.message
    assert len(calls) == len(episode.traces[0].calls)
    assert _root(spans).attributes["rollout.num_turns"] == 2


async def test_rollout_whose_model_fails_is_an_error(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The error is the provider's, not the exit of the agent's program; nothing is scored."""
    (episode,) = await play(environment("model fails"), model)
    spans = recorded()
    assert not episode.ok
    assert [span.name for span in spans if span.span.status.code == 2] == [
        "chat scripted",
        "chat scripted",
        "rollout_trace",
    ]
    root = _root(spans)
    assert "the engine broke" in root.span.status.message
    assert root.attributes["rollout.stop_condition"] == episode.traces[0].stop_condition
    assert _scores(spans) == {}


@pytest.mark.parametrize("prompt", ["the tool sleeps", "model hangs"])
async def test_hanging_agent_ends_at_its_time_limit(
    prompt: str, model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """What hung is an error; the rollout is scored, as verifiers does."""
    env = environment(prompt, timeout={"rollout": 3})
    (episode,) = await play(env, model)
    spans = recorded()
    (trace,) = episode.traces
    assert (trace.ok, trace.stop_condition) == (True, "agent_timeout")
    root = _root(spans)
    assert root.attributes["rollout.stop_condition"] == "agent_timeout"
    assert root.attributes["rollout.is_timeout"] is True
    assert root.span.status.code != 2
    hung = {"the tool sleeps": "execute_tool sleep", "model hangs": "chat scripted"}[prompt]
    assert [span.name for span in spans if span.span.status.code == 2] == [hung]
    assert _scores(spans)["reward"] == trace.reward


async def test_reward_that_raises_is_an_error(model: ScriptedModel, environment: Any, recorded: Read) -> None:
    """The function's span has the exception; the rollout failed, and its reward is unknown."""
    (episode,) = await play(environment("reward raises"), model)
    spans = recorded()
    (reward,) = _named(spans, "correct")
    assert reward.span.status.code == 2
    assert "the reward broke" in reward.span.status.message
    (event,) = reward.span.events
    assert {a.key: a.value.string_value for a in event.attributes}["exception.type"] == "ValueError"
    assert "the reward broke" in _root(spans).span.status.message
    assert not episode.ok
    assert _scores(spans) == {"calls": 1.0}


async def test_reward_that_hangs_ends_at_its_time_limit(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The function's span is an error; verifiers stops scoring and keeps the rollout."""
    (episode,) = await play(environment("reward hangs", timeout={"scoring": 2}), model)
    spans = recorded()
    (reward,) = _named(spans, "correct")
    assert reward.span.status.code == 2
    assert reward.attributes["error.type"].endswith("CancelledError")
    assert _root(spans).attributes["rollout.stop_condition"] == episode.traces[0].stop_condition
    assert "reward" not in _scores(spans)


async def test_cancelled_rollout_is_an_error_and_stays_cancelled(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The cancellation propagates; no rollout stays open."""
    env = environment("model hangs")
    async with played(env, model) as (slots, ctx):
        running = asyncio.create_task(env.run_slot(slots[0], ctx))
        await until(model.asked.is_set)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    spans = recorded()
    root = _root(spans)
    assert root.span.status.code == 2
    assert root.attributes["error.type"].endswith("CancelledError")


async def test_environment_that_runs_no_agent_records_nothing(
    model: ScriptedModel, environment: Any, recorded: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verifiers reports the empty episode itself; there is no trajectory to trace."""
    env = environment("no tool")

    async def run(task: Any, agents: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(env, "run", run)
    (episode,) = await play(env, model)
    assert "ran no agent" in episode.errors[0].message
    assert recorded() == []


@pytest.mark.parametrize("level", ["agent", "episode"])
async def test_rollout_that_a_retry_replaces_is_marked(
    level: str, model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """verifiers keeps the last attempt alone; the trace of the first one says that it was discarded."""
    once = {"max_retries": 1}
    env = environment("reward raises", **({"retries": once} if level == "agent" else {}))
    if level == "episode":
        env.config.retries.max_retries = 1
    (episode,) = await play(env, model)
    spans = recorded()
    (mark,) = _named(spans, "score discarded")
    rooted = [span for span in spans if not span.span.parent_span_id]
    assert [root.attributes["rollout.rollout_n"] for root in rooted] == [0, 0]
    roots = {root.span.trace_id: root.attributes["rollout.verifiers_trace_id"] for root in rooted}
    assert roots.pop(mark.span.trace_id) != episode.traces[0].id
    assert list(roots.values()) == [episode.traces[0].id]


async def test_cancelled_rollout_that_nothing_replaces_is_not_marked(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """The episode ran out of time, so verifiers' episode lacks the rollout; there was no retry."""
    env = environment("model hangs")
    env.config.timeout.episode = 3
    (episode,) = await play(env, model)
    assert (episode.is_timeout, episode.traces) == (True, [])
    spans = recorded()
    assert _root(spans).attributes["error.type"].endswith("CancelledError")
    assert _named(spans, "score discarded") == []


async def test_runs_of_one_agent_in_an_episode_are_siblings(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """Best-of-2 with two episodes: four rollouts of the task, each with a number of its own."""
    from verifiers.v1.envs.best_of_n import BestOfNEnv, BestOfNEnvConfig

    plain = environment("no tool").config
    env = BestOfNEnv(BestOfNEnvConfig(taskset=plain.taskset, agent=plain.agent, n=2))
    await play(env, model, siblings=2)
    roots = [span.attributes for span in recorded() if span.name == "rollout_trace"]
    assert sorted(root["rollout.rollout_n"] for root in roots) == [0, 1, 2, 3]
    assert {(root["rollout.sample_index"], root["rollout.group_size"]) for root in roots} == {(0, 2)}


async def test_rollout_that_does_not_open_is_an_error(
    model: ScriptedModel, environment: Any, recorded: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception leaves ``Rollout.open``; an interaction then calls neither ``close`` nor ``abort``."""

    def make_runtime(*_: Any, **__: Any) -> Any:
        """Fail before the runtime exists."""
        raise OSError("no room for a runtime")

    async def run(task: Any, agents: Any) -> None:
        """Drive the agent step by step, as an environment does that has a user."""
        async with agents.agent.interaction(task):
            raise AssertionError("it did open")

    env = environment("no tool")
    monkeypatch.setattr("verifiers.v1.rollout.make_runtime", make_runtime)
    monkeypatch.setattr("verifiers.v1.agent.Agent._check_resume_support", lambda _: None)
    monkeypatch.setattr(env, "run", run)
    (episode,) = await play(env, model)
    assert not episode.ok
    assert "no room for a runtime" in episode.errors[0].message
    assert "no room for a runtime" in _root(recorded()).span.status.message
    assert len(rollouts.here().running) == 0


async def test_sampled_out_rollouts_are_forgotten_when_they_end(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """Nothing is recorded for them, and nothing is kept."""
    otel_rollout.configure(sample_rate=0.0)
    (episode,) = await play(environment("no tool"), model)
    assert episode.ok
    assert recorded() == []
    assert len(rollouts.here().running) == 0


async def test_second_evaluation_of_a_process_has_its_own_id(
    model: ScriptedModel, environment: Any, recorded: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verifiers sets the variable of the run's id once in a process."""
    monkeypatch.setenv("VF_RUN_ID", "first")

    async def run_eval(config: Any) -> None:
        """Run an evaluation of one rollout."""
        await play(environment("no tool"), model)

    module = types.ModuleType("verifiers.v1.cli.eval.runner")
    module.run_eval = run_eval  # type: ignore[attr-defined]
    seams.patch(CONFIGURED[module.__name__], module)
    for name in ("first", "second"):
        await module.run_eval(SimpleNamespace(run=SimpleNamespace(id=name, name="evaluation")))
    roots = [span for span in recorded() if span.name == "rollout_trace"]
    assert [root.attributes["rollout.verifiers_run_id"] for root in roots] == ["first", "second"]


async def test_reward_of_the_environment_is_a_late_score(
    model: ScriptedModel, environment: Any, recorded: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Env.finalize`` rewards rollouts that have ended; the sum is scored anew."""
    env = environment("no tool")

    async def finalize(task: Any, episode: Any) -> None:
        """Reward the rollout, as an environment does that compares its agents."""
        episode.traces[0].record_reward("best", 1.0, weight=2.0)
        episode.traces[0].record_metric("rank", 1)

    monkeypatch.setattr(env, "finalize", finalize)
    (episode,) = await play(env, model)
    spans = recorded()
    given = {span.name: span.output for span in spans if span.name.startswith("score ")}  # the newest counts
    assert (given["score best"], given["score rank"]) == (1.0, 1.0)
    assert given["score reward"] == episode.traces[0].reward == 3.0


async def test_stamps_of_a_trainer_are_late_scores(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """Step, policy versions and group become known after the rollout."""
    from verifiers.v1.episode import GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo

    (episode,) = await play(environment("no tool"), model)
    episode.group = GroupInfo(id="group-7")
    work = TrainWorkInfo(step=12, policy=PolicySpan(start=10, end=11))
    episode.record_run(TrainRunInfo(id="run", work=work))
    spans = recorded()
    root = _root(spans)
    late = {span.name: span.output for span in spans if "rollout.score_origin" in span.attributes}
    assert late == {
        "score step": 12,
        "score validate": False,
        "score policy_version_min": 10,
        "score policy_version_max": 11,
        "score group_id": "group-7",
    }
    assert {span.span.trace_id for span in spans} == {root.span.trace_id}


async def test_concurrent_rollouts_do_not_mix(model: ScriptedModel, environment: Any, recorded: Read) -> None:
    """Six rollouts share one interception server; each trace has its own calls, tools and rewards."""
    env = environment("sum of 1 and 2", "no tool", "unknown tool")
    episodes = await play(env, model, siblings=2)
    traces = {episode.traces[0].id: episode.traces[0] for episode in episodes}
    for spans in _by_trace(recorded()):
        trace = traces.pop(_root(spans).attributes["rollout.verifiers_trace_id"])
        calls = _named(spans, "chat scripted")
        assert {call.input["messages"][0]["content"] for call in calls} == {trace.task.data.prompt}
        assert len(calls) == len(trace.calls) == trace.num_turns
        assert len([s for s in spans if s.name.startswith("execute_tool")]) == len(trace.tool_messages)
        assert _scores(spans)["reward"] == trace.reward
    assert traces == {}


async def test_context_lacks_the_trajectory_after_a_rollout(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """Code after a rollout is in no trajectory."""
    from opentelemetry import trace

    async def look() -> Any:
        await play(environment("no tool"), model)
        return trace.get_current_span().get_span_context().is_valid

    checks: list[Awaitable[Any]] = [look()]
    assert await asyncio.gather(*checks) == [False]
    assert context(model).model == "scripted"


async def test_token_ids_of_the_training_client_are_recorded(
    model: ScriptedModel, environment: Any, recorded: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt and reply have the ids that the client gave, and the reply its log probabilities."""
    from verifiers.v1.clients.eval import EvalClient
    from verifiers.v1.types import TurnTokens

    original = EvalClient.get_response
    given: list[TurnTokens] = []

    async def get_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer as the training client does, with tokens: two per message, and one before each reply."""
        response = await original(self, *args, **kwargs)
        before = [*given[-1].prompt_ids, *given[-1].completion_ids] if given else []
        spans = [(0, 2), None, (5, 7)] if given else [(0, 2)]
        response.tokens = TurnTokens(
            prompt_ids=[*before, 10, 11, 99],
            completion_ids=[20, 21],
            completion_logprobs=[-0.25, -0.75],
            message_spans=spans,
        )
        given.append(response.tokens)
        return response

    monkeypatch.setattr(EvalClient, "get_response", get_response)
    await play(environment("sum of 2 and 3"), model)
    calls = _named(recorded(), "chat scripted")
    assert len(calls) == len(given) == 2
    for call, tokens in zip(calls, given, strict=True):
        assert call.input["prompt_ids"] == tokens.prompt_ids
        assert call.output["response_ids"] == tokens.completion_ids
        assert call.output["log_probs"] == tokens.completion_logprobs
