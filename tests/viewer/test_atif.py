"""A trajectory as ATIF: valid by the format's models, with every message, call and result."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout.look.conversation import atif
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.conversation.turn import MODEL, TOOL, Turn
from otel_rollout.otlp.messages import Call, Message

models = pytest.importorskip("atif", reason="needs Python 3.11")


def test_demo_trajectories_are_valid_and_whole(demo_table: Path) -> None:
    """Each document has the trajectory's messages, tool calls, results and token counts."""
    table = otel_rollout.open_table(str(demo_table))
    for row in table.trajectories:
        trajectory = table.trajectory(row["trace_id"])
        document = trajectory.atif()
        read = models.Trajectory.model_validate(json.loads(json.dumps(document)))
        said = [message for message in trajectory.chat if message["role"] != "tool"]
        assert [step.message for step in read.steps] == [message["content"] for message in said]
        results = [
            (result.source_call_id, result.content)
            for step in read.steps
            if step.observation
            for result in step.observation.results
        ]
        assert results == [
            (message.get("tool_call_id"), message["content"])
            for message in trajectory.chat
            if message["role"] == "tool"
        ]
        assert read.final_metrics is not None
        assert read.final_metrics.total_prompt_tokens == row["tokens_in"]
        assert sum(step.metrics.completion_tokens for step in read.steps if step.metrics) == row["tokens_out"]
        assert document["extra"]["path"] == row["path"]
        assert document["extra"]["scores"]["reward"] == row["reward"]


def test_version_is_that_of_the_formats_own_models() -> None:
    """A document names the newest version of the format."""
    version = metadata.version("atif").rpartition(".")[0]
    assert f"ATIF-v{version}" == atif.SCHEMA_VERSION


def test_document_of_a_failed_tool_call(demo_table: Path) -> None:
    """The agent's step has the call, and its observation the error."""
    document = otel_rollout.open_table(str(demo_table)).trajectory(1, 29, 1).atif()
    asked = document["steps"][2]
    assert (document["agent"]["name"], asked["source"], asked["step_id"]) == ("tool_agent", "agent", 3)
    (call,) = asked["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("calculator", {"expression": "8 / 0"})
    assert asked["observation"]["results"] == [
        {
            "source_call_id": call["tool_call_id"],
            "content": "Error: division by zero in '8 / 0'",
            "extra": {
                "error": "ToolError: division by zero in '8 / 0'",
                "error_type": "otel_rollout_demo.tools.ToolError",
            },
        }
    ]


def test_calls_and_results_without_ids_and_odd_messages_are_valid() -> None:
    """Results go to the calls in their order; arguments that are no object are wrapped."""
    said = [
        Message(TOOL, "of nobody"),
        Message("developer", "Be brief."),
        Message(MODEL, "Both.", (Call("add", [1, 2]), Call("halve", {"of": 3}))),
        Message(TOOL, "3"),
        Message(TOOL, "1.5"),
        Message(TOOL, "one too many", call_id="unknown"),
        Message("user", "Thanks."),
    ]
    heard = [(message, Turn(message.role, message.text, calls=message.calls)) for message in said]
    document = atif.document_of(Conversation(Summary("f" * 32), (), heard))
    read = models.Trajectory.model_validate(document)
    assert [step.source for step in read.steps] == ["system", "system", "agent", "user"]
    asked = document["steps"][2]
    assert [call["arguments"] for call in asked["tool_calls"]] == [{"arguments": [1, 2]}, {"of": 3}]
    assert asked["observation"]["results"] == [
        {"source_call_id": "3-1", "content": "3"},
        {"source_call_id": "3-2", "content": "1.5"},
        {"content": "one too many"},
    ]


def test_calls_that_no_reply_names_are_the_steps_own() -> None:
    """A tool that the agent calls by itself is a call of the step, with its result."""
    reply = Turn(MODEL, "I add.", is_call=True, token_ids=(5, 6), finish_reason="stop")
    tool = Turn(TOOL, "3", name="add", arguments={"a": 1}, error="late", is_call=True)
    said = [(Message(MODEL, "I add."), reply), (Message(TOOL, "3", call_id="c9"), tool)]
    document = atif.document_of(Conversation(Summary("f" * 32), (), said))
    models.Trajectory.model_validate(document)
    (step,) = document["steps"]
    assert step["tool_calls"] == [{"tool_call_id": "c9", "function_name": "add", "arguments": {"a": 1}}]
    assert step["observation"]["results"] == [
        {"source_call_id": "c9", "content": "3", "extra": {"error": "late"}}
    ]
    assert (step["llm_call_count"], step["metrics"]["completion_token_ids"]) == (1, [5, 6])


def test_trajectory_without_messages_has_a_step_with_its_error() -> None:
    """The format wants a step; the document says who, when and how well."""
    document = atif.document_of(Conversation(Summary("f" * 32, path="1/7/0", error="no sandbox"), ()))
    models.Trajectory.model_validate(document)
    assert [(step["source"], step["message"]) for step in document["steps"]] == [("system", "no sandbox")]
