"""The agent: a program that calls a model by plain HTTP, and tools of its own."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

_ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


def main() -> None:
    """Talk to the model until it calls no tool, in the dialect that the prompt names."""
    prompt = os.environ["PROMPT"]
    if "by Responses" in prompt:
        _talk_by_responses(prompt)
    elif "by Anthropic" in prompt:
        _talk_by_anthropic(prompt)
    else:
        _talk()


def _talk() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": os.environ["PROMPT"]}]
    for _ in range(10):
        reply = _ask(messages)
        messages.append(reply)
        calls = reply.get("tool_calls") or []
        if not calls:
            return
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": _run(call["function"])})


def _talk_by_responses(prompt: str) -> None:
    tool = {"type": "function", **_ADD["function"]}
    body = {"model": "ignored", "instructions": "be brief", "tools": [tool]}
    items: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    items += _post("/responses", {**body, "input": prompt})["output"]
    items.append({"type": "function_call_output", "call_id": "call_0", "output": "5"})
    _post("/responses", {**body, "input": items})


def _talk_by_anthropic(prompt: str) -> None:
    tool = {"name": "add", "description": "Add two numbers.", "input_schema": {"type": "object"}}
    body = {"model": "ignored", "system": "be brief", "max_tokens": 77, "tools": [tool]}
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    reply = _post("/messages", {**body, "messages": messages})["content"]
    result = {"type": "tool_result", "tool_use_id": "call_0", "content": "the adder broke", "is_error": True}
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": [result]}]
    _post("/messages", {**body, "messages": messages})


def _post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    secret = os.environ["SECRET"]
    headers = {"Authorization": f"Bearer {secret}", "X-Api-Key": secret, "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["ENDPOINT"] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def _ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "ignored", "messages": messages, "tools": [_ADD], "temperature": 0.5}
    headers = {"Authorization": f"Bearer {os.environ['SECRET']}", "Content-Type": "application/json"}
    for attempt in range(2):
        request = urllib.request.Request(
            os.environ["ENDPOINT"] + "/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request) as response:
                reply: dict[str, Any] = json.load(response)["choices"][0]["message"]
                return reply
        except urllib.error.HTTPError as error:
            if error.code != 503 or attempt:
                print(error.read().decode(), file=sys.stderr)
                raise SystemExit(3) from error
    raise AssertionError


def _run(function: dict[str, Any]) -> str:
    if function["name"] == "sleep":
        time.sleep(600)
    if function["name"] != "add":
        return f"error: unknown tool {function['name']!r}"
    numbers = json.loads(function["arguments"])
    return str(numbers["a"] + numbers["b"])


if __name__ == "__main__":
    main()
