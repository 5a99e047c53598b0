"""A server with vLLM's ``/v1/completions`` that answers by a script."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

END: Final = "<|im_end|>"


def tool_call(name: str, arguments: Any) -> str:
    """Return a model's text that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


FIRST_TURNS: Final = (
    tool_call("add", {"a": 2, "b": 3}) + END,
    tool_call("nowhere", {"x": 1}) + "\n" + tool_call("add", {"a": 1, "b": 1}) + END,
    tool_call("fail", {"text": "boom"}) + "\n" + tool_call("add_later", {"a": 4, "b": 4}) + END,
    "I think it is",  # cut off
)
"""First turns of the siblings of a group, in the order in which they ask."""


class ScriptedServer:
    """Answers prompts; the prompt "wait" is not answered, until one of them gets a faulty answer.

    Attributes:
        exchanges: traceparent, prompt and answer of each request, in the order of the answers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._first_turns: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.exchanges: list[dict[str, Any]] = []
        self.refuses_next = True
        self.waiting = 0
        self.fault = threading.Event()
        """When it is set, the request that waits longest gets an answer without a choice."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.handle(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        asked = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        with self._lock:
            refused, self.refuses_next = self.refuses_next, False
            text = self._tokenizer.decode(asked["prompt"])
            reply = None if refused or "wait" in text else self._reply(text)
            self.waiting += "wait" in text
        if refused:
            request.send_error(503)
            return
        if reply is None:
            self.fault.wait()
            with self._lock:
                is_first, self.waiting = self.waiting > 0, 0
            if is_first:
                _answer(request, {"choices": []})
            else:
                threading.Event().wait()
            return
        ids = self._tokenizer.encode(reply, add_special_tokens=False)
        log_probs = [-0.25 - index / 64 for index in range(len(ids))]
        self.exchanges.append(
            {
                "traceparent": request.headers["traceparent"],
                "prompt_ids": asked["prompt"],
                "response_ids": ids,
                "log_probs": log_probs,
                "text": reply,
            }
        )
        reason = "stop" if reply.endswith(END) else "length"
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": log_probs}, "finish_reason": reason}
        _answer(request, {"choices": [choice]})

    def _reply(self, prompt: str) -> str:
        if "<tool_response>" in prompt:
            return f"The answer is 5.{END}"
        question = prompt.rpartition("question ")[2][:1]
        turn = self._first_turns[question] % len(FIRST_TURNS)
        self._first_turns[question] += 1
        return FIRST_TURNS[turn]


def _answer(request: BaseHTTPRequestHandler, answer: Any) -> None:
    body = json.dumps(answer).encode()
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
