"""An agent can neither use the proxy for anything but its model, nor steer how it is recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from otel_rollout.base import trajectory_key
from otel_rollout.integrations.model_request_fields import FIELDS
from tests.agents.local_server import requests_of
from tests.black_box.support import (
    CHAT,
    LITELLM,
    MASTER_KEY,
    QUESTION,
    Proxy,
    ask,
    exported,
    reply_of,
    request_of,
    root_of,
)

MESSAGES = [{"role": "user", "content": QUESTION}]
FOREIGN = f"00-{'ab' * 16}-{'cd' * 8}-01"
WEBSOCKETS = [
    "/v1/realtime?model=shop",
    "/realtime?model=shop",
    "/openai/v1/realtime?model=shop",
    "/v1/responses",
    "/responses",
    "/openai/v1/responses",
    "/openai_passthrough/v1/realtime",
    "/vertex_ai/live",
    "/deepgram/v1/listen",
    "/no/such/path",
    CHAT,
]


def steering_fields(elsewhere: str) -> list[dict[str, Any]]:
    """Return fields that LiteLLM reads in a request; ``elsewhere`` is the address of another engine."""
    other = {"model": "openai/shop", "api_base": elsewhere, "api_key": "stolen"}
    retries = {"InternalServerErrorRetries": 2, "BadRequestErrorRetries": 2}
    return [
        {"api_base": elsewhere},
        {"base_url": elsewhere, "api_key": "stolen"},
        {"user_config": {"model_list": [{"model_name": "shop", "litellm_params": other}]}},
        {"model_list": [{"model_name": "shop", "litellm_params": other}]},
        {"fallbacks": [other]},
        {"router_settings_override": {"num_retries": 2, "fallbacks": [other]}},
        {"retry_policy": retries, "num_retries": 2},
        {"model_group_retry_policy": {"shop": retries}},
        {"custom_llm_provider": "openai"},
        {"extra_headers": {"traceparent": FOREIGN, "Traceparent": FOREIGN, "x-request-id": "chosen"}},
        {"headers": {"traceparent": FOREIGN}},
        {"extra_body": {"messages": [{"role": "user", "content": "unrecorded"}]}},
        {"mock_response": "from nobody"},
        {"mock_tool_calls": []},
        {"mock_timeout": True, "timeout": 0.01},
        {"timeout": 0.000001},
        {"cache": {"use-cache": True, "ttl": 600}, "caching": True, "cache_key": "one"},
        {"callbacks": [], "success_callback": [], "failure_callback": []},
        {"litellm_disabled_callbacks": ["otel"]},
        {"litellm_params": {"metadata": {"no-log": True}}},
        {"litellm_logging_obj": {"litellm_call_id": "one"}, "litellm_parent_otel_span": None},
        {"litellm_call_id": "one", "litellm_trace_id": "one", "litellm_session_id": "one"},
        {"id": "one", "completion_call_id": "one"},
        {"no-log": True, "no_log": True, "metadata": {"no-log": True}},
        {"standard_callback_dynamic_params": {"turn_off_message_logging": True}},
        {"langfuse_host": elsewhere, "langsmith_base_url": elsewhere},
        {"guardrails": [], "disable_global_guardrails": True},
        {"additional_drop_params": ["messages", "model"], "drop_params": True},
        {"prompt_id": "chosen", "prompt_variables": {}},
        {"secret_fields": {}, "proxy_server_request": {}, "standard_logging_object": {}},
        {"model_info": {"id": "chosen"}, "model_alias_map": {"shop": "other"}},
        {"allowed_openai_params": ["extra_headers"], "use_litellm_proxy": True},
        {"stream_chunk_size": 1, "max_agentic_loops": 9, "_agentic_loop_depth": 1},
    ]


@pytest.mark.parametrize("key", ["", "sk-1234", "sk-" + "0" * 120, MASTER_KEY])
def test_key_of_no_trajectory_is_refused(proxy: Proxy, key: str) -> None:
    """Without a key that was made for a trajectory, the model is not asked."""
    assert ask(proxy, key) == 401


def test_forged_key_is_refused(proxy: Proxy, trajectory: int) -> None:
    """An agent cannot change its key, to be left unrecorded or to name another trajectory."""
    key = proxy.key(trajectory)
    flags = key.index("-0", -36)
    assert ask(proxy, key[:flags] + "-00" + key[flags + 3 :]) == 401
    other = proxy.run.children[trajectory + 1]["TRACEPARENT"]
    assert ask(proxy, trajectory_key.signed(other, "sk-guessed")) == 401
    assert exported(proxy.run.node_dir, other.split("-")[1]) == []


@pytest.mark.parametrize(
    "path",
    [
        "/key/generate",
        "/model/new",
        "/config/update",
        "/openai/v1/chat/completions",
        "/anthropic/v1/messages",
        "/vllm/v1/chat/completions",
        "/openai/deployments/shop/chat/completions",
        "/v1/files",
        "/v1/batches",
        "/v1/vector_stores",
        "/v1/responses/resp_1/cancel",
        "/mcp/",
        "/v1/agents",
    ],
)
def test_key_opens_no_other_route_of_the_proxy(proxy: Proxy, path: str) -> None:
    """Administration, other agents' files and requests that LiteLLM passes through are refused."""
    body = {"model": "shop", "messages": [{"role": "user", "content": QUESTION}]}
    assert proxy.post(path, body, proxy.key(0))[0] in (403, 405)


def test_key_may_read_the_models_names_and_nothing_else(proxy: Proxy) -> None:
    """Many agents list the models first; no other GET request is answered."""
    key = proxy.key(0)
    status, answer = proxy.get("/v1/models", key)
    assert status == 200
    assert "shop" in [model["id"] for model in answer["data"]]
    for path in ("/model/info", "/v1/files", "/v1/vector_stores", "/v1/mcp/server", "/v1/agents", "/health"):
        assert proxy.get(path, key)[0] == 403, path


def test_agents_that_choose_one_call_id_are_recorded_each_in_its_own_trajectory(
    proxy: Proxy, numbers: Iterator[int], scripted: str
) -> None:
    """LiteLLM takes a call's id from a header; two agents with one id at once do not exchange their turns."""
    sent_before = len(requests_of(scripted, "shop:slow"))
    trajectories = [next(numbers) for _ in range(3)]
    chosen = {"x-litellm-call-id": "one", "x-litellm-trace-id": "one", "x-litellm-session-id": "one"}
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(ask, proxy, proxy.key(trajectory), "shop:slow", **chosen)
            for trajectory in trajectories
        ]
        assert [future.result() for future in asked] == [200] * 3
    spans = [span for trajectory in trajectories for span in proxy.calls(trajectory, 1)]
    sent = requests_of(scripted, "shop:slow")[sent_before:]
    assert {request["traceparent"].split("-")[2] for request in sent} == {
        span.span.span_id.hex() for span in spans
    }
    assert [span.attributes["rollout.sample_index"] for span in spans] == trajectories


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"no-log": True}, {}),
        ({"no_log": True}, {}),
        ({"metadata": {"no-log": True, "user_id": "someone"}}, {}),
        ({"litellm_metadata": {"no-log": True}}, {}),
        ({"litellm_call_id": "chosen", "litellm_trace_id": "chosen"}, {}),
        ({}, {"litellm-enable-message-redaction": "true"}),
        ({}, {"X-LiteLLM-Enable-Message-Redaction": "true"}),
        ({}, {"x-litellm-disable-callbacks": "otel"}),
    ],
)
def test_agent_cannot_switch_off_its_recording(
    proxy: Proxy, trajectory: int, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    """Fields and headers that steer LiteLLM have no effect: the call is recorded with its messages."""
    asked = {"model": "shop", "messages": [{"role": "user", "content": QUESTION}], **fields}
    assert proxy.post(CHAT, asked, proxy.key(trajectory), **headers)[0] == 200
    (span,) = proxy.calls(trajectory, 1)
    assert request_of(span) == asked["messages"]
    assert reply_of(span)["content"]


@pytest.mark.parametrize("field", ["", "metadata", "litellm_metadata"])
def test_request_that_turns_off_messages_is_refused(proxy: Proxy, trajectory: int, field: str) -> None:
    """LiteLLM itself refuses this field of a body, before the model is asked."""
    steering: dict[str, Any] = {"turn_off_message_logging": True}
    asked = {"model": "shop", "messages": [{"role": "user", "content": QUESTION}]}
    key = proxy.key(trajectory)
    assert proxy.post(CHAT, {**asked, **({field: steering} if field else steering)}, key)[0] >= 400
    assert ask(proxy, key) == 200
    (span,) = proxy.calls(trajectory, 1)
    assert request_of(span) == asked["messages"]


def test_agent_cannot_make_the_proxy_repeat_its_requests(
    proxy: Proxy, trajectory: int, scripted: str
) -> None:
    """Each attempt is the agent's own request, and one span."""
    asked = {"model": "shop:error", "messages": [{"role": "user", "content": QUESTION}], "num_retries": 3}
    sent_before = len(requests_of(scripted, "shop:error"))
    headers = {"x-litellm-num-retries": "3"}
    assert proxy.post(CHAT, asked, proxy.key(trajectory), **headers)[0] == 500
    assert len(requests_of(scripted, "shop:error")) == sent_before + 1


def test_fields_that_steer_litellm_are_refused_or_without_effect(
    proxy: Proxy, trajectory: int, scripted: str
) -> None:
    """No other server is asked; each served request asked the engine once and is one whole span."""
    sent_before = len(requests_of(scripted, "shop"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        elsewhere = f"http://127.0.0.1:{other.getsockname()[1]}/v1"
        served = [
            fields
            for fields in steering_fields(elsewhere)
            if proxy.post(CHAT, {"model": "shop", "messages": MESSAGES, **fields}, proxy.key(trajectory))[0]
            == 200
        ]
        with pytest.raises(BlockingIOError):
            other.accept()
    assert len(served) > 20
    spans = proxy.calls(trajectory, len(served))
    assert len(spans) == len(served)
    for span in spans:
        assert span.span.parent_span_id.hex() == root_of(proxy, trajectory)
        assert request_of(span) == MESSAGES
        assert reply_of(span)["content"] not in (None, "", "from nobody")
    sent = requests_of(scripted, "shop")[sent_before:]
    assert [request["traceparent"].split("-")[1:3] for request in sent] == [
        [span.span.trace_id.hex(), span.span.span_id.hex()] for span in spans
    ]


@pytest.mark.parametrize("field", ["retry_policy", "model_group_retry_policy", "router_settings_override"])
def test_agent_cannot_set_a_policy_of_retries(
    proxy: Proxy, trajectory: int, scripted: str, field: str
) -> None:
    """A request that fails is asked once, with each field that could repeat it."""
    policy = {"InternalServerErrorRetries": 2}
    value = {"retry_policy": policy, "model_group_retry_policy": {"shop:error": policy}}
    asked = {"model": "shop:error", "messages": MESSAGES, field: value.get(field, {"num_retries": 2})}
    sent_before = len(requests_of(scripted, "shop:error"))
    assert proxy.post(CHAT, asked, proxy.key(trajectory))[0] == 500
    assert len(requests_of(scripted, "shop:error")) == sent_before + 1


@pytest.mark.parametrize(
    ("query", "model"),
    [("", "shop,shop"), ("", ["shop", "shop"]), ("?model=shop,shop", "shop"), ("?api-version=2", "shop")],
)
def test_request_of_several_models_or_with_a_query_is_refused(
    proxy: Proxy, trajectory: int, scripted: str, query: str, model: Any
) -> None:
    """LiteLLM would ask each model of a list, and record one call; a query names a model too."""
    sent_before = len(requests_of(scripted, "shop"))
    assert proxy.post(CHAT + query, {"model": model, "messages": MESSAGES}, proxy.key(trajectory))[0] == 400
    assert len(requests_of(scripted, "shop")) == sent_before


def test_body_that_is_a_form_is_filtered_like_json(proxy: Proxy, trajectory: int, scripted: str) -> None:
    """A form can hold the same fields: it asks no other model, and switches nothing off."""
    key = proxy.key(trajectory)
    form = {"content-type": "application/x-www-form-urlencoded"}
    proxy.send(CHAT, "model=shop,shop&no-log=true&messages=x", key, **form)
    sent_before = len(requests_of(scripted, "shop"))
    assert ask(proxy, key) == 200
    assert len(requests_of(scripted, "shop")) == sent_before + 1


@pytest.mark.parametrize("path", WEBSOCKETS)
def test_websocket_is_refused(proxy: Proxy, trajectory: int, path: str) -> None:
    """No path opens a connection that could ask a model unrecorded, known to LiteLLM or not."""
    assert proxy.websocket(path, proxy.key(trajectory)) == 403


def test_fields_of_the_apis_are_all_allowed_but_those_that_litellm_reads() -> None:
    """What OpenAI's and Anthropic's request types define reaches the engine, apart from metadata."""
    program = """
import json
from litellm.types.llms.anthropic import AnthropicMessagesRequest
from litellm.types.utils import all_litellm_params
from openai.types import CompletionCreateParams, EmbeddingCreateParams
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses
from openai.types import completion_create_params as completions
types = [AnthropicMessagesRequest, EmbeddingCreateParams, chat.CompletionCreateParamsStreaming,
         responses.ResponseCreateParamsStreaming, completions.CompletionCreateParamsStreaming]
fields = {field for type in types for field in type.__required_keys__ | type.__optional_keys__}
print(json.dumps([sorted(fields), sorted(all_litellm_params)]))
"""
    environ = {"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [LITELLM.with_name("python"), "-c", program]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    of_apis, of_litellm = (set(names) for names in json.loads(ran.stdout))
    assert of_apis - FIELDS == {"metadata", "litellm_metadata"}
    assert not FIELDS & of_litellm
