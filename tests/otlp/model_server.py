"""A model's server that answers by rule, with OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_NUMBERS = itertools.count(1)
ANSWER = "It is 21 °C in Oslo."
USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 24,
    "total_tokens": 144,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 8},
}
USAGE_OF_RESPONSES = {
    "input_tokens": 120,
    "output_tokens": 24,
    "total_tokens": 144,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens_details": {"reasoning_tokens": 8},
}
USAGE_OF_ANTHROPIC = {
    "input_tokens": 40,
    "output_tokens": 24,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 16,
}
ARGUMENTS = {"city": "Oslo", "unit": "°C"}


def _wants_tool(body: dict[str, Any]) -> str:
    """Return the tool that the model calls; "" if it answers."""
    said = body.get("messages", body.get("input"))
    text = json.dumps(said[-1]) if isinstance(said, list) else json.dumps(said)
    # Several forms of a tool's result: OpenAI's, Responses', Anthropic's, and smolagents' text.
    if any(
        sign in text
        for sign in ('"tool"', "function_call_output", "tool_result", "Observation", "tool-response")
    ):
        tools = [t.get("function", t).get("name") for t in body.get("tools") or ()]
        return "final_answer" if "final_answer" in tools else ""
    names = [tool.get("function", tool).get("name") for tool in body.get("tools") or ()]
    return next((str(name) for name in names if name), "")


def _arguments(tool: str) -> dict[str, Any]:
    return {"answer": ANSWER} if tool == "final_answer" else ARGUMENTS


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    tool = _wants_tool(body)
    message: dict[str, Any] = {"role": "assistant", "content": None if tool else ANSWER}
    if tool:
        function = {"name": tool, "arguments": json.dumps(_arguments(tool), ensure_ascii=False)}
        message["tool_calls"] = [{"id": f"call_{tool}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tool else "stop"}
    return {
        "id": f"chatcmpl-{next(_NUMBERS)}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "local-1",
        "choices": [choice],
        "usage": USAGE,
    }


def _chat_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _chat(body)
    head = {**{name: whole[name] for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    message, reason = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if "tool_calls" in message:
        call = {"index": 0, **message["tool_calls"][0]}
        deltas.append({"tool_calls": [{**call, "function": {**call["function"], "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
            for part in _halves(call["function"]["arguments"])
        ]
    else:
        deltas += [{"content": part} for part in _halves(ANSWER)]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": USAGE}


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    tool = _wants_tool(body)
    if tool:
        arguments = json.dumps(_arguments(tool), ensure_ascii=False)
        item: dict[str, Any] = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": f"call_{tool}",
            "name": tool,
        }
        item |= {"arguments": arguments, "status": "completed"}
    else:
        text = {"type": "output_text", "text": ANSWER, "annotations": []}
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    return {
        "id": f"resp_{next(_NUMBERS)}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "local-1",
        "output": [item],
        "usage": USAGE_OF_RESPONSES,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "instructions": body.get("instructions"),
        "error": None,
        "incomplete_details": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
    }


def _anthropic(body: dict[str, Any]) -> dict[str, Any]:
    tool = _wants_tool(body)
    content: list[dict[str, Any]] = [{"type": "text", "text": "Let me look." if tool else ANSWER}]
    if tool:
        content.append({"type": "tool_use", "id": f"toolu_{tool}", "name": tool, "input": _arguments(tool)})
    return {
        "id": f"msg_{next(_NUMBERS)}",
        "type": "message",
        "role": "assistant",
        "model": "local-1",
        "content": content,
        "stop_reason": "tool_use" if tool else "end_turn",
        "stop_sequence": None,
        "usage": USAGE_OF_ANTHROPIC,
    }


def _anthropic_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _anthropic(body)
    usage = {**whole["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None, "usage": usage}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            start, deltas = (
                {**block, "text": ""},
                [{"type": "text_delta", "text": part} for part in _halves(block["text"])],
            )
        else:
            start, deltas = (
                {**block, "input": {}},
                [
                    {"type": "input_json_delta", "partial_json": part}
                    for part in _halves(json.dumps(block["input"], ensure_ascii=False))
                ],
            )
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 24}}
    yield {"type": "message_stop"}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "please fail" in json.dumps(body):
            self._send(400, {"error": {"message": "the prompt is refused", "type": "invalid_request_error"}})
        elif self.path.endswith("/chat/completions"):
            self._stream(_chat_events(body)) if body.get("stream") else self._send(200, _chat(body))
        elif self.path.endswith("/responses"):
            self._send(200, _responses(body))
        elif self.path.endswith("/messages"):
            self._stream(_anthropic_events(body)) if body.get("stream") else self._send(200, _anthropic(body))
        elif self.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
            usage = {"prompt_tokens": 4, "total_tokens": 4}
            self._send(200, {"object": "list", "data": data, "model": "local-embedder", "usage": usage})
        else:
            self._send(404, {"error": {"message": self.path}})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def _stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def model_server() -> Iterator[str]:
    """Serve until the block ends; yield the server's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
