"""Read the columns of model calls and tool calls: model, tokens, roles, reply, tool name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp import messages, model_calls
from otel_rollout.otlp.model_calls import CallContents
from otel_rollout.otlp.span import Span

_COUNTS: Final = {
    semconv.GEN_AI_USAGE_INPUT_TOKENS: "tokens_in",
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS: "tokens_out",
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: "tokens_cached",
}
"""Name of a token count → its column."""
_ROLES: Final = {
    "system": "messages_system",
    "developer": "messages_system",
    "user": "messages_user",
    "human": "messages_user",
    "assistant": "messages_assistant",
    "model": "messages_assistant",
    "ai": "messages_assistant",
    **dict.fromkeys(messages.TOOL_ROLES, "messages_tool"),
}
"""Role of a message → the column that counts it. Messages of other roles are not counted."""
_TO_READ: Final = {
    semconv.GEN_AI_INPUT_MESSAGES: "",
    semconv.GEN_AI_OUTPUT_MESSAGES: "",
    **{key: column for name, column in _COUNTS.items() for key in (name, *model_calls.COUNTS[name])},
}
"""Attribute that a user may set on our spans → its column; empty for messages, which have none."""
_NOTHING: Final = CallContents()


def add(row: dict[str, Any], span: Span) -> None:
    """Add the columns of a model call or tool call to the span's row.

    Args:
        row: has the attributes that columns hold.
        span: the span.
    """
    attributes = span.attributes
    is_ours = row["scope"] == semconv.SCOPE
    kind = row.get("kind") or ("" if is_ours else model_calls.kind_of(attributes))
    if kind == semconv.KIND_LLM:
        _add_call(row, attributes, _contents_of(row, span, is_ours))
    elif kind == semconv.KIND_TOOL and "tool_name" not in row:
        row["tool_name"] = model_calls.called_tool(attributes, row["name"])


def _contents_of(row: Mapping[str, Any], span: Span, is_ours: bool) -> CallContents:
    """Read a model call from another library's attributes, or from those that a user has set on our span."""
    attributes = span.attributes
    if is_ours and not any(column not in row and name in attributes for name, column in _TO_READ.items()):
        return _NOTHING
    return model_calls.read_call(attributes, ((event.name, event.attributes) for event in span.events))


def _add_call(row: dict[str, Any], attributes: Mapping[str, Any], found: CallContents) -> None:
    for name, count in found.counts.items():
        if name in _COUNTS:
            row.setdefault(_COUNTS[name], count)
    if "model" not in row and (model := model_calls.model_of(attributes)):
        row["model"] = model
    row |= _role_counts(found.messages or messages.conversation_in(_request(row, attributes)))
    output = _decoded(row, attributes, "output", semconv.OUTPUT_MIME_TYPE)
    reply = messages.reply_of(output, found.replies, attributes)
    row["reply"] = messages.without_end(reply.message.text) or None
    reasons = attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS)
    stated = reasons if isinstance(reasons, (list, tuple)) else found.finish_reasons
    row["finish_reason"] = ", ".join(dict.fromkeys(map(str, stated))) or reply.finish_reason or None


def _request(row: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return a model call's input; None if it holds no messages."""
    if not any(name in row.get("input", "") for name in ('"role"', '"call_id"')):  # token ids, for example
        return None
    return _decoded(row, attributes, "input", semconv.INPUT_MIME_TYPE)


def _decoded(row: Mapping[str, Any], attributes: Mapping[str, Any], column: str, mime_type: str) -> Any:
    text: str | None = row.get(column)
    if text is None or attributes.get(mime_type) != semconv.JSON_MIME_TYPE:
        return text
    return messages.read_json(text)


def _role_counts(conversation: Any) -> dict[str, int]:
    """Count a conversation's messages by role; return nothing if none has a known role."""
    counts = dict.fromkeys(_ROLES.values(), 0)
    for role in messages.roles_in(conversation):
        if role in _ROLES:
            counts[_ROLES[role]] += 1
    return counts if any(counts.values()) else {}
