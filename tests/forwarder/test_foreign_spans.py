"""Export model calls that other libraries recorded as our own are exported."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base import semconv
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.sources.private_table import asked_as_table
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.json_line import spans_of as decoded
from otel_rollout.otlp.outcome import TrajectoryOutcome
from otel_rollout.otlp.span import Span
from otel_rollout.redaction.secret_finder import redact_secrets
from otel_rollout.turns import foreign_spans
from otel_rollout.turns.line_rewriter import LineRewriter
from otel_rollout_mlflow.mapping import to_mlflow
from otel_rollout_weave.mapping import to_call
from tests.otlp.foreign_spans import QUESTION, RULES
from tests.otlp.model_server import ANSWER, ARGUMENTS
from tests.otlp.recorded_foreign import LIBRARIES, calls_in, exported, lines_of, path_of
from tests.otlp.test_model_calls import WITH_CONTENT

LIBRARIES_WITH_TOOLS = ("openinference_langchain", "openllmetry_langchain", "pydantic_ai_native")
REPLACED = (semconv.INPUT_VALUE, semconv.OUTPUT_VALUE, semconv.INPUT_MIME_TYPE, semconv.OUTPUT_MIME_TYPE)


def line(attributes: dict[str, Any], scope: str = "another.library", name: str = "chat") -> bytes:
    """Return a recorded line of a span with text attributes."""
    span = {
        "traceId": "1" * 32,
        "spanId": "2" * 16,
        "parentSpanId": "3" * 16,
        "name": name,
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
    }
    return (
        orjson.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": scope}, "spans": [span]}]}]})
        + b"\n"
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_model_calls_have_our_attributes(library: str) -> None:
    """Kind, operation, model, tokens and finish reasons have our names."""
    for number, span in enumerate(calls_in(exported(library))[:2]):
        attributes = span.attributes or {}
        assert attributes[semconv.GEN_AI_OPERATION_NAME] == "chat"
        assert str(attributes[semconv.GEN_AI_REQUEST_MODEL]).endswith("local")
        assert attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 120
        assert attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 24
        reasons = attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS)
        assert reasons is None or (isinstance(reasons, (list, tuple)) and len(reasons) == 1), number


@pytest.mark.parametrize("library", WITH_CONTENT)
def test_input_and_output_hold_the_messages(library: str) -> None:
    """The question is in the input's messages, and the answer in the output."""
    first, second = (span.attributes or {} for span in calls_in(exported(library))[:2])
    assert first[semconv.INPUT_MIME_TYPE] == semconv.JSON_MIME_TYPE
    given_ = json.loads(str(first[semconv.INPUT_VALUE]))
    asked = given_.get("messages", given_.get("input"))
    assert QUESTION in json.dumps(asked)
    assert isinstance(asked, str) or all("role" in message for message in asked)
    assert ANSWER in str(second[semconv.OUTPUT_VALUE]).replace("\\u00b0", "°")


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_recorded_is_lost(library: str) -> None:
    """Every recorded attribute is exported; what is replaced is kept beside."""
    for recorded_line in lines_of(library):
        rewritten = LineRewriter(Path()).rewrite(recorded_line)
        for before, after in zip(decoded(recorded_line), rewritten.spans, strict=True):
            found = after.attributes or {}
            for name, value in (before.attributes or {}).items():
                if name == semconv.SESSION_ID:  # PydanticAI's, by OpenInference: the conversation's id
                    name = semconv.GEN_AI_CONVERSATION_ID
                kept = found.get(name + semconv.RECORDED_SUFFIX, found[name])
                if name == semconv.GEN_AI_RESPONSE_FINISH_REASONS and isinstance(value, str):  # LiteLLM's
                    value = json.loads(value)
                elif name in (semconv.INPUT_MIME_TYPE, semconv.OUTPUT_MIME_TYPE):
                    continue
                assert kept == value, name
            assert (before.name, before.start_ns, before.end_ns) == (
                found.get(semconv.RECORDED_NAME, after.name),
                after.start_ns,
                after.end_ns,
            )
            assert len(before.events) == len(after.events)


@pytest.mark.parametrize(
    "value",
    [
        {"boolValue": True},
        {"intValue": "7"},
        {"doubleValue": 1.5},
        {"bytesValue": "aGk="},
        {"arrayValue": {"values": [{"intValue": "1"}, {"boolValue": False}]}},
        {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "1"}}]}},
    ],
)
def test_replaced_content_keeps_its_type(value: dict[str, Any]) -> None:
    """The recorded input stands beside the messages as it was, whatever value it is."""
    message = {"stringValue": "3+4?"}
    attributes = [
        {"key": semconv.SPAN_KIND, "value": {"stringValue": semconv.KIND_LLM}},
        {"key": "llm.input_messages.0.message.role", "value": {"stringValue": "user"}},
        {"key": "llm.input_messages.0.message.content", "value": message},
        {"key": semconv.INPUT_VALUE, "value": value},
    ]
    span = {"attributes": attributes}
    assert foreign_spans.fill([Span(span)])
    found = {entry["key"]: entry["value"] for entry in span["attributes"]}
    assert found[semconv.INPUT_VALUE + semconv.RECORDED_SUFFIX] == value
    assert "3+4?" in found[semconv.INPUT_VALUE]["stringValue"]


ASKED = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "3+4?"}]}])
ANSWERED = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "7"}]}])
MESSAGES = {semconv.GEN_AI_INPUT_MESSAGES: ASKED, semconv.GEN_AI_OUTPUT_MESSAGES: ANSWERED}
DETAILS = [("gen_ai.client.inference.operation.details", MESSAGES)]
EVENTS = [
    ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"content": "3+4?"})}),
    ("gen_ai.choice", {"gen_ai.event.content": json.dumps({"message": {"content": "7"}})}),
]


@pytest.mark.parametrize(
    "kind", [{"gen_ai.operation.name": "invoke_agent"}, {"traceloop.span.kind": "task"}, {}]
)
@pytest.mark.parametrize(
    "form", [(MESSAGES, ()), ({}, DETAILS), ({}, EVENTS)], ids=["attributes", "details", "events"]
)
def test_messages_on_any_span_become_its_input_and_output(kind: dict[str, str], form: Any) -> None:
    """Agents, tasks and spans of no known kind show GenAI's messages, from attributes and from events."""
    attributes, events = form
    parsed = orjson.loads(line({**kind, **attributes}))
    (span,) = parsed["resourceSpans"][0]["scopeSpans"][0]["spans"]
    span["events"] = [
        {
            "name": name,
            "timeUnixNano": "1",
            "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in said.items()],
        }
        for name, said in events
    ]
    (found,) = LineRewriter(Path()).rewrite(orjson.dumps(parsed) + b"\n").spans
    shown = found.attributes or {}
    assert json.loads(str(shown[semconv.INPUT_VALUE])) == {"messages": [{"role": "user", "content": "3+4?"}]}
    assert json.loads(str(shown[semconv.OUTPUT_VALUE])) == {
        "messages": [{"role": "assistant", "content": "7"}]
    }
    mapped = to_mlflow(found).attributes or {}
    assert "3+4?" in str(mapped["mlflow.spanInputs"])
    assert "7" in str(mapped["mlflow.spanOutputs"])
    call = json.loads(to_call(found, "entity/project", None).encoded)
    assert call["inputs"]["messages"]
    assert call["output"]


def test_own_spans_are_exported_as_recorded() -> None:
    """A line of our own scope stays as it is, whatever its attributes."""
    own = line({"gen_ai.prompt.0.content": "hello", "gen_ai.operation.name": "chat"}, scope="otel_rollout")
    assert not foreign_spans.may_be_filled(own)
    assert LineRewriter(Path()).rewrite(own).encoded == own


def test_foreign_spans_without_known_attributes_are_exported_as_recorded() -> None:
    """A line of an HTTP client's span is not parsed."""
    other = line({"http.request.method": "GET", "url.full": "http://localhost/gen_ai.usage"})
    assert not foreign_spans.may_be_filled(other)
    assert LineRewriter(Path()).rewrite(other).encoded == other


@pytest.mark.parametrize("library", LIBRARIES_WITH_TOOLS)
def test_tool_calls_have_our_attributes(library: str) -> None:
    """A tool's span has kind, name, call id, arguments and result."""
    (tool,) = [span for span in exported(library) if "weather" in span.name][:1]
    attributes = tool.attributes or {}
    assert attributes[semconv.SPAN_KIND] == "TOOL"
    assert attributes[semconv.GEN_AI_TOOL_NAME] == "weather"
    assert attributes[semconv.GEN_AI_TOOL_CALL_ID] == "call_weather"
    assert json.loads(str(attributes[semconv.INPUT_VALUE])) == ARGUMENTS
    assert "21" in str(attributes[semconv.OUTPUT_VALUE])


def exported_tool(name: str, attributes: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and attributes of a tool's exported span."""
    parsed = orjson.loads(line({semconv.SPAN_KIND: "TOOL", **attributes}))
    parsed["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] = name
    (span,) = LineRewriter(Path()).rewrite(orjson.dumps(parsed) + b"\n").spans
    return span.name, dict(span.attributes or {})


SMOLAGENTS_INPUT = '{"args": [], "sanitize_inputs_outputs": true, "kwargs": {"item": "pears"}}'
LANGCHAIN_OUTPUT = (
    '{"type": "tool", "data": {"content": "13", "type": "tool", "name": "price", "tool_call_id": "call_2"}}'
)


@pytest.mark.parametrize(
    ("part", "recorded", "shown", "mime_type"),
    [
        (semconv.INPUT_VALUE, SMOLAGENTS_INPUT, '{"item":"pears"}', semconv.JSON_MIME_TYPE),
        (semconv.OUTPUT_VALUE, LANGCHAIN_OUTPUT, "13", semconv.TEXT_MIME_TYPE),
    ],
    ids=["smolagents", "LangChain"],
)
def test_tool_shows_its_arguments_and_result_alone(
    part: str, recorded: str, shown: str, mime_type: str
) -> None:
    """The library's own fields around a tool's arguments or result are kept beside."""
    _, attributes = exported_tool("price", {part: recorded, "tool.name": "price"})
    assert attributes[part] == shown
    assert attributes[part.replace("value", "mime_type")] == mime_type
    assert attributes[part + semconv.RECORDED_SUFFIX] == recorded


@pytest.mark.parametrize(
    "attributes",
    [
        {semconv.INPUT_VALUE: "pears", semconv.OUTPUT_VALUE: "null"},
        {semconv.INPUT_VALUE: '{"item": "pears"}', semconv.GEN_AI_TOOL_CALL_ARGUMENTS: '{"item":"pears"}'},
        {semconv.INPUT_VALUE: "", semconv.OUTPUT_VALUE: ""},
    ],
    ids=["text", "same JSON", "empty"],
)
def test_tool_without_other_fields_shows_what_was_recorded(attributes: dict[str, str]) -> None:
    """Arguments and a result that stand alone stay as recorded, and nothing is kept beside."""
    _, found = exported_tool("price", {"tool.name": "price", **attributes})
    assert not [name for name in found if name.endswith(semconv.RECORDED_SUFFIX)]
    assert {name: found[name] for name in attributes} == attributes


def test_tool_has_content_of_convention_alone() -> None:
    """GenAI's arguments and result become input and output, also text that looks like another value."""
    told = {semconv.GEN_AI_TOOL_CALL_ARGUMENTS: '{"item":"pears"}', semconv.GEN_AI_TOOL_CALL_RESULT: "null"}
    _, found = exported_tool("price", told)
    assert (found[semconv.INPUT_VALUE], found[semconv.OUTPUT_VALUE]) == ('{"item":"pears"}', "null")


@pytest.mark.parametrize(
    ("recorded", "tool", "exported"),
    [
        ("SimpleTool", "price", "price"),
        ("running tool", "price", "price"),
        ("execute_tool price", "price", "execute_tool price"),
        ("price.tool", "price", "price.tool"),
        ("SimpleTool", "", "SimpleTool"),
    ],
)
def test_tool_is_called_by_its_own_name(recorded: str, tool: str, exported: str) -> None:
    """A span whose name does not say the tool is named after it; the recorded name is kept beside."""
    name, attributes = exported_tool(recorded, {"tool.name": tool, semconv.INPUT_VALUE: "pears"})
    assert name == exported
    assert attributes.get(semconv.RECORDED_NAME, exported) == recorded


HUMAN = {"type": "human", "data": {"content": "3+4?", "type": "human", "name": None}}
CALL = {"name": "add", "args": {"a": 3}, "id": "call_0", "type": "tool_call"}
AI = {"lc": 1, "kwargs": {"content": "", "type": "ai", "tool_calls": [CALL], "name": None}}
RESULT = {"type": "tool", "data": {"content": "7", "type": "tool", "tool_call_id": "call_0", "name": "add"}}


def test_langchain_messages_of_a_step_are_chat_messages() -> None:
    """A node's messages are shown in OpenAI's form, beside its other state; what was recorded is kept."""
    recorded = json.dumps({"messages": [HUMAN, AI, RESULT], "step": 1})
    (span,) = (
        LineRewriter(Path()).rewrite(line({semconv.SPAN_KIND: "CHAIN", semconv.INPUT_VALUE: recorded})).spans
    )
    attributes = span.attributes or {}
    assert attributes[semconv.INPUT_VALUE + semconv.RECORDED_SUFFIX] == recorded
    assert json.loads(str(attributes[semconv.INPUT_VALUE])) == {
        "messages": [
            {"role": "user", "content": "3+4?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_0",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a":3}'},
                    }
                ],
            },
            {"role": "tool", "content": "7", "tool_call_id": "call_0", "name": "add"},
        ],
        "step": 1,
    }


@pytest.mark.parametrize(
    "messages",
    [
        [HUMAN, {"role": "user", "content": "more"}],
        [["user", "3+4?"]],
        [{"type": "human", "data": {"type": [], "content": 1}}],
        [],
        "text",
    ],
)
def test_messages_of_another_form_stay(messages: Any) -> None:
    """A list that LangChain did not serialize as a whole is exported as recorded."""
    recorded = json.dumps({"messages": messages})
    attributes = {semconv.SPAN_KIND: "CHAIN", semconv.OUTPUT_VALUE: recorded}
    (span,) = LineRewriter(Path()).rewrite(line(attributes)).spans
    assert (span.attributes or {})[semconv.OUTPUT_VALUE] == recorded


def test_smolagents_reply_is_chat_message() -> None:
    """The dump of smolagents' message, with the client's reply as printed, gives way to the message."""
    for span in calls_in(exported("openinference_smolagents")):
        attributes = span.attributes or {}
        (choice,) = json.loads(str(attributes[semconv.OUTPUT_VALUE]))["choices"]
        assert choice["message"]["role"] == "assistant"
        assert choice["message"].get("tool_calls") or choice["message"]["content"]
        assert '"raw"' in str(attributes[semconv.OUTPUT_VALUE + semconv.RECORDED_SUFFIX])


@pytest.mark.parametrize("library", WITH_CONTENT)
def test_mlflow_gets_chat_model_with_messages(library: str) -> None:
    """MLflow's exporter sends a chat model with inputs and outputs."""
    for span in calls_in(exported(library))[:2]:
        attributes = to_mlflow(span).attributes or {}
        assert attributes["mlflow.spanType"] == "CHAT_MODEL"
        assert "messages" in str(attributes["mlflow.spanInputs"]) or "input" in str(
            attributes["mlflow.spanInputs"]
        )
        assert attributes["mlflow.spanOutputs"]


@pytest.mark.parametrize("library", WITH_CONTENT)
def test_weave_gets_usage_and_messages(library: str) -> None:
    """Weave's exporter sends usage by model, messages and reply."""
    for span in calls_in(exported(library))[:2]:
        call = json.loads(to_call(span, "entity/project", None).encoded)
        (usage,) = call["summary"]["usage"].values()
        assert (usage["input_tokens"], usage["output_tokens"]) == (120, 24)
        assert call["attributes"]["weave"]["kind"] == "llm"
        assert call["inputs"].get("messages", call["inputs"].get("input"))
        assert call["output"]


def shown_from(path: Path) -> Conversation:
    """Return the only trajectory of a file, as ``show`` reads it."""
    with asked_as_table(SpoolSource(path)) as source:
        (summary,) = source.find(None)
        return source.conversation(summary.trace_id)


@pytest.mark.parametrize("library", WITH_CONTENT)
def test_show_prints_conversation_with_tokens(library: str) -> None:
    """``show`` reads question, tool call, answer and tokens of recorded lines."""
    shown = shown_from(path_of(library))
    calls = [turn for turn in shown.turns if turn.is_model_call]
    assert calls[0].calls[0].name == "weather"
    assert calls[0].calls[0].arguments == ARGUMENTS
    assert (calls[0].tokens.input, calls[0].tokens.output) == (120, 24)
    texts = [turn.text for turn in shown.turns]
    assert any(QUESTION in text for text in texts)
    assert ANSWER in texts or any(
        call.arguments == {"answer": ANSWER} for turn in calls for call in turn.calls
    )
    if "smolagents" not in library:
        assert RULES in texts
    assert shown.summary.tokens.output


def test_show_merges_tool_span_and_tool_message() -> None:
    """The tool's span and the message with its result are one turn."""
    shown = shown_from(path_of("openinference_langchain"))
    roles = [turn.role for turn in shown.turns][:5]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert shown.turns[3].text == "21"
    assert shown.turns[3].arguments == ARGUMENTS


@pytest.mark.parametrize(
    "library", ["openinference_openai", "openllmetry_openai_older", "pydantic_ai_native"]
)
def test_tail_sampling_counts_tokens_of_recorded_lines(library: str) -> None:
    """The rule ``long`` counts the output tokens of other libraries' model calls."""
    outcome = TrajectoryOutcome("reward")
    for recorded_line in lines_of(library):
        outcome.add(recorded_line)
    counted = [model_calls.counts_of(span.attributes or {}) for span in calls_in(exported(library))]
    assert outcome.tokens == sum(counts.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, 0) for counts in counted) > 0


def test_context_diff_notes_turns_of_other_libraries() -> None:
    """A second call that resends the first call's messages names it, as ours do."""
    spans = calls_in(exported("openinference_langchain"))
    first, second = (span.attributes or {} for span in spans[:2])
    assert semconv.TURN_CONTINUES not in first
    assert second[semconv.TURN_CONTINUES] == spans[0].span_id
    assert (second[semconv.TURN_SHARED], second[semconv.TURN_LENGTH]) == (2, 4)


def test_redacted_content_stays_redacted() -> None:
    """Messages are made of the line that the recorder has redacted."""
    recorded_line = redact_secrets(
        line({"openinference.span.kind": "LLM", "llm.prompts.0.prompt.text": SECRET})
    )
    rewritten = LineRewriter(Path()).rewrite(recorded_line).encoded
    assert SECRET.encode() not in rewritten
    assert rewritten.count(b"[redacted]") == 2


SECRET = "sk-abcdefghijklmnopqrstuvwx0123456789"


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{broken"},
        {"gen_ai.operation.name": "chat", "gen_ai.output.messages": "[" * 1000 + "]" * 1000},
        {"openinference.span.kind": "LLM", "llm.input_messages.7.message.content": "after a hole"},
        {"openinference.span.kind": "LLM", **{f"llm.prompts.{n}.prompt.text": "x" for n in range(1000)}},
        {"openinference.span.kind": "LLM", "llm.input_messages.0.message.content": "x" * (4 << 20)},
        {"traceloop.span.kind": "task", "traceloop.entity.input": '{"a":' * 900 + "1" + "}" * 900},
        {"openinference.span.kind": "TOOL", "input.value": "{", "output.value": "[1"},
    ],
    ids=["broken", "deep", "hole", "1,000 attributes", "4 MiB", "deep task", "broken tool"],
)  # fmt: skip
def test_odd_content_is_exported(attributes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Unreadable content costs only itself: the rest is exported."""
    recorded_line = line(attributes)
    with caplog.at_level(logging.WARNING):
        (span,) = LineRewriter(Path()).rewrite(recorded_line).spans
    for name, value in attributes.items():
        assert (span.attributes or {})[name] == value
    assert len(caplog.records) <= 1


NAMES = st.one_of(
    st.sampled_from(
        [
            "gen_ai.input.messages",
            "gen_ai.output.messages",
            "gen_ai.system_instructions",
            "gen_ai.response.finish_reasons",
            "gen_ai.usage.input_tokens",
            "gen_ai.tool.call.arguments",
            "llm.invocation_parameters",
            "pydantic_ai.all_messages",
            "traceloop.entity.input",
            "input.value",
            "output.value",
        ]
    ),
    st.from_regex(
        r"\A(llm\.(in|out)put_messages|gen_ai\.(prompt|completion))\.[0-9]{1,3}"
        r"(\.(message|content|contents|role|tool_calls|tool_call|0|function|name|arguments|id)){1,6}\Z"
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "parts", "content", "type", "tool_calls", "id", "name", "text"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
KINDS = st.sampled_from(["LLM", "TOOL", "AGENT", "CHAIN", "EMBEDDING", "odd"])


@given(KINDS, st.dictionaries(NAMES, JSON.map(json.dumps) | st.text(max_size=20), max_size=12))
def test_any_content_is_exported(kind: str, attributes: dict[str, str]) -> None:
    """Whatever the attributes hold, the line keeps what was recorded."""
    encoded = {key: value.encode(errors="replace").decode() for key, value in attributes.items()}
    recorded_line = line({semconv.SPAN_KIND: kind, **encoded})
    (span,) = LineRewriter(Path()).rewrite(recorded_line).spans
    for name, value in encoded.items():
        if name not in (*REPLACED, semconv.GEN_AI_RESPONSE_FINISH_REASONS):
            assert (span.attributes or {})[name] == value


def test_error_of_the_reader_does_not_stop_the_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of ours is logged once, and lines are exported as recorded."""

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(foreign_spans, "_completed", fail)
    rewriter = LineRewriter(Path())
    with caplog.at_level(logging.WARNING):
        for recorded_line in lines_of("openllmetry_openai")[:2]:
            assert rewriter.rewrite(recorded_line).encoded == recorded_line
    assert [record.getMessage() for record in caplog.records] == [
        "a span cannot be rewritten and is exported as recorded: RuntimeError('a defect')"
    ]


def test_own_lines_cost_one_short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a line of ours, however long it is, only the beginning is looked at."""
    own = line({"gen_ai.system": "x" * (1 << 20)}, scope="otel_rollout")
    assert foreign_spans.may_be_filled(own.replace(b"otel_rollout", b"openinference"))
    monkeypatch.setattr(foreign_spans, "_KNOWN", None)  # a search of the whole line would fail
    assert not foreign_spans.may_be_filled(own)


@pytest.mark.parametrize(
    ("request_id", "reply_id"),
    [
        ("chatcmpl-1", "chatcmpl-1"),
        ("cmpl-7-0", "cmpl-7"),
        ("chatcmpl-2_1", "chatcmpl-2"),
        ("resp_3_0", "resp_3"),
        ("mine", "mine"),
    ],
)
def test_engine_span_and_model_call_have_one_attribute_with_the_id(request_id: str, reply_id: str) -> None:
    """The id of the reply is on both, so a query finds them also where no trace header travelled."""
    recorded = line({semconv.GEN_AI_REQUEST_ID: request_id}, "vllm.tracing.otel", semconv.ENGINE_REQUEST)
    engine = decoded(LineRewriter(Path()).rewrite(recorded).encoded)[0].attributes or {}
    assert engine[semconv.GEN_AI_RESPONSE_ID] == reply_id
    call = calls_in(exported("openinference_openai"))[0].attributes or {}
    assert call[semconv.GEN_AI_RESPONSE_ID] == "chatcmpl-1"
