"""A model server that speaks OpenAI's protocol and answers by a script."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedModel(ThreadingHTTPServer):
    """The server.

    Attributes:
        requests: bodies of all requests so far.
        asked: set by a request that is not answered.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.failures: dict[str, int] = {}
        self.asked = threading.Event()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving() -> Iterator[ScriptedModel]:
    """Serve on a port of this machine."""
    server = ScriptedModel()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedModel

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        """Answer a model call of any dialect."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if self.path.endswith("/responses"):
            self._send(_response(body))
            return
        if self.path.endswith("/messages"):
            self._send(_anthropic_message(body))
            return
        prompt = body["messages"][0]["content"]
        if "model hangs" in prompt:
            self.server.asked.set()
            self.server.released.wait(60)
            return
        if "model fails" in prompt or ("flaky" in prompt and self._is_first(prompt)):
            self._send({"error": {"message": "the engine broke"}}, 503)
            return
        self._send(_completion(body))

    def _is_first(self, prompt: str) -> bool:
        seen = self.server.failures.get(prompt, 0)
        self.server.failures[prompt] = seen + 1
        return seen == 0

    def _send(self, answer: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    reply = _reply(body["messages"])
    reason = "tool_calls" if reply.get("tool_calls") else "stop"
    return {
        "id": "completion",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": reply, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": 3, "total_tokens": 13},
    }


def _reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
    prompt, results = messages[0]["content"], [m["content"] for m in messages if m["role"] == "tool"]
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    if "no tool" in prompt or "reward" in prompt:
        return _says("hello")
    if "sleeps" in prompt and len(results) >= len(numbers) - 1:
        return _calls("sleep", "{}", "call_0")
    if "unknown tool" in prompt and not results:
        return _calls("nowhere", "{}", "call_0")
    if "parallel" in prompt and not results:
        other = "call_0" if "equal ids" in prompt else "call_1"
        return _both(_calls("add", '{"a": 1, "b": 2}', "call_0"), _calls("add", '{"a": 3, "b": 4}', other))
    if len(results) < len(numbers) - 1 and "parallel" not in prompt:
        first = numbers[0] if not results else int(results[-1])
        # One id for all calls: some models number the calls of each reply anew.
        return _calls("add", json.dumps({"a": first, "b": numbers[len(results) + 1]}), "call_0")
    return _says("5" if "wrong" in prompt or not results else results[-1])


def _response(body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of OpenAI's Responses API: first a tool call, then a text."""
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "thinking"}]}
    call = {"type": "function_call", "id": "f", "call_id": "call_0", "name": "add", "arguments": '{"a": 2}'}
    said = {"type": "output_text", "text": "five", "annotations": []}
    text = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [said]}
    output = [thought, call] if isinstance(body["input"], str) else [text]
    usage = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
    return {
        "id": "response",
        "object": "response",
        "created_at": 1,
        "model": "scripted",
        "status": "completed",
        "output": output,
        "usage": usage,
    }


def _anthropic_message(body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of Anthropic's API: first a tool call, then a text."""
    is_first = len(body["messages"]) == 1
    call = {"type": "tool_use", "id": "call_0", "name": "add", "input": {"a": 2}}
    return {
        "id": "message",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [call if is_first else {"type": "text", "text": "five"}],
        "stop_reason": "tool_use" if is_first else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 3},
    }


def _says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _calls(name: str, arguments: str, id_: str) -> dict[str, Any]:
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, "tool_calls": one["tool_calls"] + other["tool_calls"]}
