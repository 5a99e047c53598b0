"""Complete the spans of other libraries with the attributes of ours.

A model call's span gets kind, model, token counts and finish reasons by OpenTelemetry's names, and its
messages as input and output. Spans of tools, agents and other operations get their input and output.
Recorded attributes stay, with the exceptions that docs/operations.md names. Above all, where no target would
find the messages in a model call's input or output, the messages replace it; its recorded value is then in
``input.value.recorded`` or ``output.value.recorded``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.chat_messages import ChatMessage, Event
from otel_rollout.otlp.model_calls import structured
from otel_rollout.otlp.reader import TraceLine, attributes_of, parsed_line
from otel_rollout.recording.application import SCOPE

_OWN_SCOPE: Final = b'"scope":{"name":"%b"' % SCOPE.encode()
_SCOPE_WITHIN: Final = 4096
"""Bytes from the beginning of a line within which our scope is looked for."""
_KNOWN: Final = re.compile(
    rb'"key":"(?:%b)' % b"|".join(re.escape(prefix).encode() for prefix in model_calls.PREFIXES)
)
_MIME_TYPES: Final = {
    semconv.INPUT_VALUE: semconv.INPUT_MIME_TYPE,
    semconv.OUTPUT_VALUE: semconv.OUTPUT_MIME_TYPE,
}
_CHAT: Final = "chat"


def may_be_filled(line: bytes) -> bool:
    """Return whether a recorded line may hold a foreign span that is incomplete."""
    return line.find(_OWN_SCOPE, 0, _SCOPE_WITHIN) < 0 and _KNOWN.search(line) is not None


def filled(line: bytes) -> TraceLine:
    """Return a recorded line with its spans completed, as far as possible.

    Raises:
        UnreadableLineError: the line is no JSON.
    """
    if not may_be_filled(line):
        return TraceLine(line)
    parsed = parsed_line(line)
    try:
        fill(parsed)
    except Exception:  # noqa: BLE001 - another library's content may have any shape
        return TraceLine(line)
    return TraceLine(parsed=parsed, recorded=line)


def fill(parsed: Mapping[str, Any]) -> bool:
    """Complete the spans of a line's JSON, all or none; return whether any changed."""
    made = [
        (span, attributes)
        for of_resource in parsed["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        if (of_scope.get("scope") or {}).get("name") != SCOPE
        for span in of_scope["spans"]
        if (attributes := completed(span)) is not None
    ]
    for span, attributes in made:
        span["attributes"] = attributes
    return bool(made)


def completed(span: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the complete attributes of a span's JSON; None if they stay as recorded."""
    recorded = attributes_of(span)
    events = [(str(event.get("name")), attributes_of(event)) for event in span.get("events", ())]
    if not model_calls.is_read_here([*recorded, *(name for name, _ in events)]):
        return None
    filled = _Filled(recorded)
    kind = model_calls.kind_of(recorded)
    if kind == semconv.KIND_LLM or kind == model_calls.KIND_EMBEDDING:
        _fill_call(filled, kind, events)
    elif kind == semconv.KIND_TOOL:
        _fill_tool(filled)
    else:
        filled.add_content(semconv.INPUT_VALUE, model_calls.read_input(recorded, events))
        filled.add_content(semconv.OUTPUT_VALUE, model_calls.read_output(recorded, events))
    if kind:
        filled.add(semconv.SPAN_KIND, kind)
        filled.add_mime_types()
    dropped = _dropped(recorded)
    if not (filled.changes or dropped):
        return None
    replaced = {*filled.changes, *dropped}
    kept = [entry for entry in span.get("attributes", ()) if entry["key"] not in replaced]
    moved = [
        {**entry, "key": entry["key"] + semconv.RECORDED_SUFFIX}
        for entry in span.get("attributes", ())
        if entry["key"] in filled.replaced
    ]
    added = [{"key": name, "value": _any_value(value)} for name, value in filled.changes.items()]
    return [*kept, *moved, *added]


def _dropped(recorded: Mapping[str, Any]) -> tuple[str, ...]:
    """Return ``session.id`` if it only repeats the conversation's id.

    Targets would show the trajectory in a session of its own instead of in its step's.
    """
    session = recorded.get(semconv.SESSION_ID)
    repeats = session is not None and session == recorded.get(semconv.GEN_AI_CONVERSATION_ID)
    return (semconv.SESSION_ID,) if repeats and semconv.STEP in recorded else ()


class _Filled:
    """The attributes of a span, and the changes to them.

    Attributes:
        recorded: the attributes as recorded.
        changes: name → new value.
        replaced: names of replaced contents, which are kept as recorded beside the new ones.
    """

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        self.recorded = recorded
        self.changes: dict[str, Any] = {}
        self.replaced: set[str] = set()

    def add(self, name: str, value: Any) -> None:
        """Add an attribute, unless the span has it or ``value`` is empty."""
        if self.recorded.get(name) in (None, "") and value not in (None, "", []):
            self.changes[name] = value

    def replace(self, name: str, value: Any) -> None:
        """Set an attribute, unless ``value`` is empty."""
        if value:
            self.changes[name] = value

    def add_content(self, name: str, value: Any) -> None:
        """Add an input or output that the span lacks; None adds nothing."""
        if self.recorded.get(name) in (None, "") and value is not None:
            is_text = isinstance(value, str)
            self.changes[name] = value if is_text else orjson.dumps(value).decode()
            self.changes[_MIME_TYPES[name]] = semconv.TEXT_MIME_TYPE if is_text else semconv.JSON_MIME_TYPE

    def replace_content(self, name: str, value: Any) -> None:
        """Replace an input or output; keep the recorded value beside it."""
        if self.recorded.get(name) not in (None, ""):
            self.replaced.add(name)
        self.changes[name] = orjson.dumps(value).decode()
        self.changes[_MIME_TYPES[name]] = semconv.JSON_MIME_TYPE

    def add_mime_types(self) -> None:
        """Say of an input or output that it is JSON, if it is and nothing says so."""
        for name, mime_type in _MIME_TYPES.items():
            if name not in self.changes and not self.recorded.get(mime_type):
                value = self.recorded.get(name)
                if isinstance(value, str) and structured(value) is not value:
                    self.changes[mime_type] = semconv.JSON_MIME_TYPE


def _fill_call(filled: _Filled, kind: str, events: Sequence[Event]) -> None:
    found = model_calls.read_call(filled.recorded, events)
    filled.add(semconv.GEN_AI_REQUEST_MODEL, found.request_model)
    filled.add(semconv.GEN_AI_RESPONSE_MODEL, found.response_model)
    for name, count in found.counts.items():
        filled.add(name, count)
    if not isinstance(filled.recorded.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS), list):
        filled.replace(semconv.GEN_AI_RESPONSE_FINISH_REASONS, found.finish_reasons)  # LiteLLM's are text
    if kind == semconv.KIND_LLM and (found.messages or found.replies):
        filled.add(semconv.GEN_AI_OPERATION_NAME, _CHAT)
    model = {"model": found.request_model} if found.request_model else {}
    if found.messages and not _has_request(structured(filled.recorded.get(semconv.INPUT_VALUE))):
        filled.replace_content(semconv.INPUT_VALUE, {**model, "messages": found.messages})
    if _says_more(found.replies, filled.recorded.get(semconv.OUTPUT_VALUE)):
        reasons = [*found.finish_reasons, *[None] * len(found.replies)]
        choices = [
            {"index": index, "message": reply, "finish_reason": reasons[index]}
            for index, reply in enumerate(found.replies)
        ]
        filled.replace_content(semconv.OUTPUT_VALUE, {"choices": choices})


def _fill_tool(filled: _Filled) -> None:
    found = model_calls.read_tool(filled.recorded)
    filled.add(semconv.GEN_AI_TOOL_NAME, found.name)
    filled.add(semconv.GEN_AI_TOOL_CALL_ID, found.call_id)
    for name, content in (
        (semconv.GEN_AI_TOOL_CALL_ARGUMENTS, found.arguments),
        (semconv.GEN_AI_TOOL_CALL_RESULT, found.result),
    ):
        if content is not None:
            filled.add(name, content if isinstance(content, str) else orjson.dumps(content).decode())
    filled.add_content(semconv.INPUT_VALUE, found.arguments)
    filled.add_content(semconv.OUTPUT_VALUE, found.result)


def _has_request(value: Any) -> bool:
    """Return whether a recorded input holds messages as a model's client takes them."""
    if not isinstance(value, Mapping):
        return False
    messages = value.get("messages")
    if isinstance(messages, list):
        return bool(messages) and all(
            isinstance(message, Mapping) and "role" in message for message in messages
        )
    return value.get("input") is not None or value.get("prompt") is not None


def _says_more(replies: Sequence[ChatMessage], recorded: Any) -> bool:
    """Return whether the replies are to be the output instead of the recorded one."""
    if recorded in (None, ""):
        return bool(replies)
    return any(map(model_calls.has_content, replies)) and not _has_reply(structured(recorded))


def _has_reply(value: Any) -> bool:
    """Return whether an output is text, or a reply as a client returns it."""
    if isinstance(value, Mapping):
        return "role" in value or isinstance(value.get("choices", value.get("output")), list)
    return isinstance(value, str) and value != ""


def _any_value(value: Any) -> dict[str, Any]:
    """Return text, a count or a list of texts as OTLP/JSON."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [{"stringValue": str(entry)} for entry in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}
