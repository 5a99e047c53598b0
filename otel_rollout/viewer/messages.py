"""What was said, out of the values in which it is recorded: messages of the usual shapes, text, token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.base import semconv
from otel_rollout.forwarder.context_diff import Shared

_ASKED: Final = ("messages", "raw_prompt", "input", "prompt", "contents")
"""Under which names the arguments of a model call have the conversation."""
_SAID: Final = ("response_text", "text", "completion", "output_text", "generated_text", "content")
"""Under which names a result has its text."""
_REPLY_IDS: Final = ("response_ids", "token_ids", "output_ids", "completion_ids")
_HEADER: Final = re.compile(
    r"<\|im_start\|>(?P<chatml>\w+)\n|<\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>\n+"
)
"""Where a message begins in a rendered prompt: ChatML (Qwen and many others), Llama 3."""
_END: Final = re.compile(
    r"(?:<\|im_end\|>|<\|eot_id\|>|<\|endoftext\|>)\s*$|^\s*(?:<\|im_end\|>|<\|eot_id\|>)"
)
_TOOL_RESPONSE: Final = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)
"""The last one may have no end: a limit cut the text there."""


@dataclass(frozen=True)
class Call:
    """A call of a tool that a model asked for."""

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


@dataclass(frozen=True)
class Request:
    """What a model was asked: messages, or a prompt as text or token ids.

    Attributes:
        messages: the conversation so far.
        prompt_ids: the prompt's tokens.
        prompt_text: its text, from the token ``text_begins`` on.
        text_begins: 0 where the text is that of all tokens.
        ids_after: the tokens of an earlier call that come before ``prompt_ids``; None where these are all.
        messages_after: the messages of an earlier call that come before ``messages``.
    """

    messages: tuple[Message, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    prompt_text: str = ""
    text_begins: int = 0
    ids_after: Shared | None = None
    messages_after: Shared | None = None


@dataclass(frozen=True)
class Reply:
    """What a model answered."""

    message: Message
    ids: tuple[int, ...] = ()
    finish: str = ""


def value_of(span: ReadableSpan, name: str, mime_type: str = "") -> Any:
    """An attribute that may hold JSON, as the value it stands for."""
    attributes = span.attributes or {}
    held: Any = attributes.get(name)
    if isinstance(held, str) and (not mime_type or attributes.get(mime_type) == semconv.JSON_MIME_TYPE):
        return read_json(held)
    return held


def read_json(text: str) -> Any:
    """The value of JSON; text that is none as it is."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def as_text(value: Any) -> str:
    """A value for a person: text as it is, others as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except RecursionError:
        return "(nested too deeply)"


def key_of(message: Message) -> str:
    """What a message is told from others by."""
    calls = [[call.name, call.arguments, call.id] for call in message.calls]
    key = as_text([message.role, message.text, calls, message.call_id])
    return key.encode(errors="replace").decode()


def request_of(value: Any, further: Any = None) -> Request:
    """Read the arguments of a model call; ``further`` is a semconv attribute with the messages."""
    given = value if isinstance(value, Mapping) else {}
    asked = further or (_asked(given) if isinstance(value, Mapping) else value)
    said = tuple(messages_in(asked, "user"))
    told = _argument(given, ("prompt_ids",))
    if isinstance(told, Mapping) and isinstance(shared := told.get("shared"), int):  # as exporters get it
        return Request(said, ids_in(told.get("new")), ids_after=Shared(str(told.get("continues")), shared))
    prompt_ids = ids_in(told) or ids_in(asked)
    if given and not said and not prompt_ids:
        said = (Message("input", as_text(dict(given))),)
    return Request(said, prompt_ids)


def asked_in(value: Any) -> tuple[Message, ...]:
    """The messages that something which calls a model was given, or has among its arguments."""
    return tuple(messages_in(_asked(value) if isinstance(value, Mapping) else value, "user"))


def _asked(given: Mapping[str, Any]) -> Any:
    return _argument(given, _ASKED)


def _argument(given: Mapping[str, Any], names: Sequence[str]) -> Any:
    further = given.get("kwargs")
    arguments = {**further, **given} if isinstance(further, Mapping) else given
    return next((arguments[name] for name in names if arguments.get(name)), None)


def reply_of(value: Any, further: Any = None) -> Reply:
    """Read what a model call returned."""
    said = list(messages_in(further if further else value, "assistant"))
    text = "\n\n".join(filter(None, (message.text for message in said)))
    calls = tuple(call for message in said for call in message.calls)
    role = said[0].role if len({message.role for message in said}) == 1 else "assistant"
    return Reply(Message(role, text, calls), reply_ids(value), _finish(value))


def reply_ids(value: Any) -> tuple[int, ...]:
    """The token ids that a model call returned."""
    if not isinstance(value, Mapping):
        return ids_in(value)
    return next((found for name in _REPLY_IDS if (found := ids_in(value.get(name)))), ())


def ids_in(value: Any) -> tuple[int, ...]:
    """Token ids, if the value is a list of such."""
    if isinstance(value, list) and value and all(type(entry) is int for entry in value):
        return tuple(value)
    return ()


def messages_in(value: Any, role: str) -> Iterator[Message]:
    """The messages in a value, by whatever of the usual shapes it has; ``role`` where it says none."""
    if isinstance(value, str):
        if value:
            yield Message(role, value)
    elif isinstance(value, list):
        if ids_in(value):
            return
        if value and all(isinstance(entry, Mapping) and _is_message(entry) for entry in value):
            for entry in value:
                yield from _message(entry, role)
        elif value and all(isinstance(entry, str) for entry in value):
            yield from (Message(role, entry) for entry in value)
        elif value:
            yield Message(role, as_text(value))
    elif isinstance(value, Mapping):
        yield from _in_mapping(value, role)
    elif value is not None:
        yield Message(role, as_text(value))


def _in_mapping(value: Mapping[str, Any], role: str) -> Iterator[Message]:
    choices = value.get("choices")
    if isinstance(choices, list) and choices:
        for choice in choices:
            held = choice.get("message", choice.get("text")) if isinstance(choice, Mapping) else choice
            yield from messages_in(held, role)
    elif _is_message(value):
        yield from _message(value, role)
    elif isinstance(value.get("message"), (Mapping, str)):
        yield from messages_in(value["message"], role)
    elif isinstance(listed := value.get("messages", value.get("output")), list):  # or OpenAI's Responses
        yield from messages_in(listed, role)
    else:
        named = next((value[name] for name in _SAID if isinstance(value.get(name), str)), None)
        if named is not None:
            yield from messages_in(named, role)
        elif not reply_ids(value):
            yield Message(role, as_text(dict(value)))


def _is_message(entry: Mapping[str, Any]) -> bool:
    return "role" in entry or entry.get("type") in ("function_call", "function_call_output")


def _message(entry: Mapping[str, Any], otherwise: str) -> Iterator[Message]:
    """One message of OpenAI's, Anthropic's, or OpenTelemetry's shape; tools' results in it are others."""
    if entry.get("type") == "function_call":
        yield Message("assistant", calls=(_call(entry),))
        return
    if entry.get("type") == "function_call_output":
        yield Message("tool", as_text(entry.get("output")), call_id=str(entry.get("call_id") or ""))
        return
    role = str(entry.get("role") or otherwise)
    content = entry.get("content", entry.get("parts"))
    texts: list[str] = []
    calls = [_call(call) for call in _list(entry.get("tool_calls")) if isinstance(call, Mapping)]
    results: list[Message] = []
    thought = entry.get("reasoning_content") or entry.get("reasoning")
    if isinstance(thought, str):
        texts.append(f"<think>\n{thought}\n</think>")
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("tool_use", "tool_call"):
            calls.append(_call(part))
        elif kind in ("tool_result", "tool_call_response"):
            result = as_text(_joined(part.get("content", part.get("response", part.get("result")))))
            results.append(Message("tool", result, call_id=_id(part)))
        else:
            texts.append(_part(part))
    text = "\n".join(filter(None, texts))
    if text or calls or not results:
        yield Message(role, text, tuple(calls), str(entry.get("tool_call_id") or ""))
    yield from results


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _id(part: Mapping[str, Any]) -> str:
    return str(part.get("tool_use_id") or part.get("tool_call_id") or part.get("id") or "")


def _joined(content: Any) -> Any:
    return "\n".join(map(_part, content)) if isinstance(content, list) else content


def _part(part: Any) -> str:
    """A part of a message's content; what is not text is named."""
    if isinstance(part, Mapping):
        for name in ("text", "content", "thinking"):
            if isinstance(part.get(name), str):
                return str(part[name])
        return f"[{part['type']}]" if isinstance(part.get("type"), str) else as_text(dict(part))
    return as_text(part)


def _call(call: Mapping[str, Any]) -> Call:
    function = call.get("function")
    described = function if isinstance(function, Mapping) else call
    arguments = described.get("arguments", described.get("input"))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    return Call(str(described.get("name") or ""), arguments, str(call.get("call_id") or call.get("id") or ""))


def _finish(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    choices = [choice for choice in _list(value.get("choices")) if isinstance(choice, Mapping)]
    reasons = [choice.get("finish_reason") for choice in choices] or [value.get("stop_reason")]
    return ", ".join(dict.fromkeys(str(reason) for reason in reasons if reason))


def spoken(text: str, role: str) -> tuple[Message, ...]:
    """A rendered prompt, or a piece of one, as the messages that a chat template has made it of."""
    headers = list(_HEADER.finditer(text))
    before = text[: headers[0].start()] if headers else text
    pieces = [(role, before)]
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True) if headers else ():
        pieces.append((header["chatml"] or header["llama"], text[header.end() : end]))
    found = [Message(who, without_end(said)) for who, said in pieces]
    return tuple(part for message in found if message.text for part in _tool_responses(message))


def without_end(text: str) -> str:
    """Text without the tokens that end a message, and the blanks around them."""
    return _END.sub("", _END.sub("", text)).strip()


def _tool_responses(message: Message) -> Sequence[Message]:
    responses = _TOOL_RESPONSE.findall(message.text)
    if responses and not _TOOL_RESPONSE.sub("", message.text).strip():
        return [replace(message, role="tool", text=response.strip()) for response in responses]
    return [message]
