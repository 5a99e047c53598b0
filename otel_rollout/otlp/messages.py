"""Read messages, tool calls and token ids from recorded values.

Supported values are messages of OpenAI, Anthropic, Ollama and OpenTelemetry, prompts as text, and token ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import response_items, streams
from otel_rollout.otlp.message_parts import CALL_PARTS, REASONING_PARTS, RESULT_PARTS, is_whole, text_of
from otel_rollout.otlp.message_parts import as_text as as_text
from otel_rollout.otlp.message_parts import is_cut as is_cut

_CONVERSATION_NAMES: Final = ("messages", "raw_prompt", "input", "prompt", "contents")
"""Names of arguments that hold the conversation, in order of preference."""
_TEXT_NAMES: Final = ("response_text", "text", "completion", "output_text", "generated_text", "content")
"""Keys of a result that hold its text, in order of preference."""
_REPLY_ID_NAMES: Final = ("response_ids", "token_ids", "output_ids", "completion_ids")
"""Keys of a result that hold its token ids, in order of preference."""
_MESSAGE_HEADER: Final = re.compile(
    r"<\|im_start\|>(?P<chatml>\w+)\n|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>\n+"
)
"""Pattern of a message's start in a rendered prompt: ChatML (Qwen and many others), Llama 3."""
_MESSAGE_END: Final = re.compile(
    r"(?:<\|im_end\|>|<\|eot_id\|>|<\|endoftext\|>)\s*$|^\s*(?:<\|im_end\|>|<\|eot_id\|>)"
)
_BESIDE_MESSAGE: Final = frozenset({"choices", "stop_reason", "tool_call_id", *_REPLY_ID_NAMES})
"""Keys of a reply that the short way in :func:`reply_of` does not read."""
_REASONING_NAMES: Final = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message that hold the model's reasoning: OpenAI's form, that of OpenRouter and vLLM, Ollama."""
_MODEL_ROLES: Final = ("assistant", "model", "ai")
TOOL_ROLES: Final = ("tool", "function", "ipython")
"""Roles of a tool's result: today's, that of OpenAI's older API, and Llama's."""
_TOOL_RESPONSE: Final = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)
"""Pattern of a tool's result in a rendered prompt; the end is missing if a limit cut the text."""


class Shared(NamedTuple):
    """The prefix that a turn shares with an earlier turn."""

    turn: str
    """Id of the earlier turn."""
    length: int
    """Number of tokens or messages shared with the earlier turn and its answer."""


@dataclass(frozen=True)
class Call:
    """A tool call that a model asks for."""

    name: str
    arguments: Any
    id: str = ""


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    has_all_content: bool = True
    """Whether ``text`` is the whole content: each part has a text (images have none), and no limit cut it."""


@dataclass(frozen=True)
class Request:
    """The request of a model call: messages, or a prompt as text or token ids.

    Attributes:
        messages: the conversation so far.
        prompt_ids: tokens of the prompt.
        prompt_text: text of the prompt, from token ``text_start`` on.
        text_start: index of the first token whose text is in ``prompt_text``.
        shared_ids: tokens of an earlier call that precede ``prompt_ids``; None without such tokens.
        shared_messages: messages of an earlier call that precede ``recorded``; None without such messages.
        recorded: the messages as recorded; one may hold several of ``messages``.
    """

    messages: tuple[Message, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    prompt_text: str = ""
    text_start: int = 0
    shared_ids: Shared | None = None
    shared_messages: Shared | None = None
    recorded: Sequence[Any] = ()


@dataclass(frozen=True)
class Reply:
    """The reply of a model call."""

    message: Message
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""


class HasAttributes(Protocol):
    """A span of any class."""

    @property
    def attributes(self) -> Mapping[str, Any] | None:
        """The span's attributes."""


def value_of(span: HasAttributes, name: str) -> Any:
    """Return an attribute's value, decoded if it is JSON.

    Text of an input or output is decoded only if its MIME type is JSON, other text always.
    """
    attributes = span.attributes or {}
    value: Any = attributes.get(name)
    mime_type = semconv.MIME_TYPES.get(name)
    if isinstance(value, str) and (not mime_type or attributes.get(mime_type) == semconv.JSON_MIME_TYPE):
        return read_json(value)
    return value


def read_json(text: str) -> Any:
    """Decode JSON; return text that is not JSON unchanged."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def key_of(message: Message) -> str:
    """Return a key of a message; equal messages have equal keys."""
    calls = [[call.name, call.arguments, call.id] for call in message.calls]
    key = as_text([message.role, message.text, calls, message.call_id])
    return key.encode(errors="replace").decode()


def request_of(value: Any, further: Any = None) -> Request:
    """Read the request of a model call.

    Args:
        value: the call's arguments.
        further: the messages in an OpenTelemetry attribute; they replace those in ``value``.
    """
    named = value if isinstance(value, Mapping) else {}
    conversation = further or conversation_in(value)
    found, recorded = tuple(messages_in(conversation, "user")), _list(conversation)
    ids = _argument(named, ("prompt_ids",))
    if isinstance(ids, Mapping) and isinstance(shared := ids.get("shared"), int):  # as exported
        shared_ids = Shared(str(ids.get("continues")), shared)
        return Request(found, ids_in(ids.get("new")), shared_ids=shared_ids, recorded=recorded)
    prompt_ids = ids_in(ids) or ids_in(conversation)
    if named and not found and not prompt_ids:
        found = (Message("input", as_text(dict(named))),)
    return Request(found, prompt_ids, recorded=recorded)


def asked_in(value: Any) -> tuple[Message, ...]:
    """Read the messages among the arguments of a function that calls a model."""
    return tuple(messages_in(conversation_in(value), "user"))


def conversation_in(value: Any) -> Any:
    """Return the conversation in a model call's arguments; other values unchanged."""
    return _argument(value, _CONVERSATION_NAMES) if isinstance(value, Mapping) else value


def roles_in(conversation: Any) -> Iterator[str]:
    """Yield the role of each message of a conversation."""
    if not isinstance(conversation, list):
        yield from (message.role for message in messages_in(conversation, "user"))
        return
    for entry in response_items.joined(conversation, "user"):
        if not isinstance(entry, dict):
            return
        role = entry.get("role")
        if isinstance(role, str) and isinstance(entry.get("content"), str):
            yield role
        elif "role" in entry:
            yield from (message.role for message in _message(entry, "user"))
        else:
            return


def _argument(arguments: Mapping[str, Any], names: Sequence[str]) -> Any:
    further = arguments.get("kwargs")
    merged = {**further, **arguments} if isinstance(further, Mapping) else arguments
    return next((merged[name] for name in names if merged.get(name)), None)


def reply_of(value: Any, further: Any = None, attributes: Mapping[str, Any] = {}) -> Reply:
    """Read the reply of a model call: of a whole conversation, what follows its last message of another role.

    Args:
        value: the call's result.
        further: the messages in an OpenTelemetry attribute; they replace those in ``value``.
        attributes: those of the call's span: of a generator, texts are the parts of one text.
    """
    if type(value) is dict and not further:
        role, text = value.get("role"), value.get("content")
        if role and type(role) is type(text) is str and _BESIDE_MESSAGE.isdisjoint(value):  # as most are
            if len(value) > len((role, text)):
                return Reply(next(_message(value, role)))
            return Reply(Message(role, text, has_all_content=not is_cut(text)))
    value = streams.joined(value, semconv.GENERATOR_ITEMS in attributes)
    found = list(messages_in(further if further else value, "assistant"))
    last = next((n for n, message in enumerate(reversed(found)) if message.role not in _MODEL_ROLES), 0)
    found = found[-last:]  # all of them if none or the last one has another role
    whole = found[0] if found else Message("assistant")
    if len(found) > 1 or whole.call_id:
        text = "\n\n".join(filter(None, (message.text for message in found)))
        calls = tuple(call for message in found for call in message.calls)
        is_whole = all(message.has_all_content for message in found)
        whole = Message(whole.role, text, calls, has_all_content=is_whole)
    return Reply(whole, reply_ids(value), _finish_reason(value))


def reply_ids(value: Any) -> tuple[int, ...]:
    """Return the token ids in the result of a model call."""
    if not isinstance(value, Mapping):
        return ids_in(value)
    return next((found for name in _REPLY_ID_NAMES if (found := ids_in(value.get(name)))), ())


def ids_in(value: Any) -> tuple[int, ...]:
    """Return a list of token ids as a tuple; an empty one for any other value."""
    if isinstance(value, list) and value and all(type(entry) is int for entry in value):
        return tuple(value)
    return ()


def messages_in(value: Any, role: str) -> Iterator[Message]:
    """Read the messages in a value of any supported shape; those that name no role get ``role``."""
    if isinstance(value, str):
        if value:
            yield Message(role, value, has_all_content=not is_cut(value))
    elif isinstance(value, list):
        if ids_in(value):
            return
        entries = response_items.joined(value, role)
        if value and all(isinstance(entry, Mapping) and "role" in entry for entry in entries):
            for entry in entries:
                yield from _message(entry, role)
        elif value and all(isinstance(entry, str) for entry in value):
            yield from (Message(role, entry) for entry in value)
        elif value:
            yield Message(role, as_text(value), has_all_content=False)
    elif isinstance(value, Mapping):
        yield from _in_mapping(value, role)
    elif value is not None:
        yield Message(role, as_text(value))


def _in_mapping(value: Mapping[str, Any], role: str) -> Iterator[Message]:
    choices = value.get("choices")
    if isinstance(choices, list) and choices:
        for choice in choices:
            content = choice.get("message", choice.get("text")) if isinstance(choice, Mapping) else choice
            yield from messages_in(content, role)
    elif "role" in value:
        yield from _message(value, role)
    elif response_items.is_item(value):
        yield from messages_in([value], role)
    elif isinstance(value.get("message"), (Mapping, str)):
        yield from messages_in(value["message"], role)
    elif isinstance(listed := value.get("messages", value.get("output")), list):  # "output": OpenAI Responses
        yield from messages_in(listed, role)
    else:
        text = next((value[name] for name in _TEXT_NAMES if isinstance(value.get(name), str)), None)
        if text is not None:
            yield from messages_in(text, role)
        elif not reply_ids(value):
            yield Message(role, as_text(dict(value)))


def _message(entry: Mapping[str, Any], default_role: str) -> Iterator[Message]:
    """Read a message of OpenAI's, Anthropic's or OpenTelemetry's shape.

    Tool results inside the message become separate messages: after it if it has tool calls, else before it.
    """
    role = str(entry.get("role") or default_role)
    role = "tool" if role in TOOL_ROLES else role
    content = entry.get("content", entry.get("parts"))
    asked = [*_list(entry.get("tool_calls")), entry.get("function_call")]
    calls = [_call(call) for call in asked if isinstance(call, Mapping)]
    results: list[Message] = []
    said = [entry[name] for name in _REASONING_NAMES if entry.get(name)]
    thoughts = [thought for thought in said if isinstance(thought, str)][:1]
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        type_ = part.get("type") if isinstance(part, Mapping) else None
        if type_ in CALL_PARTS:
            calls.append(_call(part))
        elif type_ in RESULT_PARTS:
            body = part.get("content", part.get("response", part.get("result")))
            result = "\n".join(map(text_of, body)) if isinstance(body, list) else as_text(body)
            call_id = part.get("tool_use_id") or part.get("tool_call_id") or part.get("id")
            results.append(Message("tool", result, (), str(call_id or ""), is_whole([result], body)))
        else:
            (thoughts if type_ in REASONING_PARTS else texts).append(text_of(part))
    thought = "\n".join(filter(None, thoughts)) if thoughts else ""
    text = "\n".join(filter(None, (thought and f"<think>\n{thought}\n</think>", *texts)))
    call_id = str(entry.get("tool_call_id") or "")
    message = Message(role, text, tuple(calls), call_id, is_whole([*thoughts, *texts], content))
    told = [message] if text or calls or not results else []
    yield from (*told, *results) if calls else (*results, *told)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _call(call: Mapping[str, Any]) -> Call:
    function = call.get("function")
    source = function if isinstance(function, Mapping) else call
    arguments = source.get("arguments", source.get("input"))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    return Call(str(source.get("name") or ""), arguments, str(call.get("call_id") or call.get("id") or ""))


def _finish_reason(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    reasons = [each.get("finish_reason") for each in _list(value.get("choices")) if isinstance(each, Mapping)]
    details = value.get("incomplete_details")  # OpenAI Responses
    reason = details.get("reason") if isinstance(details, Mapping) else value.get("stop_reason")
    return ", ".join(dict.fromkeys(str(each) for each in reasons or [reason] if each))


def spoken(text: str, role: str) -> tuple[Message, ...]:
    """Split a rendered prompt, or a piece of one, into its messages."""
    headers = list(_MESSAGE_HEADER.finditer(text))
    before = text[: headers[0].start()] if headers else text
    pieces = [(role, before)]
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True) if headers else ():
        pieces.append((header["chatml"] or header["llama"], text[header.end() : end]))
    found = [Message(role, without_end(piece)) for role, piece in pieces]
    return tuple(part for message in found if message.text for part in _tool_responses(message))


def without_end(text: str) -> str:
    """Remove the tokens that end a message, and the blanks around them."""
    if "<|" not in text:
        return text.strip()
    return _MESSAGE_END.sub("", _MESSAGE_END.sub("", text)).strip()


def _tool_responses(message: Message) -> Sequence[Message]:
    """Split a message that consists of tool results into one message per result."""
    responses = _TOOL_RESPONSE.findall(message.text)
    if responses and not _TOOL_RESPONSE.sub("", message.text).strip():
        return [replace(message, role="tool", text=response.strip()) for response in responses]
    return [message]
