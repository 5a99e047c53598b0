"""Requests of Anthropic's API and of the Responses API are read in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.otlp import chat_messages

ARGUMENTS = {"city": "Oslo"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
}
ASKED = {"role": "user", "content": "How warm is it?"}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "21", "tool_call_id": "call_1"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
types = st.sampled_from(
    [
        "function_call",
        "function_call_output",
        "reasoning",
        "tool_use",
        "tool_result",
        "thinking",
        "text",
        "message",
    ]
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "type": types | json_values,
        "role": json_values,
        "content": json_values,
        "output": json_values,
        "call_id": json_values,
        "arguments": json_values,
        "input": json_values,
        "summary": json_values,
    },
)
messages = st.lists(fields | st.builds(lambda parts: {"role": "user", "content": parts}, st.lists(fields)))


def read(*sent: dict[str, Any]) -> list[dict[str, Any]]:
    """Return messages as they are read from a span."""
    return chat_messages.of_genai(json.dumps(sent), "user")


def test_anthropic_tool_call_and_result() -> None:
    """Blocks of a tool call and of its result become a call of the message, and a message of the tool."""
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": ARGUMENTS}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "21"}]}
    found = read(ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]})
    assert found == [ASKED, ASSISTANT, RESULT]


def test_text_beside_anthropic_blocks_stays() -> None:
    """Text and thoughts before a call, and text after a result, are kept."""
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": ARGUMENTS}
    blocks = [{"type": "thinking", "thinking": "Where?"}, {"type": "text", "text": "I look."}, use]
    assert read({"role": "assistant", "content": blocks}) == [
        {"role": "assistant", "content": "I look.", "reasoning_content": "Where?", "tool_calls": [CALL]}
    ]
    after = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "21"},
        {"type": "text", "text": "Go on."},
    ]
    assert {"role": "user", "content": "Go on."} in read({"role": "user", "content": after})


def test_results_come_before_the_text_that_was_sent_with_them() -> None:
    """Results follow the calls that they answer, in the sent order, and the user's text follows them."""
    calls = [{"type": "tool_use", "id": str(n), "name": "weather", "input": ARGUMENTS} for n in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": str(n), "content": str(20 + n)} for n in (1, 2)]
    text = {"type": "text", "text": "Go on."}
    expected = [
        {"role": "tool", "content": "21", "tool_call_id": "1"},
        {"role": "tool", "content": "22", "tool_call_id": "2"},
        {"role": "user", "content": "Go on."},
    ]
    asked = {"role": "assistant", "content": calls}
    assert read(asked, {"role": "user", "content": [*results, text]})[1:] == expected
    assert read(asked, {"role": "user", "content": [text, *results]})[1:] == expected


def test_items_of_the_responses_api() -> None:
    """Items without a role become messages of those who made them; the model's items are one message."""
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "21"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Where?"}]}
    assert read(ASKED, {"type": "reasoning", "summary": []}, call, result) == [ASKED, ASSISTANT, RESULT]
    said = {"role": "assistant", "content": [{"type": "text", "text": "I look."}]}
    told = {**said, "reasoning_content": "Where?", "tool_calls": [CALL, CALL]}
    assert read(ASKED, thought, said, call, call, result, said) == [ASKED, told, RESULT, said]


@given(st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), max_size=3))
def test_messages_of_the_chat_api_stay_as_they_are(parts: list[dict[str, Any]]) -> None:
    """A message whose parts are texts or images is not changed."""
    message = {"role": "user", "content": parts}
    assert read(message) == [message]


@given(messages)
def test_any_messages_are_read(sent: list[dict[str, Any]]) -> None:
    """Every message that is read has a role, whatever its other fields are."""
    assert all(isinstance(message["role"], str) for message in read(*sent))
