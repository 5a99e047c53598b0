"""Rollouts of verifiers in this process: whole span trees, scores, and bad input."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

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


async def test_rollout_that_a_retry_replaces_is_marked(
    model: ScriptedModel, environment: Any, recorded: Read
) -> None:
    """verifiers keeps the last attempt alone; the trace of the first one says that it was discarded."""
    env = environment("reward raises", retries={"max_retries": 1})
    (episode,) = await play(env, model)
    spans = recorded()
    (mark,) = _named(spans, "score discarded")
    roots = {span.span.trace_id: span.attributes["rollout.verifiers_trace_id"] for span in spans
             if not span.span.parent_span_id}  # fmt: skip
    assert len(roots) == 2
    assert roots.pop(mark.span.trace_id) != episode.traces[0].id
    assert list(roots.values()) == [episode.traces[0].id]


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
