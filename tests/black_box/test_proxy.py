"""LiteLLM's real proxy records the model calls of agents that are handed a base URL and a key alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from otel_rollout.base import trajectory_key
from tests.agents.local_server import requests_of
from tests.black_box.support import (
    CHAT,
    MASTER_KEY,
    QUESTION,
    Proxy,
    ask,
    exported,
    plain,
    reply_of,
    request_of,
    root_of,
)
from tests.otlp.model_server import ANSWER, ARGUMENTS

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("price", "calculate")
]
RESULTS = ["2", "3", "18"]
WEATHER = {"city": {"type": "string"}}


def converse(proxy: Proxy, key: str) -> list[dict[str, Any]]:
    """Let the scripted model solve its problem with tools; return the conversation."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for turn in range(4):
        status, answer = proxy.post(CHAT, {"model": "shop", "messages": messages, "tools": TOOLS}, key)
        assert status == 200
        messages.append(answer["choices"][0]["message"])
        for call in messages[-1].get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULTS[turn]})
    return messages


def test_turns_of_an_agent_are_model_calls_of_its_trajectory(proxy: Proxy, trajectory: int) -> None:
    """Each request is one span below the root, with identity, messages, tool calls, results and tokens."""
    messages = converse(proxy, proxy.key(trajectory))
    spans = proxy.calls(trajectory, 4)
    assert [(span.name, span.scope) for span in spans] == [("chat shop", "litellm")] * 4
    assert {span.span.parent_span_id.hex() for span in spans} == {root_of(proxy, trajectory)}
    for turn, span in enumerate(spans):
        attributes = span.attributes
        assert attributes["rollout.sample_index"] == trajectory
        assert attributes["rollout.step"] == 3
        assert attributes["openinference.span.kind"] == "LLM"
        assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "shop"
        assert request_of(span) == [plain(message) for message in messages[: 2 * turn + 1]]
        assert reply_of(span) == plain(messages[2 * turn + 1])
        assert attributes["gen_ai.usage.output_tokens"] > 0
        assert attributes["gen_ai.response.finish_reasons"] == ["tool_calls" if turn < 3 else "stop"]
    sizes = [span.attributes["gen_ai.usage.input_tokens"] for span in spans]
    assert sizes == sorted(set(sizes))


def test_streamed_reply_is_recorded_like_a_whole_one(proxy: Proxy, trajectory: int) -> None:
    """A stream's span has the reply, the tokens and the reason of the end."""
    asked = {"model": "shop", "messages": [{"role": "user", "content": QUESTION}], "tools": TOOLS}
    proxy.post(CHAT, asked, proxy.key(trajectory))
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    assert proxy.post(CHAT, streamed, proxy.key(trajectory))[0] == 200
    whole, stream = proxy.calls(trajectory, 2)
    assert reply_of(whole) == reply_of(stream)
    for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons"):
        assert whole.attributes[name] == stream.attributes[name]


def test_anthropic_messages_are_recorded_in_the_same_form(proxy: Proxy, trajectory: int) -> None:
    """An agent that speaks Anthropic's API, as Claude Code does, gives the same messages."""
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": WEATHER}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": ARGUMENTS}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "21"}
    messages = [
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
        {"role": "user", "content": [result]},
    ]
    asked = {"model": "local", "max_tokens": 64, "messages": messages, "tools": [tool]}
    key = proxy.key(trajectory)
    for stream in (False, True):
        body = {**asked, "stream": stream}
        assert proxy.post("/v1/messages", body, "", **{"x-api-key": key, "authorization": ""})[0] == 200
    for span in proxy.calls(trajectory, 2):
        question, reply, said = request_of(span)
        assert question == {"role": "user", "content": "How warm is it?"}
        assert reply["content"] == "I look."
        assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS
        assert said == {"role": "tool", "tool_call_id": "toolu_1", "content": "21"}
        assert reply_of(span) == {"role": "assistant", "content": ANSWER}
        assert span.attributes["gen_ai.usage.input_tokens"] == 120
        assert span.attributes["gen_ai.usage.output_tokens"] == 24


def test_responses_api_is_recorded_in_the_same_form(proxy: Proxy, trajectory: int) -> None:
    """An agent that speaks OpenAI's Responses API, as Codex does, gives the same messages."""
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": WEATHER}}
    call = {
        "type": "function_call",
        "call_id": "call_1",
        "name": "weather",
        "arguments": json.dumps(ARGUMENTS),
    }
    items = [
        {"role": "user", "content": "How warm is it?"},
        call,
        {"type": "function_call_output", "call_id": "call_1", "output": "21"},
    ]
    key = proxy.key(trajectory)
    assert (
        proxy.post("/v1/responses", {"model": "local", "input": items[0]["content"], "tools": [tool]}, key)[0]
        == 200
    )
    assert proxy.post("/v1/responses", {"model": "local", "input": items, "tools": [tool]}, key)[0] == 200
    first, second = proxy.calls(trajectory, 2)
    assert request_of(first) == [{"role": "user", "content": "How warm is it?"}]
    assert json.loads(reply_of(first)["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS
    _, reply, said = request_of(second)
    assert reply["tool_calls"][0]["id"] == "call_1"
    assert said == {"role": "tool", "tool_call_id": "call_1", "content": "21"}
    assert reply_of(second) == {"role": "assistant", "content": ANSWER}
    assert second.attributes["gen_ai.usage.input_tokens"] == 120
    assert second.attributes["gen_ai.usage.output_tokens"] == 24


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_engine_gets_the_traceparent_of_the_model_call(
    proxy: Proxy, trajectory: int, scripted: str, path: str, stream: bool
) -> None:
    """The engine's span is below the call, not beside it."""
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"model": "shop", "max_tokens": 64, "messages": messages, "stream": stream}
    assert proxy.post(path, asked, proxy.key(trajectory))[0] == 200
    (span,) = proxy.calls(trajectory, 1)
    sent = {request["traceparent"] for request in requests_of(scripted, "shop")}
    assert f"00-{span.span.trace_id.hex()}-{span.span.span_id.hex()}-01" in {
        text[:-2] + "01" for text in sent if text
    }


def test_foreign_traceparent_header_does_not_move_a_call(proxy: Proxy, trajectory: int) -> None:
    """An agent with tracing of its own sends a header of another trace; the key decides."""
    foreign = f"00-{'ab' * 16}-{'cd' * 8}-01"
    assert ask(proxy, proxy.key(trajectory), traceparent=foreign) == 200
    (span,) = proxy.calls(trajectory, 1)
    assert span.span.parent_span_id.hex() == root_of(proxy, trajectory)
    assert exported(proxy.run.node_dir, "ab" * 16) == []


def test_agents_own_span_of_the_trajectory_is_the_parent(proxy: Proxy, trajectory: int) -> None:
    """An agent that continues the trajectory's trace by itself has its calls below its own spans."""
    version, trace_id, _, flags = proxy.run.children[trajectory]["TRACEPARENT"].split("-")
    own = f"{version}-{trace_id}-{'ef' * 8}-{flags}"
    assert ask(proxy, proxy.key(trajectory), traceparent=own) == 200
    (span,) = proxy.calls(trajectory, 1)
    assert span.span.parent_span_id.hex() == "ef" * 8


@pytest.mark.parametrize("flags", ["00", "02"])
def test_agent_cannot_mark_its_calls_as_unrecorded(proxy: Proxy, trajectory: int, flags: str) -> None:
    """The flags of the header are the agent's; those of the key count."""
    trace_id = proxy.run.children[trajectory]["TRACEPARENT"].split("-")[1]
    assert ask(proxy, proxy.key(trajectory), traceparent=f"00-{trace_id}-{'ef' * 8}-{flags}") == 200
    proxy.calls(trajectory, 1)


def test_agent_cannot_mark_its_calls_as_recorded(proxy: Proxy, trajectory: int) -> None:
    """Nor can the agent of a trajectory that is sampled out have its calls recorded."""
    trace_id = "5b" * 16
    key = trajectory_key.signed(f"00-{trace_id}-{'cd' * 8}-00", MASTER_KEY)
    assert ask(proxy, key, traceparent=f"00-{trace_id}-{'ef' * 8}-01") == 200
    assert ask(proxy, proxy.key(trajectory)) == 200
    proxy.calls(trajectory, 1)  # which was asked later, and is recorded
    assert exported(proxy.run.node_dir, trace_id) == []


def test_unrecorded_trajectory_is_served_and_not_recorded(proxy: Proxy, trajectory: int) -> None:
    """A key with trace flags 00, of a trajectory that is sampled out, leaves no span."""
    trace_id = "5a" * 16
    key = trajectory_key.signed(f"00-{trace_id}-{'cd' * 8}-00", MASTER_KEY)
    assert ask(proxy, key) == 200
    assert ask(proxy, proxy.key(trajectory)) == 200
    proxy.calls(trajectory, 1)  # which was asked later, and is recorded
    assert exported(proxy.run.node_dir, trace_id) == []


def test_failed_request_is_an_error_and_disturbs_nobody(proxy: Proxy, trajectory: int) -> None:
    """A request that the engine fails or cuts is one error span; the agent's next request is served."""
    key = proxy.key(trajectory)
    assert ask(proxy, key, "shop:error") == 500
    assert ask(proxy, key, "shop:error") == 500  # the agent tries again
    assert ask(proxy, key, "shop:cut") == 500
    assert ask(proxy, key) == 200
    spans = proxy.calls(trajectory, 4)
    assert [span.name for span in spans] == [
        "chat shop:error",
        "chat shop:error",
        "chat shop:cut",
        "chat shop",
    ]
    assert [span.span.status.code for span in spans[:3]] == [2, 2, 2]
    assert all("output.value" not in span.attributes for span in spans[:3])


@pytest.mark.parametrize(
    "body", [{"model": "shop", "messages": "no list"}, {"model": "none", "messages": []}, [], {}]
)
def test_wrong_request_is_refused_and_the_next_one_served(proxy: Proxy, trajectory: int, body: Any) -> None:
    """A body that is no request of a model gives an error to the agent, and no successful call."""
    key = proxy.key(trajectory)
    assert proxy.post(CHAT, body, key)[0] >= 400
    assert ask(proxy, key) == 200
    spans = proxy.calls(trajectory, 1)
    assert [span.name for span in spans if span.span.status.code != 2] == ["chat shop"]


def test_agent_that_hangs_up_harms_nobody(proxy: Proxy, trajectory: int) -> None:
    """An agent that is killed in a request leaves what it had asked before; others go on."""
    key = proxy.key(trajectory)
    assert ask(proxy, key) == 200
    body = json.dumps({"model": "shop:slow", "messages": [{"role": "user", "content": QUESTION}]})
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    head += "Content-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port)) as agent:
        agent.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    assert ask(proxy, key) == 200
    names = [span.name for span in proxy.calls(trajectory, 2)]
    assert names.count("chat shop") == 2


def test_flood_of_one_agent_is_recorded_once_and_lets_others_through(
    proxy: Proxy, numbers: Iterator[int]
) -> None:
    """200 requests at once are 200 spans of one trajectory; another agent is served meanwhile."""
    flooding, other = next(numbers), next(numbers)
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(ask, proxy, proxy.key(flooding)) for _ in range(200)]
        assert ask(proxy, proxy.key(other)) == 200
        assert {future.result() for future in asked} == {200}
    spans = proxy.calls(flooding, 200)
    assert len({span.span.span_id for span in spans}) == len(spans) == 200
    assert len(proxy.calls(other, 1)) == 1


def test_call_after_the_trajectorys_end_is_recorded_with_its_identity(proxy: Proxy, trajectory: int) -> None:
    """An agent that lives on is recorded in the trajectory; a proxy that is killed loses no earlier call.

    This is the last test with this proxy: it ends the trajectories and kills the proxy.
    """
    proxy.run.finish()
    assert ask(proxy, proxy.key(trajectory)) == 200
    (late,) = proxy.calls(trajectory, 2)[-1:]
    assert late.attributes["rollout.sample_index"] == trajectory
    proxy.kill()
    assert len(proxy.calls(trajectory, 2)) == 2
