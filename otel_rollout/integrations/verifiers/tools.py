"""Record the tool calls of an agent, which run in its program.

verifiers sees a call in a reply, and its result in the program's next request. A tool's span lasts from that
reply to that request; calls of one reply have equal times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.spans import tool_call
from otel_rollout.integrations.verifiers import chat
from otel_rollout.integrations.verifiers.rollouts import AskingReply, ToolCall, TracedRollout
from otel_rollout.otlp.messages import read_json

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
    """Return the tool results among messages, with the marks of the request that brought them."""
    found = [message for message in messages if message.role == "tool"]
    if [id_ for id_, _ in marks] != [message.tool_call_id for message in found]:
        marks = [(message.tool_call_id, False) for message in found]
    contents = map(chat.content_of, found)
    return [_Result(id_, content, mark) for (id_, mark), content in zip(marks, contents, strict=True)]


def _marked_as_errors(request: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return id and mark of the results after the last reply, as Anthropic's dialect has them."""
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
    """Return ids and results of the calls in whose place the task's policy has put a result."""
    decisions = getattr(session, "tool_decisions", {})
    return [(key[1], chat.content_of(result)) for key, result in decisions.items() if result is not None]


@internal_errors("recording tool calls without a result")
def record_unanswered(traced: TracedRollout, trace: Any, failure: BaseException | None) -> None:
    """Record the tool calls that no request has brought a result of. Never raises.

    A request that the rollout's own rules refuse brings results too; then they are in the message graph.
    A call without a result has failed if the rollout has failed or has run out of time.
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
