"""Read what libraries recorded of the same conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_rollout.base import semconv
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.model_calls import CallContents
from tests.otlp.foreign_spans import PIXEL, QUESTION, RULES
from tests.otlp.model_server import ANSWER, ARGUMENTS
from tests.otlp.recorded_foreign import LIBRARIES, ForeignSpan, spans_of

SYSTEM = {"role": "system", "content": RULES}
USER = {"role": "user", "content": QUESTION}
WITHOUT_CONTENT = {"openllmetry_openai_events", "opentelemetry_openai_v2", "opentelemetry_openai_v2_events"}
"""Libraries that put messages into log records, and not on spans."""
WITHOUT_STREAMED_TOKENS = {"openllmetry_openai_older"}
WITHOUT_CACHED = {
    "litellm_native",
    "openinference_smolagents",
    "opentelemetry_openai_v2",
    "opentelemetry_openai_v2_events",
    "opentelemetry_openai_v2_latest",
    "opentelemetry_openai_v2_joined",
    "opentelemetry_openai_v2_events_joined",
}
WITHOUT_REASONING = {
    *WITHOUT_CACHED,
    "openinference_anthropic",
    "openllmetry_langchain",
    "openllmetry_langchain_older",
    "openllmetry_openai_older",
}
WITHOUT_FINISH_REASON = {
    "openinference_openai_responses",
    "openinference_smolagents",
    "openllmetry_langchain_older",
}
WITH_CONTENT = [library for library in LIBRARIES if library not in WITHOUT_CONTENT]


def calls_of(library: str) -> list[CallContents]:
    """Return the contents of a library's successful model calls, by their ends."""
    return [model_calls.read_call(span.attributes, span.events) for span in model_spans(library)]


def model_spans(library: str, has_failed: bool = False) -> list[ForeignSpan]:
    spans = [span for span in spans_of(library) if span.has_failed is has_failed]
    # The SDK of Anthropic has spans of its own beside OpenInference's.
    named = [span for span in spans if not span.name.startswith("anthropic.")]
    return [span for span in named if model_calls.kind_of(span.attributes) == semconv.KIND_LLM]


def arguments_of(message: dict[str, Any]) -> Any:
    """Return the arguments of a message's only tool call."""
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "weather"
    return json.loads(call["function"]["arguments"])


def test_every_library_has_lines() -> None:
    """The recorded files are those of the libraries that the recording knows."""
    from tests.otlp.foreign_spans import LIBRARIES as RECORDED

    assert sorted(RECORDED) == LIBRARIES


@pytest.mark.parametrize("library", WITH_CONTENT)
def test_first_call_has_question_and_tool_call(library: str) -> None:
    """The request has the question, the reply has the tool call."""
    first = calls_of(library)[0]
    said = first.messages[-1]["content"]
    texts = said if isinstance(said, list) else [{"type": "text", "text": said}]
    assert any(QUESTION in part.get("text", "") for part in texts)
    assert first.messages[0]["role"] == "system"
    (reply,) = first.replies
    assert reply["role"] == "assistant"
    assert arguments_of(reply) == ARGUMENTS


@pytest.mark.parametrize("library", WITH_CONTENT)
def test_second_call_has_tool_result_and_answer(library: str) -> None:
    """The request has the tool's call and its result, the reply has the answer."""
    second = calls_of(library)[1]
    result = second.messages[-1]
    if library == "openinference_smolagents":  # it gives the answer by a tool
        assert result["content"] == "Observation:\n21"
        assert result["tool_call_id"] == "call_weather"
        return
    (call,) = second.messages[-2]["tool_calls"]
    assert result["role"] == "tool"
    assert result["content"] == "21"
    # OpenLLMetry names a call of the Responses API by the id of its item.
    assert result["tool_call_id"] == ("call_weather" if call["id"] == "fc_1" else call["id"])
    assert arguments_of(second.messages[-2]) == ARGUMENTS
    assert second.replies == [{"role": "assistant", "content": ANSWER}]


@pytest.mark.parametrize(
    "library", [name for name in WITH_CONTENT if name.endswith("_openai") or "litellm" in name]
)
def test_text_messages_are_as_sent(library: str) -> None:
    """A conversation of texts is read back as the messages that the client sent."""
    assert calls_of(library)[0].messages == [SYSTEM, USER]


@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_are_read(library: str) -> None:
    """Every call has its tokens, some libraries' also cached and for reasoning."""
    for number, call in enumerate(calls_of(library)):
        if library in WITHOUT_STREAMED_TOKENS and number in (2, 3):
            continue
        assert call.counts[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 120
        assert call.counts[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 24
    first = calls_of(library)[0].counts
    cached = None if library in WITHOUT_CACHED else 64
    assert first.get(semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS) == cached
    reasoning = None if library in WITHOUT_REASONING else 8
    assert first.get(semconv.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS) == reasoning


@pytest.mark.parametrize("name", ["cache_write", "cache_creation"])
def test_tokens_written_into_a_cache_are_read_by_both_names(name: str) -> None:
    """The convention's name is read, and the one it had before."""
    counts = model_calls.counts_of({f"gen_ai.usage.{name}.input_tokens": 16})
    assert counts == {semconv.GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS: 16}


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_are_read(library: str) -> None:
    """The model that was asked for is read, and the one that answered."""
    first = calls_of(library)[0]
    assert first.request_model in ("local", "openai/local")
    assert first.response_model in ("local-1", "")


@pytest.mark.parametrize("library", LIBRARIES)
def test_finish_reasons_are_read(library: str) -> None:
    """Each call says why the model stopped, one reason per choice."""
    reasons = [list(call.finish_reasons) for call in calls_of(library)[:2]]
    if library == "openllmetry_langchain_older":
        assert reasons == [["tool_calls"], []]
    elif library in WITHOUT_FINISH_REASON:
        assert reasons == [[], []]
    else:
        assert reasons[0][0] in ("tool_calls", "tool_call", "tool_use")
        assert reasons[1][0] in ("stop", "end_turn")


@pytest.mark.parametrize(
    "library",
    ["openinference_openai", "openinference_langchain", "openllmetry_langchain", "pydantic_ai_native",
     "openinference_pydantic_ai", "openinference_anthropic", "openllmetry_langchain_older"],
)  # fmt: skip
def test_image_is_read(library: str) -> None:
    """An image beside a text is a part of the message, as a data URL."""
    parts = [
        part
        for call in calls_of(library)
        for message in call.messages
        for part in (message["content"] if isinstance(message["content"], list) else ())
    ]
    assert {"type": "text", "text": QUESTION} in parts
    assert {"type": "image_url", "image_url": {"url": PIXEL}} in parts


@pytest.mark.parametrize("library", LIBRARIES)
def test_failed_call_has_no_reply(library: str) -> None:
    """A refused call has at most an empty reply, and no tokens."""
    (span,) = model_spans(library, has_failed=True)
    found = model_calls.read_call(span.attributes, span.events)
    assert not any(map(model_calls.has_content, found.replies))
    assert not found.counts


@pytest.mark.parametrize(
    "library",
    ["openinference_langchain", "openinference_smolagents", "openinference_pydantic_ai",
     "openllmetry_langchain", "openllmetry_langchain_older", "pydantic_ai_native"],
)  # fmt: skip
def test_tool_call_is_read(library: str) -> None:
    """A tool's span has name, arguments and result, without other fields."""
    spans = [span for span in spans_of(library) if model_calls.kind_of(span.attributes) == semconv.KIND_TOOL]
    found = model_calls.read_tool(spans[0].attributes)
    assert (found.name, found.arguments, found.result) == ("weather", ARGUMENTS, "21")
    assert found.call_id == (None if library == "openinference_smolagents" else "call_weather")


def test_agent_run_is_read() -> None:
    """PydanticAI's run has the first messages as input, the result as output."""
    (run, *_) = [span for span in spans_of("pydantic_ai_native") if span.name.startswith("invoke_agent")]
    assert model_calls.kind_of(run.attributes) == semconv.KIND_AGENT
    messages = model_calls.read_input(run.attributes)["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert model_calls.read_output(run.attributes) == ANSWER


def event(body: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an event with a body."""
    return {"gen_ai.system": "openai", "gen_ai.event.content": json.dumps(body)}


def test_events_with_bodies_are_read() -> None:
    """Events, one per message, are read as messages and replies."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    found = model_calls.read_call(
        {"gen_ai.operation.name": "chat"},
        [
            ("gen_ai.system.message", event({"content": RULES})),
            ("gen_ai.user.message", event({"content": QUESTION})),
            ("gen_ai.assistant.message", event({"tool_calls": [call]})),
            ("gen_ai.tool.message", event({"content": "21", "id": "call_1"})),
            ("gen_ai.choice", event({"index": 0, "finish_reason": "stop", "message": {"content": ANSWER}})),
        ],
    )
    assert found.messages == [
        SYSTEM,
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "21", "tool_call_id": "call_1"},
    ]
    assert found.replies == [{"role": "assistant", "content": ANSWER}]
    assert found.finish_reasons == ["stop"]


def test_event_with_details_is_read() -> None:
    """The event that holds a call's details counts as attributes of the span."""
    details = {
        "gen_ai.request.model": "local",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.system_instructions": [{"type": "text", "content": RULES}],
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}],
        "gen_ai.output.messages": [
            {"role": "assistant", "finish_reason": "stop", "parts": [{"type": "text", "content": ANSWER}]}
        ],
    }
    found = model_calls.read_call({}, [("gen_ai.client.inference.operation.details", details)])
    assert found.messages == [SYSTEM, USER]
    assert found.replies == [{"role": "assistant", "content": ANSWER}]
    assert found.request_model == "local"
    assert found.counts == {"gen_ai.usage.input_tokens": 3}


def test_reasoning_is_read() -> None:
    """A part with the model's reasoning becomes the message's reasoning."""
    parts = [{"type": "reasoning", "content": "It is north."}, {"type": "text", "content": "Cold."}]
    output = json.dumps([{"role": "assistant", "parts": parts}])
    assert model_calls.read_call({"gen_ai.output.messages": output}).replies == [
        {"role": "assistant", "content": "Cold.", "reasoning_content": "It is north."}
    ]


def test_several_tool_results_of_one_message_become_messages() -> None:
    """Each tool result of a message becomes a message with its call's id."""
    parts = [{"type": "tool_call_response", "id": str(n), "response": {"degrees": n}} for n in (1, 2)]
    found = model_calls.read_call({"gen_ai.input.messages": [{"role": "user", "parts": parts}]})
    assert found.messages == [
        {"role": "tool", "content": '{"degrees":1}', "tool_call_id": "1"},
        {"role": "tool", "content": '{"degrees":2}', "tool_call_id": "2"},
    ]


def test_messages_with_holes_between_their_indexes_are_read() -> None:
    """Missing indexes leave no gap; messages are in the order of their numbers."""
    attributes = {f"llm.input_messages.{n}.message.content": str(n) for n in (10, 2, 7)}
    found = model_calls.read_call(attributes)
    assert found.messages == [{"role": "user", "content": text} for text in ("2", "7", "10")]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.input.messages": "[{broken"},
        {"gen_ai.input.messages": "[1, null, [], {}]", "gen_ai.output.messages": "7"},
        {"gen_ai.input.messages": json.dumps([{"role": 3, "parts": [None, 7, [], {"type": None}]}])},
        {"gen_ai.output.messages": json.dumps([{"parts": [{"type": "tool_call"}], "tool_calls": 3}])},
        {"gen_ai.system_instructions": "[", "gen_ai.input.messages": None},
        {f"llm.input_messages.{'9' * 5000}.message.content": "far"},
        {"llm.input_messages.x.message.content": "no index", "llm.input_messages.": 1},
        {"llm.input_messages.0.message": "text", "llm.input_messages.0.message.content": "below a text"},
        {"llm.input_messages.0.message.contents.0": 1, "llm.input_messages.0.message.tool_calls": "none"},
        {"llm." + "input_messages.0." * 500: "deep"},
        {"gen_ai.prompt.0.content": '["', "gen_ai.completion.0.tool_calls.0": 1, "gen_ai.prompt.1.role": 5},
        {"gen_ai.usage.input_tokens": "many", "llm.token_count.prompt": -1},
        {"llm.token_count.completion": True, "llm.token_count.prompt": (1 << 63) - 1},
        {"gen_ai.usage.input_tokens": 1 << 70, "llm.token_count.completion": float("nan")},
        {"gen_ai.response.finish_reasons": 3, "llm.invocation_parameters": "{", "llm.model_name": ["a"]},
        {"openinference.span.kind": ["LLM"], "gen_ai.operation.name": 7},
        {"pydantic_ai.all_messages": "[[]]", "traceloop.entity.input": "[" * 2000},
    ],
)  # fmt: skip
def test_malformed_content_is_never_an_error(attributes: dict[str, Any]) -> None:
    """Content of any shape is read without an error; what cannot be read is absent."""
    found = model_calls.read_call(attributes, [("gen_ai.choice", {"body": "[", "message": "}"})])
    assert not found.counts
    model_calls.read_tool(attributes)
    model_calls.read_input(attributes)
    model_calls.read_output(attributes)
    assert isinstance(model_calls.kind_of(attributes), str)


@pytest.mark.parametrize("text", ["120", 120, 120.0])
def test_counts_may_be_text_or_floats(text: Any) -> None:
    """Some libraries write counts as text or as floats."""
    assert model_calls.counts_of({"llm.token_count.prompt": text}) == {"gen_ai.usage.input_tokens": 120}
