"""Read model calls and tool calls from the spans of any library, in one shape.

The vocabularies are OpenInference, OpenTelemetry's GenAI convention (attributes or events) and OpenLLMetry
(its older versions have a form of their own). The functions take a span's attributes and events as plain
values of any type. What cannot be read counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp import chat_messages
from otel_rollout.otlp.chat_messages import ChatMessage, Event, decoded

PREFIXES: Final = ("gen_ai.", "llm.", "openinference.", "traceloop.", "tool.", "embedding.", "pydantic_ai.")
"""Beginnings of the names of the attributes that are read here."""

CUT_BY_LENGTH: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
"""Finish reasons, in lower case, of replies that were cut because they had become too long."""

_INPUT: Final = "llm.input_messages."
_OUTPUT: Final = "llm.output_messages."
_PROMPT: Final = "gen_ai.prompt."
_COMPLETION: Final = "gen_ai.completion."
_PARAMETERS: Final = "llm.invocation_parameters"
_GENAI_INPUT: Final = (semconv.GEN_AI_SYSTEM_INSTRUCTIONS, semconv.GEN_AI_INPUT_MESSAGES)
_DETAILS: Final = "gen_ai.client.inference.operation.details"
"""Event whose attributes hold a call's messages if the span's own attributes do not."""

KIND_EMBEDDING: Final = "EMBEDDING"
_KIND_OF_OPERATION: Final = {
    "chat": semconv.KIND_LLM,
    "text_completion": semconv.KIND_LLM,
    "generate_content": semconv.KIND_LLM,
    "response": semconv.KIND_LLM,
    "embeddings": KIND_EMBEDDING,
    "execute_tool": semconv.KIND_TOOL,
    "invoke_agent": semconv.KIND_AGENT,
    "create_agent": semconv.KIND_AGENT,
    "invoke_workflow": semconv.KIND_CHAIN,
    "execute_task": semconv.KIND_CHAIN,
    "retrieval": "RETRIEVER",
}
_KIND_OF_TRACELOOP: Final = {
    "workflow": semconv.KIND_CHAIN,
    "task": semconv.KIND_CHAIN,
    "agent": semconv.KIND_AGENT,
    "tool": semconv.KIND_TOOL,
}
_KIND_OF_REQUEST: Final = {
    "chat": semconv.KIND_LLM,
    "completion": semconv.KIND_LLM,
    "embedding": KIND_EMBEDDING,
    "rerank": "RERANKER",
}
_KINDS: Final = {
    semconv.GEN_AI_OPERATION_NAME: _KIND_OF_OPERATION,
    "traceloop.span.kind": _KIND_OF_TRACELOOP,
    "llm.request.type": _KIND_OF_REQUEST,
}
_TOOL_NAMES: Final = (semconv.GEN_AI_TOOL_NAME, "tool.name", "traceloop.entity.name")
_MODEL_NAMES: Final = ("llm.model_name", "embedding.model_name")
_REQUEST_MODELS: Final = (semconv.GEN_AI_REQUEST_MODEL, "llm.request.model_name")
_RESPONSE_MODELS: Final = (semconv.GEN_AI_RESPONSE_MODEL, "llm.response.model_name")
_FINISH_REASON: Final = ".finish_reason"
"""End of the names of attributes with one finish reason."""
_CALL_IDS: Final = (semconv.GEN_AI_TOOL_CALL_ID, "tool_call.id")
COUNTS: Final = {
    semconv.GEN_AI_USAGE_INPUT_TOKENS: (
        "llm.token_count.prompt",
        "gen_ai.usage.prompt_tokens",
        "llm.usage.prompt_tokens",
    ),
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS: (
        "llm.token_count.completion",
        "gen_ai.usage.completion_tokens",
        "llm.usage.completion_tokens",
    ),
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: (
        "llm.token_count.prompt_details.cache_read",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.details.cache_read_tokens",
    ),
    semconv.GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS: (
        "gen_ai.usage.cache_creation.input_tokens",
        "llm.token_count.prompt_details.cache_write",
        "gen_ai.usage.cache_creation_input_tokens",
        "gen_ai.usage.details.cache_write_tokens",
    ),
    semconv.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: (
        "llm.token_count.completion_details.reasoning",
        "gen_ai.usage.reasoning_tokens",
        "gen_ai.usage.details.reasoning_tokens",
        "llm.usage.reasoning_tokens",
    ),
}
"""GenAI's name of a count → its names in other libraries and versions, in order of preference."""
NAMES_OF_COUNTS: Final = frozenset({*COUNTS, *(name for names in COUNTS.values() for name in names)})
_NAMES: Final = frozenset(
    {
        *(semconv.GEN_AI_PROVIDER_NAME, semconv.GEN_AI_RESPONSE_FINISH_REASONS),
        *(semconv.GEN_AI_REQUEST_ID, semconv.GEN_AI_RESPONSE_ID),
        *(*_KINDS, *_TOOL_NAMES, *_MODEL_NAMES, *_REQUEST_MODELS, *_RESPONSE_MODELS, *_CALL_IDS),
        *NAMES_OF_COUNTS,
    }
)
MAX_COUNT: Final = (1 << 48) - 1
"""A greater number is no count. So sums of a trajectory's counts fit into 64 bits, also in MLflow."""


@dataclass(frozen=True)
class CallContents:
    """What a span says of a model call.

    Attributes:
        messages: the request's messages, in OpenAI's form.
        replies: the messages of the reply, one per choice.
        finish_reasons: why the model stopped, one per choice.
        request_model: model that was asked for.
        response_model: model that answered.
        counts: GenAI's name of a token count → count.
        response_id: id of the reply.
    """

    messages: Sequence[ChatMessage] = ()
    replies: Sequence[ChatMessage] = ()
    finish_reasons: Sequence[str] = ()
    request_model: str = ""
    response_model: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    response_id: str = ""


@dataclass(frozen=True)
class ToolContents:
    """What a span says of a tool call; None for what it does not say."""

    name: str | None = None
    call_id: str | None = None
    arguments: Any = None
    result: Any = None


def is_read_here(names: Iterable[str]) -> bool:
    """Return whether any name, of an attribute or event, has one of ``PREFIXES``."""
    return any(name.startswith(PREFIXES) for name in names)


def is_name(key: str) -> bool:
    """Return whether an attribute holds names, ids, counts, the kind or finish reasons of a call."""
    return key in _NAMES or key.endswith(_FINISH_REASON)


def kind_of(attributes: Mapping[str, Any]) -> str:
    """Return a span's OpenInference kind; empty if nothing says it."""
    named = str(attributes.get(semconv.SPAN_KIND) or "").upper()
    if named in semconv.SPAN_KINDS:
        return named
    found = (kinds.get(str(attributes.get(key))) for key, kinds in _KINDS.items())
    return next(filter(None, found), "")


def counts_of(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return the token counts of a span, by GenAI's names."""
    if NAMES_OF_COUNTS.isdisjoint(attributes):  # true of most spans
        return {}
    found: dict[str, int] = {}
    for name, others in COUNTS.items():
        for key in (name, *others):
            if (count := _number(attributes.get(key))) is not None:
                found[name] = count
                break
    return found


def usage_of(attributes: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the token counts that a span adds to its trajectory; None if it is no model call.

    Agents and chains do not count, because they may repeat the counts of their model calls.
    """
    return counts_of(attributes) if kind_of(attributes) == semconv.KIND_LLM else None


def _number(value: Any) -> int | None:
    """Return a count that may be text or a float; None for any other value."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(MAX_COUNT)):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def read_call(attributes: Mapping[str, Any], events: Iterable[Event] = ()) -> CallContents:
    """Read a model call.

    Args:
        attributes: the span's attributes.
        events: name and attributes of each event of the span.
    """
    listed = list(events)
    attributes = _with_details(attributes, listed)
    asked, answered = chat_messages.of_events(listed)
    replies = _replies(attributes) or answered
    request, response = _models(attributes)
    return CallContents(
        chat_messages.with_call_ids(_messages(attributes) or asked),
        [{name: field for name, field in reply.items() if name != "finish_reason"} for reply in replies],
        _finish_reasons(attributes, replies),
        request,
        response,
        counts_of(attributes),
        _response_id(attributes),
    )


def _response_id(attributes: Mapping[str, Any]) -> str:
    """Return the id of a reply, from an attribute or from the reply as the client returned it."""
    output = structured(attributes.get(semconv.OUTPUT_VALUE))
    in_output = output.get("id") if isinstance(output, Mapping) else None
    stated = attributes.get(semconv.GEN_AI_RESPONSE_ID) or in_output
    return stated if isinstance(stated, str) else ""


def _messages(attributes: Mapping[str, Any]) -> list[ChatMessage]:
    system = chat_messages.of_instructions(attributes.get(semconv.GEN_AI_SYSTEM_INSTRUCTIONS))
    return (
        _with(system, chat_messages.of_genai(attributes.get(semconv.GEN_AI_INPUT_MESSAGES), "user"))
        or chat_messages.of_openinference(attributes, _INPUT, "user")
        or chat_messages.texts_below(attributes, "llm.prompts.", "prompt", "user")
        or chat_messages.of_openllmetry(attributes, _PROMPT, "user")
    )


def _with(system: list[ChatMessage], messages: list[ChatMessage]) -> list[ChatMessage]:
    return [*system, *messages] if messages else []


def _replies(attributes: Mapping[str, Any]) -> list[ChatMessage]:
    found = (
        chat_messages.of_genai(attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES), "assistant"),
        chat_messages.of_openinference(attributes, _OUTPUT, "assistant"),
        chat_messages.texts_below(attributes, "llm.choices.", "completion", "assistant"),
        chat_messages.of_openllmetry(attributes, _COMPLETION, "assistant"),
    )
    known = [replies for replies in found if replies]
    # LiteLLM puts a reply's tool calls below gen_ai.completion, and an empty message elsewhere.
    with_content = (replies for replies in known if any(has_content(reply) for reply in replies))
    return next(with_content, known[0] if known else [])


def has_content(message: ChatMessage) -> bool:
    """Return whether a message says anything, or calls a tool."""
    return bool(message.get("content") or message.get("tool_calls") or message.get("reasoning_content"))


def _finish_reasons(attributes: Mapping[str, Any], replies: Sequence[ChatMessage]) -> list[str]:
    stated = decoded(attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS))
    if isinstance(stated, (list, tuple)) and stated:
        return [str(reason) for reason in stated if reason]
    if isinstance(stated, str) and stated:
        return [stated]
    if isinstance(reason := attributes.get("llm.finish_reason"), str) and reason:
        return [reason]
    found = [reply.get("finish_reason") for reply in replies]
    found += [entry.get("finish_reason") for entry in chat_messages.entries_below(attributes, _COMPLETION)]
    reasons = [reason for reason in found if isinstance(reason, str) and reason]
    return reasons[: max(len(replies), 1)]


def model_of(attributes: Mapping[str, Any]) -> str:
    """Return the model that a call asked for, else the one that answered; empty if nothing says it."""
    return next(filter(None, _models(attributes)), "")


def _models(attributes: Mapping[str, Any]) -> tuple[str, str]:
    """Return the model that was asked for, and the model that answered."""
    parameters = decoded(attributes.get(_PARAMETERS))
    asked = parameters.get("model") if isinstance(parameters, Mapping) else None
    named = _stated(attributes, _MODEL_NAMES)
    request = _stated(attributes, _REQUEST_MODELS) or (asked if isinstance(asked, str) else None) or named
    response = _stated(attributes, _RESPONSE_MODELS) or (named if asked and asked != named else None)
    return str(request or ""), str(response or "")


def _stated(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next(filter(None, map(attributes.get, names)), None)


# --- tools --------------------------------------------------------------------------------------------------


def tool_name_of(attributes: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that a span calls; None if no attribute says it."""
    return next((attributes[key] for key in _TOOL_NAMES if isinstance(attributes.get(key), str)), None)


def called_tool(attributes: Mapping[str, Any], span_name: str) -> str:
    """Return the name of the tool that a span calls.

    An attribute has it, or the argument ``name`` of a function that calls tools; else it is the span's.
    """
    found = tool_name_of(attributes)
    given = attributes.get(semconv.INPUT_VALUE)
    if found is None and isinstance(given, str) and '"arguments"' in given:
        by_name = decoded(given)
        named = by_name.get("name") if isinstance(by_name, Mapping) and "arguments" in by_name else None
        found = named if isinstance(named, str) else None
    return found or span_name


def read_tool(attributes: Mapping[str, Any]) -> ToolContents:
    """Read a tool call."""
    name = tool_name_of(attributes)
    given = _first(
        attributes, semconv.GEN_AI_TOOL_CALL_ARGUMENTS, semconv.INPUT_VALUE, "traceloop.entity.input"
    )
    made = _first(
        attributes, semconv.GEN_AI_TOOL_CALL_RESULT, semconv.OUTPUT_VALUE, "traceloop.entity.output"
    )
    result, id_in_result = _result(made)
    call_id = _stated(attributes, _CALL_IDS) or id_in_result
    return ToolContents(name, call_id if isinstance(call_id, str) else None, _arguments(given), result)


def _first(attributes: Mapping[str, Any], *names: str) -> Any:
    return next((structured(attributes[name]) for name in names if attributes.get(name) is not None), None)


def structured(value: Any) -> Any:
    """Decode text of a JSON object or array; return other values unchanged."""
    return decoded(value) if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") else value


def _arguments(given: Any) -> Any:
    """Return a tool's arguments without the library's own fields around them."""
    if isinstance(given, Mapping):
        if {"input_str", "inputs"} <= given.keys() and isinstance(given["inputs"], Mapping):  # LangChain
            return given["inputs"]
        if {"kwargs", "sanitize_inputs_outputs"} <= given.keys() and not given.get("args"):  # smolagents
            return given["kwargs"]
    return given


def _result(made: Any) -> tuple[Any, Any]:
    """Return a tool's result, and the call's id that LangChain's result names."""
    message = made.get("output") if isinstance(made, Mapping) and "kwargs" in made else made
    fields = chat_messages.langchain_fields(message)
    if fields.get("type") == "tool":
        return fields["content"], fields.get("tool_call_id")
    return made, None


# --- agents, chains and other operations --------------------------------------------------------------------


def read_input(attributes: Mapping[str, Any], events: Iterable[Event] = ()) -> Any:
    """Return the input of an agent, a chain or another operation; None if absent."""
    said = decoded(attributes.get("pydantic_ai.all_messages"))
    if isinstance(said, list):  # messages of the whole run: those before the first reply are the input
        messages = chat_messages.of_genai(said, "user")
        roles = [message["role"] for message in messages]
        return {"messages": messages[: roles.index("assistant") if "assistant" in roles else None]}
    listed = list(events)
    attributes = _with_details(attributes, listed)
    messages = _messages({name: attributes[name] for name in _GENAI_INPUT if name in attributes})
    messages = messages or chat_messages.of_events(listed)[0]
    return (
        {"messages": chat_messages.with_call_ids(messages)}
        if messages
        else _first(attributes, "traceloop.entity.input", "gen_ai.task.input")
    )


def read_output(attributes: Mapping[str, Any], events: Iterable[Event] = ()) -> Any:
    """Return the output of an agent, a chain or another operation; None if absent."""
    listed = list(events)
    attributes = _with_details(attributes, listed)
    replies = chat_messages.of_genai(attributes.get(semconv.GEN_AI_OUTPUT_MESSAGES), "assistant")
    replies = replies or chat_messages.of_events(listed)[1]
    if replies:
        return {"messages": replies}
    return _first(attributes, "final_result", "traceloop.entity.output", "gen_ai.task.output")


def without_dumps(value: Any) -> Any:
    """Return an input or output with LangChain's messages in OpenAI's form; None without such messages."""
    messages = chat_messages.of_langchain(value.get("messages")) if isinstance(value, Mapping) else []
    return {**value, "messages": messages} if messages else None


def _with_details(attributes: Mapping[str, Any], events: Iterable[Event]) -> Mapping[str, Any]:
    """Return a span's attributes, completed by those of an event ``_DETAILS``."""
    for name, detailed in events:
        if name == _DETAILS:
            attributes = {**detailed, **attributes}
    return attributes
