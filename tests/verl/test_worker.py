"""One trajectory of verl's real agent loops, in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import otel_rollout
from tests.spool_reader import Recorded, tree
from tests.verl import local
from tests.verl.script import UNANSWERED, rows
from tests.verl.versions import (
    needs_request_ids,
    needs_resuming_client,
    needs_text_of_calls,
    needs_v1,
)


async def _run(worker: Any, index: int, *, twice: bool = False, **extra: Any) -> Any:
    row = {**rows([index], 3, False, twice)[0], **extra}
    trajectory = {"step": 3, "sample_index": index, "rollout_n": 0, "validate": False}
    return await worker._run_agent_loop({"temperature": 0.7, "top_p": 0.9}, trajectory, **row)


def _named(spans: list[Recorded], name: str) -> list[Recorded]:
    return [span for span in spans if span.name == name]


def _policy_versions(span: Recorded) -> tuple[int, int]:
    said = span.attributes
    return said["rollout.policy_version_min"], said["rollout.policy_version_max"]


async def test_trajectory_is_one_complete_tree(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """Agent loop, model calls, parsing, tool, reward and its parts are below one root."""
    await _run(local.worker(verl_config), 0)
    assert tree(recorded()) == {
        "agent_loop": [
            {
                "ToolAgentLoop.run": [
                    local.GENERATE,
                    "HermesToolParser.extract_tool_calls",
                    "execute_tool add",
                    local.GENERATE,
                    "HermesToolParser.extract_tool_calls",
                ]
            },
            "compute_score",
            "score reward",
            "score acc",
            "score answer",
        ]
    }


async def test_model_call_has_request_and_response_attributes(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """Sampling, token counts, cached tokens, stop reason, preemptions, policy version."""
    await _run(local.worker(verl_config), 4)
    (call,) = _named(recorded(), local.GENERATE)
    described = call.attributes
    assert described["openinference.span.kind"] == "LLM"
    assert described["gen_ai.operation.name"] == "text_completion"
    assert described["gen_ai.request.temperature"] == 0.7
    assert described["gen_ai.request.top_p"] == 0.9
    assert described["gen_ai.request.model"].endswith("model")
    assert described["gen_ai.usage.input_tokens"] == len(call.input["prompt_ids"])
    assert described["gen_ai.usage.output_tokens"] == len(call.output["token_ids"])
    assert described["gen_ai.usage.cache_read.input_tokens"] == 3
    assert described["gen_ai.response.finish_reasons"] == ["completed"]
    assert described["rollout.num_preempted"] == 1
    assert (described["rollout.policy_version_min"], described["rollout.policy_version_max"]) == (7, 7)


async def test_model_calls_of_a_trajectory_are_one_conversation(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The conversation's id is the one by which verl keeps all turns on one server."""
    await _run(local.worker(verl_config), 0)
    calls = _named(recorded(), local.GENERATE)
    ids = [call.attributes["gen_ai.conversation.id"] for call in calls]
    assert ids == [call.input["request_id"] for call in calls]
    assert len(ids) == 2
    assert len(set(ids)) == 1


@needs_request_ids
async def test_model_call_has_the_request_id_of_the_engine(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The engine's own spans are found by it."""
    engine = local.Engine()
    await _run(local.worker(verl_config, engine), 0)
    calls = _named(recorded(), local.GENERATE)
    assert [call.attributes["gen_ai.request.id"] for call in calls] == engine.request_ids
    assert len(set(engine.request_ids)) == 2


async def test_root_has_identity_and_results_of_the_trajectory(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """Agent, group, policy versions, turns, reward and its parts.

    The prompt is the input.
    """
    await _run(local.worker(verl_config), 4)
    (root,) = _named(recorded(), "agent_loop")
    said = root.attributes
    assert (said["rollout.step"], said["rollout.sample_index"], said["rollout.rollout_n"]) == (3, 4, 0)
    assert said["rollout.validate"] is False
    assert said["rollout.agent_name"] == "single_turn_agent"
    assert said["rollout.group_id"] == "train3q4"
    assert (said["rollout.policy_version_min"], said["rollout.policy_version_max"]) == (7, 7)
    assert said["rollout.num_turns"] == 2
    assert said["rollout.score.reward"] == 0.5
    assert said["rollout.score.acc"] is True
    assert "rollout.score.list" not in said
    assert root.input[1]["content"] == "say: hello"
    assert root.output["reward"] == 0.5


@needs_resuming_client
async def test_resumed_request_is_one_model_call(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The resuming client calls its base class's ``generate`` twice."""
    await _run(local.worker(verl_config, partial=True), 0, twice=True)
    calls = _named(recorded(), "FullyAsyncLLMServerClient.generate")
    assert [call.attributes["gen_ai.response.finish_reasons"] for call in calls] == [["completed"]] * 2
    assert not _named(recorded(), local.GENERATE)


@needs_resuming_client
async def test_answer_that_goes_on_under_newer_weights_says_where(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The interrupted turn has both versions and the place; the next turn has the newer one alone."""
    await _run(local.worker(verl_config, local.UpdatedEngine(), partial=True), 0, twice=True)
    calls = _named(recorded(), "FullyAsyncLLMServerClient.generate")
    assert [_policy_versions(call) for call in calls] == [(7, 8), (8, 8)]
    ((event,), after) = (call.span.events for call in calls)
    assert event.name == "rollout.generation_interrupted"
    assert {each.key: each.value.int_value for each in event.attributes} == {
        "gen_ai.usage.output_tokens": 2,
        "rollout.policy_version_max": 7,
    }
    assert not after
    (root,) = _named(recorded(), "agent_loop")
    assert _policy_versions(root) == (7, 8)


async def test_trajectory_that_fails_has_the_policy_versions_of_its_turns(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The engine dies at the second turn."""
    with pytest.raises(RuntimeError, match="the engine died"):
        await _run(local.worker(verl_config, local.UpdatedEngine(fails_after=1)), 0)
    (root,) = _named(recorded(), "agent_loop")
    assert root.span.status.code == 2
    assert _policy_versions(root) == (7, 7)


async def test_failed_tool_calls_have_status_error_and_reason(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """A tool raises, one does not exist, and arguments are no object."""
    worker = local.worker(verl_config)
    await _run(worker, 2)
    await _run(worker, 3)
    failed = {span.name: span for span in recorded() if span.name.startswith("execute_tool")}
    assert failed.keys() == {"execute_tool broken", "execute_tool nowhere", "execute_tool add"}
    assert all(span.span.status.code == 2 for span in failed.values())
    assert "the tool broke" in failed["execute_tool broken"].span.status.message
    (event,) = failed["execute_tool broken"].span.events
    assert {a.key: a.value.string_value for a in event.attributes}["exception.type"] == "RuntimeError"
    assert "nowhere" in failed["execute_tool nowhere"].span.status.message


async def test_failed_tool_call_is_an_error_with_a_silent_logger(
    verl_config: Any,
    trace_config: Any,
    recorded: Callable[[], list[Recorded]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With verl's log level above WARNING, the text for the model tells."""
    from verl.experimental.agent_loop import tool_agent_loop

    monkeypatch.setattr(tool_agent_loop.logger, "level", 50)
    tool_agent_loop.logger.manager._clear_cache()
    await _run(local.worker(verl_config), 2)
    tool_agent_loop.logger.manager._clear_cache()
    (call,) = _named(recorded(), "execute_tool broken")
    assert "the tool broke" in call.span.status.message


async def test_unreadable_tool_call_is_an_error_of_the_parser(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """verl drops the call with a line in its log; the parser's span has the exception."""
    await _run(local.worker(verl_config), 3)
    failed = [s for s in _named(recorded(), "HermesToolParser.extract_tool_calls") if s.span.status.code == 2]
    assert ["Failed to decode tool call" in span.span.status.message for span in failed] == [True]


async def test_decorated_tool_is_one_span(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The span shows response, reward and metrics."""
    await _run(local.worker(verl_config), 1)
    (call,) = [span for span in recorded() if span.attributes["openinference.span.kind"] == "TOOL"]
    assert call.name == "execute_tool note"
    assert call.attributes["gen_ai.tool.name"] == "note"
    assert call.input == {"name": "note", "arguments": '{"text": "42"}'}
    assert call.output["response"]["text"] == "noted 42"
    assert (call.output["reward"], call.output["metrics"]) == (0.25, {"length": 2})


@pytest.mark.parametrize(
    ("place", "row", "counted", "sibling"),
    [(0, 0, 0, 0), (10, 0, 0, 2), (11, 1, 1, 3), (13, 3, 1, 1), (6, 6, 2, 2)],
)
def test_siblings_of_a_group_split_between_workers_keep_their_index(
    verl_config: Any, place: int, row: int, counted: int, sibling: int
) -> None:
    """The legacy trainer counts siblings anew in each worker.

    The row in the batch is used.
    """
    from otel_rollout.integrations.verl import sample_limit, trajectory

    described = sample_limit._Row(step=1, sample_index=0, rollout_n=counted, validate=False)
    described.row = row
    worker = type("Worker", (), {"config": verl_config})()
    assert trajectory._sibling_index(worker, described, {"priority": np.int64(place)}) == sibling


@needs_text_of_calls
async def test_model_call_with_token2text_shows_its_text(
    verl_config: Any, trace_config: Any, delivered: Callable[[], dict[str, list[Any]]]
) -> None:
    """It shows ``prompt_text`` and ``response_text``."""
    verl_config.actor_rollout_ref.rollout.trace.token2text = True
    output = await _run(local.worker(verl_config), 4)
    (call,) = delivered()[local.GENERATE]
    assert "say: hello" in call["prompt_text"]
    assert call["response_text"].startswith("hello")
    assert output.response_ids[0][: len(call["token_ids"])].tolist() == call["token_ids"]


async def test_agent_loop_with_token2text_shows_its_text(
    verl_config: Any, trace_config: Any, delivered: Callable[[], dict[str, list[Any]]]
) -> None:
    """Model and tool are told apart in it, and the root shows the answer."""
    verl_config.actor_rollout_ref.rollout.trace.token2text = True
    await _run(local.worker(verl_config), 1)
    told = delivered()
    (run,), (root,) = told["ToolAgentLoop.run"], told["agent_loop"]
    assert "note: keep 42 in mind" in run["prompt_text"]
    assert run["response_text"].endswith("#### 42<|im_end|>")
    assert root["response_text"] == run["response_text"]
    assert [said["role"] for said in run["response_segments"]] == ["model", "environment", "model"]
    assert "tool_response" in run["response_segments"][1]["text"]


async def test_raising_tokenizer_costs_the_text_only(
    verl_config: Any, trace_config: Any, delivered: Callable[[], dict[str, list[Any]]]
) -> None:
    """The trajectory continues, and its spans have their tokens."""

    class Raising:
        @property
        def backend_tokenizer(self) -> Any:
            raise RuntimeError("cannot be read")

    verl_config.actor_rollout_ref.rollout.trace.token2text = True
    worker = local.worker(verl_config)
    client = worker.llm_client if hasattr(worker, "llm_client") else worker.server_manager
    client.tokenizer = Raising()
    output = await _run(worker, 4)
    assert output.reward_score == 0.5
    (call,) = delivered()[local.GENERATE]
    assert call["token_ids"]
    assert "response_text" not in call


async def test_cancelled_trajectory_has_status_error(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The cancellation reaches the caller, and no span stays open."""
    engine = local.Engine()
    task = asyncio.create_task(_run(local.worker(verl_config, engine), UNANSWERED))
    await asyncio.wait_for(engine.is_waiting.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {span.name: span.span.status.code for span in recorded()} == {
        "agent_loop": 2,
        "ToolAgentLoop.run": 2,
        local.GENERATE: 2,
    }


@needs_v1
async def test_agent_loop_with_several_outputs_is_one_trajectory(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """The reward is that of the last output, the policy versions are those of all."""
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopMetrics,
        AgentLoopOutput,
        _agent_loop_registry,
    )

    class Several(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
            return [
                AgentLoopOutput(
                    prompt_ids=[1],
                    response_ids=[2, 3],
                    response_mask=[1, 1],
                    num_turns=turns,
                    metrics=AgentLoopMetrics(),
                    extra_fields={"min_global_steps": version, "max_global_steps": version + 1},
                )
                for version, turns in ((4, 2), (6, 5))
            ]

    class Worker(type(local.worker(verl_config))):  # type: ignore[misc]
        async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
            await self._compute_score(output, kwargs)  # as the v1 trainer's worker does

    globals()["Several"] = Several
    _agent_loop_registry["several"] = {"_target_": f"{__name__}.Several"}
    worker = local.worker(verl_config)
    worker.__class__ = Worker
    row = {**rows([4], 3, False, False)[0], "agent_name": "several"}
    trajectory = {"step": 3, "sample_index": 4, "rollout_n": 0, "validate": False}
    await worker._run_agent_loop({}, trajectory, trace=False, session_id=2, **row)
    (root,) = _named(recorded(), "agent_loop")
    said = root.attributes
    assert said["rollout.rollout_n"] == 2
    assert (said["rollout.policy_version_min"], said["rollout.policy_version_max"]) == (4, 7)
    assert said["rollout.num_turns"] == 5
    assert said["rollout.score.reward"] == 0.5
    assert root.output["outputs"] == 2


async def test_sample_limit_draws_from_no_global_generator(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """As many whole groups are traced as the limit allows."""
    import random

    verl_config.actor_rollout_ref.rollout.trace.max_samples_per_step_per_worker = 2
    worker = local.worker(verl_config)
    assert trace_config.get_instance().max_samples_per_step_per_worker == 2
    batch = local.batch([0, 1, 4], 5, 4)
    worker.reward_loop_worker_handles = None  # verl picks one by the global generator itself
    before = np.random.get_state()[1].tolist(), random.getstate()
    made = await worker.generate_sequences(batch)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before
    assert len(made) == 12
    roots = [span.attributes for span in _named(recorded(), "agent_loop")]
    assert len({root["rollout.sample_index"] for root in roots}) == 2
    assert sorted(root["rollout.rollout_n"] for root in roots) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_group_limit_holds_for_all_workers_together(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """verl's manager is awaited, or called from a thread."""
    from verl.experimental.agent_loop import AgentLoopManager

    otel_rollout.configure(sample_groups=2)
    manager = object.__new__(AgentLoopManager)
    workers = [local.worker(verl_config) for _ in range(2)]
    for worker in workers:
        worker.reward_loop_worker_handles = None
    manager.agent_loop_workers = [local.Remote(worker) for worker in workers]
    made = await manager.generate_sequences(local.batch([0, 1, 2, 3, 4], 5, 4))
    assert len(made) == 20
    await asyncio.to_thread(manager.generate_sequences, local.batch([0, 1, 2, 3, 4], 6, 4))
    roots = [span.attributes for span in _named(recorded(), "agent_loop")]
    for step in (5, 6):
        rows = Counter(root["rollout.sample_index"] for root in roots if root["rollout.step"] == step)
        assert len(rows) == 2
        assert set(rows.values()) == {4}
    assert {root["rollout.group_size"] for root in roots} == {4}
    assert otel_rollout.status().sampled_out == {"sampled_out": 24}


@needs_v1
async def test_sample_limit_holds_in_the_v1_trainer(
    verl_config: Any, trace_config: Any, recorded: Callable[[], list[Recorded]]
) -> None:
    """That trainer passes ``trace=False`` for every trajectory."""
    from verl.trainer.ppo.v1.agent_loop_tq import get_trajectory_info

    verl_config.actor_rollout_ref.rollout.trace.max_samples_per_step_per_worker = 2
    worker = local.worker(verl_config)
    samples = rows([0, 1, 4], 5, False, False)
    described = await get_trajectory_info(5, torch.tensor([row["index"] for row in samples]), False)
    for row, trajectory in zip(samples, described, strict=True):
        for session in range(2):
            await worker._run_agent_loop({}, trajectory=trajectory, trace=False, session_id=session, **row)
    roots = [span.attributes for span in _named(recorded(), "agent_loop")]
    assert len({root["rollout.sample_index"] for root in roots}) == 2
    assert sorted(root["rollout.rollout_n"] for root in roots) == [0, 0, 1, 1]
