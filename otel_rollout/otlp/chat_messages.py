"""Convert the messages in other libraries' spans to chat messages in OpenAI's form.

A chat message is a dict with ``role`` and ``content``; some have ``tool_calls``, ``tool_call_id``, ``name``
or ``reasoning_content``. The functions accept any value. Content of an unknown form is dropped, or kept as
it is inside the message.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson

from otel_rollout.otlp import response_items
from otel_rollout.otlp.message_parts import CALL_PARTS, REASONING_PARTS, RESULT_PARTS
from otel_rollout.otlp.messages import read_json

ChatMessage: TypeAlias = dict[str, Any]

_MAX_DIGITS: Final = 9
"""Maximum digits of an index in an attribute's name. Entries with a longer index are ignored."""
_SMOLAGENTS_CALL: Final = "tool-call"
_SMOLAGENTS_RESULT: Final = "tool-response"
_MAX_CALL_CHARS: Final = 1 << 16
"""Maximum characters of a smolagents message whose tool calls are parsed. Longer messages stay text."""
_NO_ROLES: Final = ("", "unknown", "none")


def decoded(value: Any) -> Any:
    """Decode JSON text; return text that is no JSON, and any other value, unchanged."""
    return read_json(value) if isinstance(value, str) else value


def as_json(value: Any) -> str:
    """Return a value as text: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


# --- attributes with numbered names -------------------------------------------------------------------------


def entries_below(attributes: Mapping[str, Any], prefix: str) -> list[Mapping[str, Any]]:
    """Return the objects that attributes named ``<prefix><index>.<path>`` describe, by rising index.

    Indexes may have gaps. Dots in a path make nested objects.
    """
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(prefix):
            _nest(tree, name[len(prefix) :].split("."), value)
    return _numbered(tree)


def _nest(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    node = tree
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            return
    node.setdefault(path[-1], value)


def _numbered(node: Any) -> list[Mapping[str, Any]]:
    if not isinstance(node, Mapping):
        return []
    indexes = [name for name in node if name.isdecimal() and len(name) <= _MAX_DIGITS]
    return [node[name] for name in sorted(indexes, key=int) if isinstance(node[name], Mapping)]


def within(node: Any, *path: str) -> Any:
    """Return the value at a path of names in nested objects; None if it is missing."""
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


# --- OpenInference ------------------------------------------------------------------------------------------


def of_openinference(attributes: Mapping[str, Any], prefix: str, role: str) -> list[ChatMessage]:
    """Return the messages below ``llm.input_messages.`` or ``llm.output_messages.``."""
    found = (entry.get("message") for entry in entries_below(attributes, prefix))
    read = (_of_openinference(message, role) for message in found if isinstance(message, Mapping))
    return [_of_smolagents(message) for message in read]


def _of_openinference(message: Mapping[str, Any], role: str) -> ChatMessage:
    nested = (entry.get("tool_call") for entry in _numbered(message.get("tool_calls")))
    calls = [_flat_call(call) for call in nested if isinstance(call, Mapping)]
    if message.get("function_call_name"):
        calls.append(_call("", message["function_call_name"], message.get("function_call_arguments_json")))
    content: Any = message.get("content")
    reasoning: list[str] = []
    parts: list[Any] = []
    for entry in _numbered(message.get("contents")):
        described = entry.get("message_content")
        part = described if isinstance(described, Mapping) else {}
        if isinstance(entry.get("tool_call"), Mapping):  # Anthropic's: also among the tool calls
            call = _flat_call(entry["tool_call"])
            calls += [call] if call.get("id") not in [known.get("id") for known in calls] else []
        elif part.get("type") in REASONING_PARTS:
            reasoning.append(str(part.get("text") or ""))
        elif url := within(part, "image", "image", "url"):
            parts.append({"type": "image_url", "image_url": {"url": url}})
        elif part:
            parts.append(dict(part))
    return _message(message, role, parts or content, calls, reasoning=reasoning)


def _of_smolagents(message: ChatMessage) -> ChatMessage:
    """Return a message with smolagents' own roles and calls in OpenAI's form."""
    text = message["content"]
    if message["role"] == _SMOLAGENTS_RESULT:
        return {**message, "role": "tool"}
    if message["role"] != _SMOLAGENTS_CALL or not isinstance(text, str) or len(text) > _MAX_CALL_CHARS:
        return message
    try:
        told = ast.literal_eval(text.partition("\n")[2])
        calls = [_flat_call(call) for call in told]
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
        return {**message, "role": "assistant"}
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _flat_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return _call(call.get("id"), within(call, "function", "name"), within(call, "function", "arguments"))


def texts_below(attributes: Mapping[str, Any], prefix: str, field: str, role: str) -> list[ChatMessage]:
    """Return the texts named ``<prefix><index>.<field>.text`` as messages."""
    found = (within(entry, field, "text") for entry in entries_below(attributes, prefix))
    return [{"role": role, "content": text} for text in found if isinstance(text, str)]


# --- OpenLLMetry before version 0.50 ------------------------------------------------------------------------


def of_openllmetry(attributes: Mapping[str, Any], prefix: str, role: str) -> list[ChatMessage]:
    """Return the messages below ``gen_ai.prompt.`` or ``gen_ai.completion.``."""
    return [_of_openllmetry(entry, role) for entry in entries_below(attributes, prefix)]


def _of_openllmetry(message: Mapping[str, Any], role: str) -> ChatMessage:
    calls = [
        _call(call.get("id"), call.get("name"), call.get("arguments"))
        for call in _numbered(message.get("tool_calls"))
    ]
    function = message.get("function_call")
    if isinstance(function, Mapping) and function.get("name"):
        calls.append(_call("", function["name"], function.get("arguments")))
    content = message.get("content")
    if isinstance(content, str) and content[:1] in '["':
        parsed = decoded(content)
        content = parsed if isinstance(parsed, str) or _are_parts(parsed) else content
    return _message(message, role, content, calls)


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, Mapping) and "type" in part for part in value)


# --- GenAI --------------------------------------------------------------------------------------------------


def of_genai(value: Any, role: str) -> list[ChatMessage]:
    """Return the messages of ``gen_ai.input.messages`` or ``gen_ai.output.messages``.

    Messages in OpenAI's own form, which some libraries put there, are taken as they are.
    """
    messages = decoded(value)
    if isinstance(messages, Mapping):
        messages = [messages]
    if not isinstance(messages, (list, tuple)):
        return [{"role": role, "content": messages}] if isinstance(messages, str) and messages else []
    entries = response_items.joined([entry for entry in messages if isinstance(entry, Mapping)], role)
    return [made for entry in entries for made in _of_genai(entry, role)]


def of_instructions(value: Any) -> list[ChatMessage]:
    """Return ``gen_ai.system_instructions`` as a message, if there are any."""
    parts = decoded(value)
    if isinstance(parts, str):
        return [{"role": "system", "content": parts}] if parts else []
    return list(_of_genai({"role": "system", "parts": parts}, "system")) if parts else []


def _of_genai(message: Mapping[str, Any], role: str) -> Iterator[ChatMessage]:
    """Yield a message, and each of its tool results as a message of its own."""
    listed = message.get("parts")
    if not isinstance(listed, (list, tuple)):
        listed = message.get("content")
        if not isinstance(listed, list) or not _have_calls(listed):
            yield {**message, "role": _role(message, role)}
            return
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[ChatMessage] = []
    reasoning: list[str] = []
    for part in listed:
        type_ = part.get("type") if isinstance(part, Mapping) else None
        if type_ in CALL_PARTS:
            calls.append(_call(part.get("id"), part.get("name"), part.get("arguments", part.get("input"))))
        elif type_ in RESULT_PARTS:
            results.append(_result(part))
        elif type_ in REASONING_PARTS:
            reasoning.append(str(part.get("content") or part.get("thinking") or ""))
        else:
            parts.append(_part(part))
    if not calls and isinstance(message.get("tool_calls"), list):  # LiteLLM's
        calls = message["tool_calls"]
    is_told = bool(parts or calls or any(reasoning) or not results)
    told = [_message(message, role, parts, calls, reasoning=reasoning)] if is_told else []
    yield from (told + results if calls else results + told)  # results follow the calls that they answer


def _have_calls(parts: Sequence[Any]) -> bool:
    """Return whether a message's content holds tool calls or results, as Anthropic's API has them."""
    types = (part.get("type") for part in parts if isinstance(part, Mapping))
    return any(type_ in ("tool_use", "tool_result") for type_ in types)


def _part(part: Any) -> Any:
    """Return a part of a message in OpenAI's form."""
    if not isinstance(part, Mapping):
        return {"type": "text", "text": as_json(part)}
    content, modality = part.get("content", part.get("text")), part.get("modality")
    if part.get("type") == "text":
        return {"type": "text", "text": content if isinstance(content, str) else as_json(content)}
    if part.get("type") == "blob" and modality == "image" and isinstance(content, str):
        return {"type": "image_url", "image_url": {"url": f"data:{part.get('mime_type')};base64,{content}"}}
    if part.get("type") == "uri" and modality == "image" and part.get("uri"):
        return {"type": "image_url", "image_url": {"url": part["uri"]}}
    return dict(part)


def _result(part: Mapping[str, Any]) -> ChatMessage:
    result = next(
        (part[name] for name in ("response", "result", "content") if part.get(name) is not None), ""
    )
    call_id = part.get("id") or part.get("tool_call_id") or part.get("tool_use_id")
    made: ChatMessage = {"role": "tool", "content": as_json(_content(result))}
    made |= {"is_error": part["is_error"]} if isinstance(part.get("is_error"), bool) else {}
    return {**made, "tool_call_id": str(call_id)} if call_id else made


# --- LangChain ---------------------------------------------------------------------------------------------

_LANGCHAIN_ROLES: Final = {
    "human": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "tool": "tool",
}


def langchain_fields(message: Any) -> Mapping[str, Any]:
    """Return the fields of a message that LangChain has serialized; empty for any other value."""
    fields = message.get("data", message.get("kwargs")) if isinstance(message, Mapping) else None
    return fields if isinstance(fields, Mapping) and "content" in fields else {}


def of_langchain(messages: Any) -> list[ChatMessage]:
    """Return the messages of a list that LangChain has serialized; empty if any is of another form."""
    listed = [langchain_fields(message) for message in messages] if isinstance(messages, list) else []
    if not all(str(fields.get("type")) in _LANGCHAIN_ROLES for fields in listed):
        return []
    return [_of_langchain(fields) for fields in listed]


def _of_langchain(fields: Mapping[str, Any]) -> ChatMessage:
    given = fields.get("tool_calls")
    calls = [
        _call(call.get("id"), call.get("name"), call.get("args"))
        for call in (given if isinstance(given, list) else ())
        if isinstance(call, Mapping)
    ]
    return _message({**fields, "role": _LANGCHAIN_ROLES[fields["type"]]}, "", fields["content"], calls)


# --- GenAI's events, one per message ------------------------------------------------------------------------

_ROLES: Final = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE: Final = "gen_ai.choice"
_BODIES: Final = ("body", "event.body", "gen_ai.event.content")
"""Attributes that hold an event's body; without them the body's fields are attributes themselves."""

Event: TypeAlias = tuple[str, Mapping[str, Any]]
"""Name and attributes of a span's event."""


def of_events(events: Iterable[Event]) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """Read the request's messages and the reply's messages from a span's events."""
    asked: list[ChatMessage] = []
    answered: list[ChatMessage] = []
    for name, attributes in events:
        if name in _ROLES:
            asked.append(_of_body(_body(attributes), _ROLES[name]))
        elif name == _CHOICE:
            body = _body(attributes)
            message = decoded(body.get("message"))
            whole = {**body, **message} if isinstance(message, Mapping) else body
            answered.append(_of_body(whole, "assistant"))
        elif name == "gen_ai.content.prompt":
            asked += of_genai(attributes.get("gen_ai.prompt"), "user")
        elif name == "gen_ai.content.completion":
            answered += of_genai(attributes.get("gen_ai.completion"), "assistant")
    return asked, answered


def _body(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    bodies = (decoded(attributes[name]) for name in _BODIES if name in attributes)
    return next((body for body in bodies if isinstance(body, Mapping)), attributes)


def _of_body(body: Mapping[str, Any], role: str) -> ChatMessage:
    calls = decoded(body.get("tool_calls"))
    content = body.get("content")
    if isinstance(content, str) and content[:1] == "[" and _are_parts(parsed := decoded(content)):
        content = parsed
    whole = {**body, "tool_call_id": body.get("tool_call_id") or (body.get("id") if role == "tool" else None)}
    return _message(whole, role, content, calls if isinstance(calls, list) else [])


# --- common to all ------------------------------------------------------------------------------------------


def _call(id_: Any, name: Any, arguments: Any) -> dict[str, Any]:
    function = {"name": str(name or ""), "arguments": "" if arguments is None else as_json(arguments)}
    made = {"type": "function", "function": function}
    return {"id": str(id_), **made} if id_ else made


def _role(message: Mapping[str, Any], default: str) -> str:
    role = str(message.get("role") or "")
    return default if role.lower() in _NO_ROLES else role


def _message(
    source: Mapping[str, Any], role: str, content: Any, calls: Sequence[Any], reasoning: Sequence[str] = ()
) -> ChatMessage:
    made: ChatMessage = {"role": _role(source, role), "content": _content(content)}
    thought = "\n".join(filter(None, reasoning))
    if thought or isinstance(source.get("reasoning_content"), str):
        made["reasoning_content"] = thought or source["reasoning_content"]
    if calls:
        made["tool_calls"] = list(calls)
        made["content"] = made["content"] or None
    for name in ("tool_call_id", "name", "finish_reason"):
        if isinstance(source.get(name), str) and source[name]:
            made[name] = source[name]
    return made


def _content(content: Any) -> Any:
    """Return content as text if it is one text, else its parts."""
    if isinstance(content, (list, tuple)):
        if not content:
            return ""
        if len(content) == 1 and isinstance(content[0], Mapping) and content[0].get("type") == "text":
            text = content[0].get("text")
            return text if isinstance(text, str) else as_json(text)
        return list(content)
    return "" if content is None else content


def with_call_ids(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Give tool results without an id the ids of the calls before them."""
    found: list[ChatMessage] = []
    open_ids: list[str] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            open_ids = [str(call["id"]) for call in calls if isinstance(call, Mapping) and call.get("id")]
        if message["role"] == "tool":
            if not message.get("tool_call_id") and open_ids:
                message = {**message, "tool_call_id": open_ids[0]}
            open_ids = [id_ for id_ in open_ids if id_ != message.get("tool_call_id")]
        found.append(message)
    return found
