"""The scripted OpenAI-compatible server, as any client sees it."""

import http.client
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.agents.local_server import requests_of

QUESTION = {"role": "user", "content": "What do 3 apples and 4 pears cost?"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("price", "calculate")]


def ask(url, messages, model="shop", **further):
    body = json.dumps({"model": model, "messages": messages, "tools": TOOLS, **further}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"traceparent": "00-1-2-01"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


def tool_results(*results):
    return [{"role": "tool", "tool_call_id": f"call_{i}", "content": each} for i, each in enumerate(results)]


def test_models_are_listed(server_url):
    """Clients may ask which models there are."""
    with urllib.request.urlopen(f"{server_url}/models", timeout=120) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["shop"]


def test_each_turn_follows_from_the_conversation(server_url):
    """The model asks for two prices and their sum, then answers from the tool's result."""
    results = ["2", "3", "18"]
    turns = [
        json.loads(ask(server_url, [QUESTION, *tool_results(*results[:n])]))["choices"][0] for n in range(4)
    ]
    calls = [turn["message"]["tool_calls"][0]["function"] for turn in turns[:3]]
    assert [call["name"] for call in calls] == ["price", "price", "calculate"]
    assert json.loads(calls[2]["arguments"]) == {"expression": "3 * 2 + 4 * 3"}
    assert [turn["finish_reason"] for turn in turns] == ["tool_calls"] * 3 + ["stop"]
    assert turns[3]["message"]["content"] == "3 apples and 4 pears cost 18."


def test_usage_counts_prompt_and_completion(server_url):
    """A longer conversation has more prompt tokens; the total is the sum."""
    short, long = (
        json.loads(ask(server_url, [QUESTION, *tool_results(*results)]))["usage"]
        for results in ([], ["2", "3"])
    )
    assert short["prompt_tokens"] < long["prompt_tokens"]
    assert long["total_tokens"] == long["prompt_tokens"] + long["completion_tokens"]


@pytest.mark.parametrize("results", [[], ["2", "3", "18"]], ids=["tool call", "text"])
def test_streamed_answer_equals_the_whole_answer(server_url, results):
    """The pieces of a stream make up the same message, with the usage at the end."""
    messages = [QUESTION, *tool_results(*results)]
    whole = json.loads(ask(server_url, messages))
    streamed = ask(server_url, messages, stream=True, stream_options={"include_usage": True}).decode()
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"] == whole["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    arguments = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(arguments) == "".join(c["function"]["arguments"] for c in message.get("tool_calls", ()))


def test_server_tells_which_requests_it_received(server_url):
    """Tests can look for ``traceparent`` on the requests of a library."""
    ask(server_url, [QUESTION], model="shop:seen")
    assert [request["traceparent"] for request in requests_of(server_url, "shop:seen")] == ["00-1-2-01"]


def test_model_with_error_answers_500(server_url):
    """The name of the model chooses the fault, so all agents may share one server."""
    with pytest.raises(urllib.error.HTTPError, match="500"):
        ask(server_url, [QUESTION], model="shop:error")


@pytest.mark.parametrize("stream", [False, True])
def test_model_with_cut_closes_the_connection_in_the_answer(server_url, stream):
    """The client gets a part of the answer."""
    with pytest.raises(http.client.IncompleteRead):
        ask(server_url, [QUESTION], model="shop:cut", stream=stream)


def test_many_clients_ask_at_once(server_url):
    """No request waits for another's connection."""
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: ask(server_url, [QUESTION]), range(200)))
    assert len(answers) == 200
