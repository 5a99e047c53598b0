"""Record the model calls and the tool calls of an agent's program.

verifiers' interception server answers the model calls. Tools run in the program: verifiers sees a call in a
reply, and its result in the program's next request. A tool's span lasts from that reply to that request;
calls of one reply have equal times.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import tool_call
from otel_rollout.integrations.verifiers import chat, rollouts, seams
from otel_rollout.integrations.verifiers.rollouts import AskingReply, ToolCall, TracedRollout
from otel_rollout.otlp.messages import read_json

# --- tool calls --------------------------------------------------------------------------------------------


_FAILURES: Final = (
    "error: invalid JSON in tool arguments (",
    "error: tool arguments must be a JSON object, got ",
    "error: unknown tool '",
)
"""Beginnings of the text with which verifiers' own program answers the model after a failed call."""


class _Result(NamedTuple):
    call_id: str
    content: Any
    is_error: bool = False


def note_calls(traced: TracedRollout, node: int, reply: Any, asked_ns: int) -> None:
    """Remember the tool calls in a reply until their results arrive."""
    calls = _calls_of(reply)
    if calls:
        traced.asking.append(AskingReply(node, calls, asked_ns, list(range(len(calls)))))


def _calls_of(message: Any) -> list[ToolCall]:
    calls = getattr(message, "tool_calls", None) or ()
    return [ToolCall(call.id, chat.tool_name(call), call.arguments) for call in calls]


@internal_errors("recording tool calls of verifiers")
def record_answered(
    traced: TracedRollout, session: Any, dialect: Any, request: dict[str, Any], node: int | None, end_ns: int
) -> None:
    """Record the tool calls whose results a request brings. Never raises.

    Args:
        traced: the rollout.
        session: verifiers' session of the rollout.
        dialect: reads the request.
        request: the request as it went to the provider.
        node: index of the request's reply; None if the call failed.
        end_ns: Unix time in ns at which the request was sent.
    """
    if not any(reply.waiting for reply in traced.asking):
        return
    if node is None:
        path: list[int] = []
        messages, asking = _after_last_reply(dialect.parse_request(request).messages)
    else:
        path = list(_path_above(session.trace.nodes, node))
        messages, asking = _after_last_reply([session.trace.nodes[at].message for at in reversed(path)])
    results = _results(messages, _marked_as_errors(request))
    blocked = _blocked(session)
    for reply, position, result in _matched(traced, path[len(messages) :], asking, results):
        is_blocked = (result.call_id, result.content) in blocked
        error = "the task's policy blocked the call" if is_blocked else None
        reply.waiting.remove(position)
        _record(traced, (reply, position), result, end_ns, error)


def _path_above(nodes: Any, node: int) -> Iterator[int]:
    above = nodes[node].parent
    while above is not None:
        yield above
        above = nodes[above].parent


def _after_last_reply(messages: Any) -> tuple[list[Any], Any]:
    """Return the messages after the last reply of a conversation, and that reply; None if there is none."""
    start = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
    return list(messages[start + 1 :]), messages[start] if start >= 0 else None


def _results(messages: list[Any], marks: list[tuple[str, bool]]) -> list[_Result]:
    """Return the tool results among messages, with the error marks of the request that brought them."""
    found = [message for message in messages if message.role == "tool"]
    if [id_ for id_, _ in marks] != [message.tool_call_id for message in found]:
        marks = [(message.tool_call_id, False) for message in found]
    contents = map(chat.content_of, found)
    return [_Result(id_, content, mark) for (id_, mark), content in zip(marks, contents, strict=True)]


def _marked_as_errors(request: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return id and error mark of each result after the last reply, as Anthropic's dialect has them."""
    found: list[tuple[str, bool]] = []
    for message in request.get("messages") or ():
        if message.get("role") == "assistant":
            found.clear()
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if isinstance(part, dict) and part.get("type") == "tool_result":
                found.append((str(part.get("tool_use_id")), part.get("is_error") is True))
    return found


def _matched(
    traced: TracedRollout, above: list[int], asking: Any, results: list[_Result]
) -> Iterator[tuple[AskingReply, int, _Result]]:
    """Yield the waiting calls that results certainly belong to.

    Args:
        traced: the rollout.
        above: indices of the last reply and of the messages before it, the newest first; empty if the request
            is not in the message graph.
        asking: the last reply.
        results: the results after it.
    """
    last = _reply_at(traced, above, _calls_of(asking))
    own = {call.id for call in _calls_of(asking)}
    if last is not None:
        yield from ((last, at, result) for at, result in _paired(last, results) if at in last.waiting)
    for late in (result for result in results if result.call_id not in own):
        earlier = [reply for reply in traced.asking if reply.node in above]
        called = [
            (reply, at) for reply in earlier for at, call in enumerate(reply.calls) if call.id == late.call_id
        ]
        if len(called) == 1 and called[0][1] in called[0][0].waiting:
            yield *called[0], late


def _reply_at(traced: TracedRollout, above: list[int], calls: list[ToolCall]) -> AskingReply | None:
    """Return the noted reply that is the last one of a conversation; None if it is not certain.

    A program that rewrites the conversation repeats the reply at another place of the message graph.
    """
    exact = [reply for reply in traced.asking if reply.node in above[:1]]
    found = exact or [reply for reply in traced.asking if reply.calls == calls]
    return found[0] if len(found) == 1 else None


def _paired(reply: AskingReply, results: list[_Result]) -> Iterator[tuple[int, _Result]]:
    """Yield the positions of a reply's calls with their results: by id, and by order where ids are equal."""
    for call_id in dict.fromkeys(result.call_id for result in results):
        asked = [at for at, call in enumerate(reply.calls) if call.id == call_id]
        given = [result for result in results if result.call_id == call_id]
        if len(asked) == len(given):
            yield from zip(asked, given, strict=True)


def _blocked(session: Any) -> list[tuple[str, Any]]:
    """Return ids and results of the calls that the task's policy has answered in place of the tools."""
    decisions = getattr(session, "tool_decisions", {})
    return [(key[1], chat.content_of(result)) for key, result in decisions.items() if result is not None]


@internal_errors("recording tool calls without a result")
def record_unanswered(traced: TracedRollout, trace: Any, failure: BaseException | None) -> None:
    """Record the tool calls whose results no request has brought. Never raises.

    A request that the rollout's own rules refuse may bring results, too. They are in the message graph. A
    call without a result has failed if the rollout has failed or has run out of time.
    """
    end_ns = chat.ns(trace.timing.agent.end) if trace.timing.agent.end else 0
    error = None
    if trace.is_timeout:
        error = f"no result: the rollout ended by {trace.stop_condition}"
    elif failure is not None:
        error = f"no result: the rollout ended by {type(failure).__name__}"
    for reply in traced.asking:
        given = dict(_paired(reply, _results_below(trace.nodes, reply.node))) if reply.waiting else {}
        for at in reply.waiting:
            _record(traced, (reply, at), given.get(at), end_ns, None if at in given else error)
    traced.asking.clear()


def _results_below(nodes: Any, node: int) -> list[_Result]:
    """Return the results between a reply and the replies after it."""
    below, found = {node}, []
    for at, candidate in enumerate(nodes):
        if candidate.parent in below and candidate.message.role != "assistant":
            below.add(at)
            found.append(candidate.message)
    return _results(found, [])


def _record(
    traced: TracedRollout,
    asked: tuple[AskingReply, int],
    result: _Result | None,
    end_ns: int,
    error: str | None,
) -> None:
    reply, call = asked[0], asked[0].calls[asked[1]]
    content = None if result is None else result.content
    if error is None and isinstance(content, str) and content.startswith(_FAILURES):
        error = content
    if error is None and result is not None and result.is_error:
        error = (
            content if isinstance(content, str) and content else "the program marked the result as an error"
        )
    name, attributes = tool_call(call.name, call.id)
    traced.trajectory.record(
        name,
        semconv.KIND_TOOL,
        (reply.asked_ns, max(end_ns, reply.asked_ns)),
        input=read_json(call.arguments),
        output=content,
        attributes=attributes,
        error=error,
    )


# --- model calls -------------------------------------------------------------------------------------------


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
def _record_exchange(
    _: Any, session: Any, dialect: Any, request: dict[str, Any] | None, started: float, **outcome: Any
) -> None:
    """Record an exchange.

    verifiers itself does not keep an exchange that was cancelled because its rollout ended.
    """
    traced = rollouts.running(session.trace)
    if traced is None:
        return
    times = chat.ns(started), time.time_ns()
    node, asked = outcome.get("node"), request or {}
    record_answered(traced, session, dialect, asked, node, times[0])
    committed = None if node is None else session.trace.nodes[node]
    asked_ids, answered_ids, log_probs = _tokens(session.trace, node)
    traced.trajectory.record(
        f"chat {asked.get('model') or 'model'}",
        semconv.KIND_LLM,
        times,
        input={**_conversation(dialect, asked), **({"prompt_ids": asked_ids} if asked_ids else {})},
        output=None if committed is None else _output(committed, outcome, answered_ids, log_probs),
        attributes={semconv.GEN_AI_CONVERSATION_ID: session.trace.id, **_attributes(asked, outcome)},
        error=outcome.get("error"),
    )
    if node is not None and committed is not None:
        note_calls(traced, node, committed.message, times[1])


def _conversation(dialect: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the conversation of a request as OpenAI's chat messages and tools.

    A request of the chat dialect, or one that verifiers cannot read, is returned as the program wrote it.
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
    above = [trace.nodes[at].token_ids for at in _path_above(trace.nodes, node)]
    pieces = [reply.token_ids[:start], *above]
    prompt = [token for piece in reversed(pieces) for token in piece]
    return prompt, reply.token_ids[start:], list(reply.logprobs)
