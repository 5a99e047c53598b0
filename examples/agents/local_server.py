"""Serve a scripted model with an OpenAI-compatible API, for examples and tests without a model or a network.

    python examples/agents/local_server.py 8000

The model answers "What do 3 apples and 4 pears cost?" with three tool calls (``price`` twice, ``calculate``)
and a sentence. Each turn follows from the conversation alone, so any number of agents may ask at once. The
name of the model chooses a fault: ``shop:error`` answers 500, ``shop:cut`` closes the connection within the
answer, ``shop:slow`` takes two seconds. ``GET /requests`` returns the latest requests with their
``traceparent``.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

MODEL: Final = "shop"
_SLOW_S: Final = 2.0
"""Seconds that the model ``shop:slow`` takes for an answer."""
_MAX_REQUESTS: Final = 20_000
"""Number of latest requests that ``GET /requests`` returns."""
_QUESTION: Final = re.compile(r"(\d+) (\w+) and (\d+) (\w+) cost")
_OBSERVATION: Final = "Observation:"
"""Begins a tool's result in a message of smolagents, which sends results as messages of the user."""


@dataclass(frozen=True)
class Turn:
    """An answer of the model: a text, or the call of a tool."""

    text: str = ""
    tool: str = ""
    arguments: str = "{}"
    call_id: str = ""

    def message(self) -> dict[str, Any]:
        """Return the assistant's message."""
        if not self.tool:
            return {"role": "assistant", "content": self.text}
        function = {"name": self.tool, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    @property
    def finish_reason(self) -> str:
        """Return why the model stopped."""
        return "tool_calls" if self.tool else "stop"


def next_turn(messages: list[dict[str, Any]], tools: set[str]) -> Turn:
    """Return the scripted model's answer to a conversation.

    Args:
        messages: the messages as an OpenAI client sends them.
        tools: names of the tools that the client offers.
    """
    question, results = _question_and_results(messages)
    if question is None:
        return Turn("I only know what things cost.")
    first_count, first, second_count, second = question
    calls: list[tuple[str, dict[str, str]]] = [("price", {"item": first}), ("price", {"item": second})]
    if len(results) >= len(calls):
        sum_ = f"{first_count} * {results[0]} + {second_count} * {results[1]}"
        calls.append(("calculate", {"expression": sum_}))
    if len(results) < len(calls) and calls[len(results)][0] in tools:
        name, arguments = calls[len(results)]
        return Turn(tool=name, arguments=json.dumps(arguments), call_id=f"call_{len(results)}")
    total = results[-1] if results else "nothing"
    answer = f"{first_count} {first} and {second_count} {second} cost {total}."
    if "final_answer" in tools:  # smolagents: the answer is a tool call, too
        return Turn(tool="final_answer", arguments=json.dumps({"answer": answer}), call_id="call_final")
    return Turn(answer)


def _question_and_results(messages: list[dict[str, Any]]) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the latest question's parts and the results of the tools called since then."""
    question, results = None, []
    for message in messages:
        text = _text(message.get("content"))
        if message["role"] == "tool":
            results.append(text.strip())
        elif message["role"] == "user" and text.startswith(_OBSERVATION):
            results.append(text.removeprefix(_OBSERVATION).strip())
        elif message["role"] == "user" and (found := _QUESTION.search(text)):
            question, results = found.groups(), []
    return question, results


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _tokens(*texts: str) -> int:
    """Count words and marks, in place of a tokenizer's tokens."""
    return sum(len(re.findall(r"\w+|[^\w\s]", text)) for text in texts)


def usage(messages: list[dict[str, Any]], turn: Turn) -> dict[str, int]:
    """Return the counts of a call's tokens."""
    prompt, completion = _tokens(json.dumps(messages)), _tokens(turn.text, turn.tool, turn.arguments)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def completion(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer a request without streaming."""
    turn = _turn(asked)
    choice = {"index": 0, "message": turn.message(), "finish_reason": turn.finish_reason}
    return {**_head(asked, "chat.completion"), "choices": [choice], "usage": usage(asked["messages"], turn)}


def chunks(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Answer a request with streaming: a text word by word, a tool call in two halves."""
    turn, head = _turn(asked), _head(asked, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    if turn.tool:
        call = turn.message()["tool_calls"][0]
        half = len(turn.arguments) // 2
        function = {"name": turn.tool, "arguments": turn.arguments[:half]}
        yield chunk({"role": "assistant", "tool_calls": [{**call, "index": 0, "function": function}]})
        rest = {"index": 0, "function": {"arguments": turn.arguments[half:]}}
        yield chunk({"tool_calls": [rest]})
    else:
        yield chunk({"role": "assistant", "content": ""})
        for word in re.findall(r"\S+\s*", turn.text):
            yield chunk({"content": word})
    yield chunk({}, turn.finish_reason)
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": usage(asked["messages"], turn)}


def _turn(asked: dict[str, Any]) -> Turn:
    tools = {tool["function"]["name"] for tool in asked.get("tools") or () if "function" in tool}
    return next_turn(asked["messages"], tools)


def _head(asked: dict[str, Any], type_: str) -> dict[str, Any]:
    id_ = f"chatcmpl-{time.monotonic_ns():x}"
    return {"id": id_, "object": type_, "created": int(time.time()), "model": asked["model"]}


class _Handler(BaseHTTPRequestHandler):
    """Answer the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LocalServer

    def do_GET(self) -> None:
        """Answer with the models or the requests."""
        if self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif self.path == "/requests":
            self._send(200, list(self.server.requests))
        else:
            self._send(404, {"error": {"message": f"There is no {self.path}."}})

    def do_POST(self) -> None:
        """Answer as the scripted model does."""
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.requests.append(
            {"path": self.path, "model": asked.get("model"), "traceparent": self.headers.get("traceparent")}
        )
        if self.path != "/v1/chat/completions":
            self._send(404, {"error": {"message": f"There is no {self.path}."}})
            return
        fault = str(asked.get("model")).partition(":")[2]
        if fault == "slow":
            time.sleep(_SLOW_S)
        if fault == "error":
            self._send(500, {"error": {"message": "The model has failed.", "type": "server_error"}})
        elif asked.get("stream"):
            self._stream(chunks(asked), is_cut=fault == "cut")
        else:
            self._send(200, completion(asked), is_cut=fault == "cut")

    def _send(self, status: int, answer: Any, is_cut: bool = False) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_cut else body)
        self.close_connection |= is_cut

    def _stream(self, answer: Iterator[dict[str, Any]], is_cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in answer:
            self._event(json.dumps(chunk))
            if is_cut:
                self.close_connection = True
                return
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class LocalServer(ThreadingHTTPServer):
    """The server; ``port`` 0 takes a free one."""

    request_queue_size = 1024

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.requests: deque[dict[str, Any]] = deque(maxlen=_MAX_REQUESTS)

    @property
    def url(self) -> str:
        """Return the value for ``OPENAI_BASE_URL``."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that has gone."""


def main(port: int) -> None:
    """Serve until standard input ends, which is when the parent process has ended."""
    with LocalServer(port) as server:
        print(server.url, flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
