"""Record the model calls of an agent's program, which verifiers' interception server answers."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.integrations.verifiers import chat, rollouts, tools
from otel_rollout.integrations.verifiers.patched_modules import seams

_CHAT: Final = "/chat/completions"
"""Path of the dialect whose messages are recorded as the program wrote them."""
_CONVERSATION: Final = ("system", "instructions", "messages", "input", "tools")
"""Parts of a request, in any dialect, that hold the conversation."""
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Names of the token limit, in any dialect."""


@seams.before(
    "verifiers.v1.interception.server",
    "InterceptionServer.record_call",
    "model and tool calls are not traced",
)
def _record(
    _: Any,
    session: Any,
    dialect: Any,
    request: dict[str, Any] | None,
    started: float,
    **outcome: Any,
) -> None:
    """Record an exchange.

    verifiers leaves out an exchange that was cancelled because its rollout ended; it is recorded here.
    """
    traced = rollouts.running(session.trace)
    if traced is None:
        return
    times = chat.ns(started), time.time_ns()
    node, asked = outcome.get("node"), request or {}
    tools.record_answered(traced, session, dialect, asked, node, times[0])
    committed = None if node is None else session.trace.nodes[node]
    asked_ids, answered_ids, log_probs = _tokens(session.trace, node)
    traced.trajectory.record(
        f"chat {asked.get('model') or 'model'}",
        semconv.KIND_LLM,
        times,
        input={**_conversation(dialect, asked), **({"prompt_ids": asked_ids} if asked_ids else {})},
        output=None if committed is None else _output(committed, outcome, answered_ids, log_probs),
        attributes=_attributes(asked, outcome),
        error=outcome.get("error"),
    )
    if node is not None and committed is not None:
        tools.note_calls(traced, node, committed.message, times[1])


def _conversation(dialect: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the conversation of a request as OpenAI's chat messages and tools.

    A request that verifiers cannot read either is returned as the program wrote it.
    """
    if getattr(dialect, "upstream_path", _CHAT) != _CHAT:
        with contextlib.suppress(Exception):  # the provider refuses such a request
            typed = dialect.parse_request(request)
            tools = {"tools": chat.declared(typed.tools)} if typed.tools else {}
            return {"messages": chat.shown(typed.messages), **tools}
    return {name: request[name] for name in _CONVERSATION if name in request}


def _output(committed: Any, outcome: dict[str, Any], ids: list[int], log_probs: list[float]) -> Any:
    reply = chat.shown([committed.message])[0]
    choice = {"index": 0, "message": reply, "finish_reason": outcome.get("finish_reason")}
    output: dict[str, Any] = {"choices": [choice]}
    if ids:
        output["response_ids"] = ids
    if log_probs:
        output["log_probs"] = log_probs
    return output


def _attributes(request: dict[str, Any], outcome: dict[str, Any]) -> dict[str, Any]:
    usage, reason = outcome.get("usage"), outcome.get("finish_reason")
    limit = next((request[name] for name in _LIMITS if request.get(name) is not None), None)
    return {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: request.get("model"),
        semconv.GEN_AI_REQUEST_TEMPERATURE: request.get("temperature"),
        semconv.GEN_AI_REQUEST_TOP_P: request.get("top_p"),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: limit,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: None if reason is None else [reason],
        semconv.GEN_AI_USAGE_INPUT_TOKENS: getattr(usage, "input_tokens", None),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: getattr(usage, "completion_tokens", None),
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: getattr(usage, "cached_input_tokens", None),
        semconv.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: getattr(usage, "reasoning_tokens", None),
    }


def _tokens(trace: Any, node: int | None) -> tuple[list[int], list[int], list[float]]:
    """Return the token ids of prompt and reply and their log probabilities.

    They are empty if the client relays text, as that of ``vf-eval`` does.
    """
    if node is None or not trace.nodes[node].token_ids:
        return [], [], []
    reply = trace.nodes[node]
    start = len(reply.token_ids) - sum(reply.mask)
    pieces = [reply.token_ids[:start]]
    above = reply.parent
    while above is not None:
        pieces.append(trace.nodes[above].token_ids)
        above = trace.nodes[above].parent
    prompt = [token for piece in reversed(pieces) for token in piece]
    return prompt, reply.token_ids[start:], list(reply.logprobs)
