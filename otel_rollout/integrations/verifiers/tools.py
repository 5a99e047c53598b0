"""Record the tool calls of an agent, which run in its program.

verifiers sees a call in a reply, and its result in the program's next request. A tool's span lasts from that
reply to that request; calls of one reply have equal times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.verifiers import chat
from otel_rollout.integrations.verifiers.rollouts import ToolCall, TracedRollout
from otel_rollout.otlp.messages import read_json

_FAILURES: Final = (
    "error: invalid JSON in tool arguments (",
    "error: tool arguments must be a JSON object, got ",
    "error: unknown tool '",
)
"""Beginnings of the text with which verifiers' own program answers the model after a failed call."""


def note_calls(traced: TracedRollout, node: int, reply: Any, asked_ns: int) -> None:
    """Remember the tool calls in a reply until their results arrive."""
    for call in reply.tool_calls or ():
        traced.tool_calls.append(ToolCall(node, call.id, chat.tool_name(call), call.arguments, asked_ns))


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
    if not traced.tool_calls:
        return
    if node is None:
        results, asked_in = list(_results_at_end(dialect.parse_request(request).messages)), None
    else:
        results, asked_in = _results_above(session.trace.nodes, node)
    blocked = _blocked(session)
    for result in results:
        call = _take(traced, result.tool_call_id, asked_in)
        if call is not None:
            error = "the task's policy blocked the call" if call.id in blocked else None
            _record(traced, call, result, end_ns, error)


def _results_above(nodes: Any, node: int) -> tuple[list[Any], int | None]:
    """Return the results between a reply and the reply before it, and the index of the latter."""
    results: list[Any] = []
    above = nodes[node].parent
    while above is not None and nodes[above].message.role != "assistant":
        if nodes[above].message.role == "tool":
            results.insert(0, nodes[above].message)
        above = nodes[above].parent
    return results, above


def _results_at_end(messages: Any) -> Iterator[Any]:
    """Yield the results after the last reply of a request."""
    start = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
    yield from (message for message in messages[start + 1 :] if message.role == "tool")


def _take(traced: TracedRollout, call_id: str, asked_in: int | None) -> ToolCall | None:
    """Return the open call that a result belongs to, and close it; None if it is not certain."""
    found = [call for call in traced.tool_calls if call.id == call_id]
    exact = [call for call in found if call.node == asked_in]
    chosen = exact if exact else found
    if len(chosen) != 1:
        return None
    traced.tool_calls.remove(chosen[0])
    return chosen[0]


def _blocked(session: Any) -> set[str]:
    """Return the ids of calls in whose place the task's policy has put a result."""
    decisions = getattr(session, "tool_decisions", {})
    return {call_id for (_, call_id), result in decisions.items() if result is not None}


@internal_errors("recording tool calls without a result")
def record_unanswered(traced: TracedRollout, trace: Any, failure: BaseException | None) -> None:
    """Record the tool calls that no request has brought a result of. Never raises.

    A request that the rollout's own rules refuse brings results too; then they are in the message graph.
    A call without a result has failed if the rollout has failed or has run out of time.
    """
    end_ns = chat.ns(trace.timing.agent.end) if trace.timing.agent.end else 0
    results = {node.message.tool_call_id: node.message for node in trace.nodes if node.message.role == "tool"}
    error = None
    if trace.is_timeout:
        error = f"no result: the rollout ended by {trace.stop_condition}"
    elif failure is not None:
        error = f"no result: the rollout ended by {type(failure).__name__}"
    for call in traced.tool_calls:
        result = results.get(call.id)
        _record(traced, call, result, max(end_ns, call.asked_ns), error if result is None else None)
    traced.tool_calls.clear()


def _record(traced: TracedRollout, call: ToolCall, result: Any, end_ns: int, error: str | None) -> None:
    content = None if result is None else chat.content_of(result)
    if error is None and isinstance(content, str) and content.startswith(_FAILURES):
        error = content
    traced.trajectory.record(
        f"execute_tool {call.name}",
        semconv.KIND_TOOL,
        (call.asked_ns, max(end_ns, call.asked_ns)),
        input=read_json(call.arguments),
        output=content,
        attributes={
            semconv.GEN_AI_OPERATION_NAME: "execute_tool",
            semconv.GEN_AI_TOOL_NAME: call.name,
            semconv.GEN_AI_TOOL_CALL_ID: call.id,
        },
        error=error,
    )
