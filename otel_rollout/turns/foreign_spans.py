"""Add our attributes to the spans of other libraries.

A model call's span gets kind, model, token counts and finish reasons by OpenTelemetry's names, and its
messages as input and output. Spans of tools, agents and other operations get their input and output.
Recorded attributes stay, with the exceptions that docs/recording.md names. These are the main ones:

- The messages replace a model call's input or output in which no target would find them.
- A tool's arguments and result replace an input and output that wrap them in the library's own fields.
- Messages in OpenAI's form replace messages that LangChain has serialized.

``input.value.recorded`` or ``output.value.recorded`` then holds the recorded value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp import model_calls, scan
from otel_rollout.otlp.chat_messages import ChatMessage, Event, as_json
from otel_rollout.otlp.json_line import TraceLine, parsed_line, spans_of_json
from otel_rollout.otlp.model_calls import structured
from otel_rollout.otlp.span import Span

_SCOPE_WITHIN: Final = 4096
"""Bytes from the beginning of a line within which our scope is looked for."""
_KNOWN: Final = scan.pattern_of_attributes(model_calls.PREFIXES)
_PART_OF_CALL: Final = re.compile(r"(cmpl-.+)-\d+|((?:chatcmpl-|resp_).+)_\d+")
"""Matches ids of engine requests that are part of a call: one of its prompts, or one step of its response."""
_CHAT: Final = "chat"
_DUMPED_REPLY: Final = "raw"
"""Field of smolagents' message that holds the client's reply as Python prints it."""


def may_be_filled(line: bytes) -> bool:
    """Return whether a line may hold an incomplete foreign span.

    A line of another program may have our scope beside others: such a line may hold a foreign span.
    """
    is_own = line.find(scan.OWN_SCOPE, 0, _SCOPE_WITHIN) >= 0 and line.count(scan.SPANS) == 1
    return not is_own and _KNOWN.search(line) is not None


def filled(line: bytes) -> TraceLine:
    """Return a recorded line with its spans completed, as far as possible.

    Raises:
        UnreadableLineError: the line is no JSON.
    """
    if not may_be_filled(line):
        return TraceLine(line)
    parsed = parsed_line(line)
    try:
        spans = list(spans_of_json(parsed))
        fill(spans)
    except Exception:  # noqa: BLE001 - another library's content may have any shape
        return TraceLine(line)
    return TraceLine(parsed=parsed, recorded=line, spans=spans)


def fill(spans: Iterable[Span]) -> bool:
    """Complete the spans of a line, all or none; return whether any changed."""
    made = [_completed(span) for span in spans if span.scope.name != semconv.SCOPE]
    applied = [filled.apply() for filled in made]
    return any(applied)


def _completed(span: Span) -> _Filled:
    """Return the changes that complete a span."""
    filled = _Filled(span)
    recorded = filled.recorded
    events = [(event.name, event.attributes) for event in span.events]
    if not model_calls.is_read_here([*recorded, *(name for name, _ in events)]):
        return filled
    kind = model_calls.kind_of(recorded)
    if span.name == semconv.ENGINE_REQUEST:
        _fill_engine_request(filled)
    if kind == semconv.KIND_LLM or kind == model_calls.KIND_EMBEDDING:
        _fill_call(filled, kind, events)
    elif kind == semconv.KIND_TOOL:
        _fill_tool(filled)
    else:
        filled.add_messages(semconv.INPUT_VALUE, model_calls.read_input(recorded, events))
        filled.add_messages(semconv.OUTPUT_VALUE, model_calls.read_output(recorded, events))
    if kind:
        filled.add(semconv.SPAN_KIND, kind)
        filled.add_mime_types()
    session = recorded.get(semconv.SESSION_ID)
    repeats = session is not None and session == recorded.get(semconv.GEN_AI_CONVERSATION_ID)
    if repeats and semconv.STEP in recorded:  # targets would show the trajectory in a session of its own
        filled.dropped.add(semconv.SESSION_ID)
    return filled


class _Filled:
    """The attributes of a span, and the changes to them.

    Attributes:
        recorded: the attributes as recorded.
        changes: name → new value.
        dropped: names of attributes to remove without a new value.
        kept_as: name of a replaced content → name of the attribute with its recorded value.
        name: the span's new name; empty if the recorded one stays.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.recorded = span.attributes
        self.changes: dict[str, Any] = {}
        self.dropped: set[str] = set()
        self.kept_as: dict[str, str] = {}
        self.name = ""

    def apply(self) -> bool:
        """Change the span; return False if there is nothing to change."""
        replaced = self.dropped.union(self.changes)
        if replaced:
            self._span.replace(replaced, self.changes, self.kept_as)
        if self.name:
            self._span.rename(self.name)
        return bool(replaced)

    def rename(self, name: str) -> None:
        """Rename the span, unless its name contains ``name``; keep the recorded name as an attribute."""
        recorded = self._span.name
        if name and name not in recorded:
            self.name = name
            self.changes[semconv.RECORDED_NAME] = recorded

    def add(self, name: str, value: Any) -> None:
        """Add an attribute, unless the span has it or ``value`` is empty."""
        if self.recorded.get(name) in (None, "") and value not in (None, "", []):
            self.changes[name] = value

    def replace(self, name: str, value: Any) -> None:
        """Set an attribute, unless ``value`` is empty."""
        if value:
            self.changes[name] = value

    def add_messages(self, name: str, value: Any) -> None:
        """Add an input or output that the span lacks, unless ``value`` is None.

        If the span has one, convert the messages that LangChain has serialized in it.
        """
        if self.recorded.get(name) not in (None, ""):
            value = model_calls.without_dumps(structured(self.recorded[name]))
        if value is not None:
            self.replace_content(name, value)

    def replace_content(self, name: str, value: Any) -> None:
        """Replace an input or output; keep the recorded value beside it."""
        if self.recorded.get(name) not in (None, ""):
            self.kept_as[name] = name + semconv.RECORDED_SUFFIX
        is_text = isinstance(value, str)
        self.changes[name] = as_json(value)
        self.changes[semconv.MIME_TYPES[name]] = semconv.TEXT_MIME_TYPE if is_text else semconv.JSON_MIME_TYPE

    def add_mime_types(self) -> None:
        """Add the MIME type of an input or output that is JSON and has no MIME type."""
        for name, mime_type in semconv.MIME_TYPES.items():
            if name not in self.changes and not self.recorded.get(mime_type):
                value = self.recorded.get(name)
                if isinstance(value, str) and structured(value) is not value:
                    self.changes[mime_type] = semconv.JSON_MIME_TYPE


def _fill_call(filled: _Filled, kind: str, events: Sequence[Event]) -> None:
    found = model_calls.read_call(filled.recorded, events)
    filled.add(semconv.GEN_AI_REQUEST_MODEL, found.request_model)
    filled.add(semconv.GEN_AI_RESPONSE_MODEL, found.response_model)
    filled.add(semconv.GEN_AI_RESPONSE_ID, found.response_id)
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


def _fill_engine_request(filled: _Filled) -> None:
    """Add the reply's id, so that a query by this attribute finds both the engine's span and its call."""
    request_id = filled.recorded.get(semconv.GEN_AI_REQUEST_ID)
    if isinstance(request_id, str):
        part = _PART_OF_CALL.fullmatch(request_id)
        filled.add(semconv.GEN_AI_RESPONSE_ID, request_id if part is None else part[1] or part[2])


def _fill_tool(filled: _Filled) -> None:
    found = model_calls.read_tool(filled.recorded)
    filled.add(semconv.GEN_AI_TOOL_NAME, found.name)
    filled.add(semconv.GEN_AI_TOOL_CALL_ID, found.call_id)
    filled.rename(found.name or "")
    for name, shown_as, content in (
        (semconv.GEN_AI_TOOL_CALL_ARGUMENTS, semconv.INPUT_VALUE, found.arguments),
        (semconv.GEN_AI_TOOL_CALL_RESULT, semconv.OUTPUT_VALUE, found.result),
    ):
        if content is not None:
            filled.add(name, as_json(content))
            shown = filled.recorded.get(shown_as)
            if shown is None or as_json(structured(shown)) != as_json(content):
                filled.replace_content(shown_as, content)


def _has_request(value: Any) -> bool:
    """Return whether a recorded input is a request in the form that a model's client takes."""
    if not isinstance(value, Mapping):
        return False
    messages = value.get("messages")
    if isinstance(messages, list):
        return bool(messages) and all(
            isinstance(message, Mapping) and "role" in message for message in messages
        )
    return value.get("input") is not None or value.get("prompt") is not None


def _says_more(replies: Sequence[ChatMessage], recorded: Any) -> bool:
    """Return whether the replies should replace the recorded output."""
    if recorded in (None, ""):
        return bool(replies)
    return any(map(model_calls.has_content, replies)) and not _has_reply(structured(recorded))


def _has_reply(value: Any) -> bool:
    """Return whether an output is text, or a reply as a client returns it."""
    if isinstance(value, Mapping):
        if _DUMPED_REPLY in value:
            return False
        return "role" in value or isinstance(value.get("choices", value.get("output")), list)
    return isinstance(value, str) and value != ""
