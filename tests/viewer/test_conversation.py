"""Conversations are built from spans of every shape."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from otel_rollout.base import semconv
from otel_rollout.look.conversation import atif, excerpt, formatting, page, terminal
from otel_rollout.look.conversation.comparison import Comparison, compare
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.training_data import chat_of
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.otlp.messages import Call
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.viewer.reading import conversation_of

ROOT = 1
IDENTITY = {semconv.STEP: 1, semconv.SAMPLE_INDEX: 7, semconv.ROLLOUT_N: 0, semconv.VALIDATE: False}


def line(
    number: int,
    input_: Any,
    result: Any,
    *,
    parent: int = ROOT,
    name: str = "generate",
    kind: str = "LLM",
    **more: Any,
) -> bytes:
    """Encode span ``number``, which starts at ten times its number unless ``start`` is given, as a line.

    ``error`` is its error; ``events`` are its events, encoded.
    """
    attributes = {
        **IDENTITY,
        semconv.SPAN_KIND: kind,
        semconv.INPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
        semconv.INPUT_VALUE: orjson.dumps(input_).decode(),
        semconv.OUTPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
        semconv.OUTPUT_VALUE: orjson.dumps(result).decode(),
        **more.get("attributes", {}),
    }
    span = {
        "traceId": f"{1:032x}",
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "startTimeUnixNano": str(more.get("start", 10 * number)),
        "endTimeUnixNano": str(more.get("end", 10 * number + 5)),
        "attributes": [{"key": key, "value": encoded(value)} for key, value in attributes.items()],
        "events": more.get("events", []),
        "status": {"code": 2, "message": more["error"]} if "error" in more else {},
    }
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def encoded(value: bool | int | float | str) -> dict[str, Any]:
    """Encode an attribute's value as in OTLP/JSON."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return {kinds[type(value)]: str(value) if type(value) is int else value}


def shown(lines: Sequence[bytes], root_id: int | None = None) -> Conversation:
    root = line(ROOT, None, None, parent=0, name="rollout_trace", kind="AGENT", end=10**6)
    spans = [span for each in (*reversed(lines), root) for span in spans_of(each)]  # in any order
    return conversation_of(spans, root_id)


def messages_of(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in turns]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


ANSWERS = {
    "text": "Hello",
    "a message": assistant("Hello"),
    "messages": [assistant("Hello")],
    "OpenAI, chat": {"choices": [{"message": assistant("Hello")}]},
    "OpenAI, completions": {"choices": [{"text": "Hello"}]},
    "OpenAI, responses": {
        "output": [{"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}]
    },
    "Anthropic": {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
    "Ollama": {"message": assistant("Hello")},
    "OpenTelemetry": [{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]}],
    "a field": {"text": "Hello", "cost": 3},
    "the whole conversation": {"messages": [user("Hi"), assistant("Hello")]},
    "token2text": {"token_ids": [1, 2], "response_text": "Hello<|im_end|>"},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_reply_of_each_supported_shape_is_read_as_text(answer: Any) -> None:
    """A reply reads as one text, whichever library's object the call returned."""
    for given in (
        {"messages": [user("Hi")]},
        [user("Hi")],
        {"prompt": "Hi"},
        "Hi",
        {"kwargs": {"raw_prompt": [user("Hi")]}},
    ):
        assert messages_of(shown([line(2, given, answer)]).turns) == [("user", "Hi"), ("assistant", "Hello")]


def test_texts_that_a_generator_yields_are_one_reply() -> None:
    """Chunks of a stream are joined as they came, blanks included."""
    streamed = line(2, [user("Hi")], ["Hel", "lo ", "0"], attributes={semconv.GENERATOR_ITEMS: 3})
    assert messages_of(shown([streamed]).turns) == [("user", "Hi"), ("assistant", "Hello 0")]
    assert shown([streamed]).longest[-1].text == "Hello 0"


def test_span_that_began_before_the_root_is_not_the_trajectory() -> None:
    """An agent on a machine whose clock is late sends a span whose parent nobody has recorded."""
    agent = line(
        2, {}, {}, parent=99, name="agent", kind="AGENT", start=1, attributes={semconv.VALIDATE: True}
    )
    assert shown([agent]).summary.name == "rollout_trace"
    assert shown([agent]).summary.path == "1/7/0"


CALLS = {
    "OpenAI": {"tool_calls": [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
    "Anthropic": {"content": [{"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}]},
    "OpenTelemetry": {"parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 1}}]},
    "responses": {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
}


@pytest.mark.parametrize("answer", CALLS.values(), ids=CALLS)
def test_tool_calls_of_each_supported_shape_are_read(answer: Any) -> None:
    """A tool call has its name, its arguments as values, and its id."""
    (turn,) = shown([line(2, {}, [{"role": "assistant", **answer}])]).turns
    assert turn.calls == (Call("add", {"a": 1}, "c"),)


REASONED = {
    "DeepSeek": {"content": "42", "reasoning_content": "6 * 7"},
    "vLLM": {"content": "42", "reasoning_content": "", "reasoning": "6 * 7"},
    "Ollama": {"content": "42", "thinking": "6 * 7"},
    "Anthropic": {"content": [{"type": "thinking", "thinking": "6 * 7"}, {"type": "text", "text": "42"}]},
    "OpenTelemetry": {
        "parts": [{"type": "reasoning", "content": "6 * 7"}, {"type": "text", "content": "42"}]
    },
    "LangChain": {"content": [{"type": "reasoning", "reasoning": "6 * 7"}, {"type": "text", "text": "42"}]},
}


@pytest.mark.parametrize("said", REASONED.values(), ids=REASONED)
def test_reasoning_of_each_supported_shape_has_one_form(said: dict[str, Any]) -> None:
    """Training data tells what a model thinks from what it answers, as chat templates do."""
    replied = {"role": "assistant", **said}
    again = [user("6 * 7?"), replied, user("Sure?")]
    found = shown(
        [line(2, {"messages": again[:1]}, replied), line(3, {"messages": again}, assistant("Yes."))]
    )
    text = "<think>\n6 * 7\n</think>\n42"
    expected = [("user", "6 * 7?"), ("assistant", text), ("user", "Sure?"), ("assistant", "Yes.")]
    assert messages_of(found.turns) == expected
    assert [(message["role"], message["content"]) for message in chat_of(found)] == expected


def test_results_come_before_the_text_that_was_sent_with_them() -> None:
    """Results in Anthropic's message of the user follow the calls that they answer."""
    uses = [{"type": "tool_use", "id": id_, "name": "search", "input": {}} for id_ in "ab"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": f"found {id_}"} for id_ in "ab"]
    asked = {"role": "assistant", "content": uses}
    told = {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}
    found = shown([line(2, {"messages": [user("Hi"), asked, told]}, assistant("Done."))])
    expected = ["Hi", "", "found a", "found b", "Go on.", "Done."]
    assert [message["content"] for message in chat_of(found)] == expected
    assert [turn.text for turn in found.turns] == expected


def item(type_: str, **fields: Any) -> dict[str, Any]:
    """Return an item of OpenAI's Responses API."""
    return {"type": type_, **fields}


THOUGHT = item("reasoning", id="r", summary=[{"type": "summary_text", "text": "Where?"}])
SPOKEN = item("message", role="assistant", content=[{"type": "output_text", "text": "I look."}])
ASKING = [item("function_call", call_id=id_, name="search", arguments="{}") for id_ in "ab"]
FOUND = [item("function_call_output", call_id=id_, output=f"found {id_}") for id_ in "ab"]


def test_items_of_a_reply_are_one_message_in_the_reply_and_in_the_next_context() -> None:
    """Reasoning, text and calls of the Responses API; empty reasoning, as is usual, says nothing."""
    empty = item("reasoning", id="r", summary=[], encrypted_content="x")
    for thought, text in ((THOUGHT, "<think>\nWhere?\n</think>\nI look."), (empty, "I look.")):
        replied = [thought, SPOKEN, *ASKING]
        asked = [user("Hi")]
        again = [*asked, *replied, *FOUND]
        found = shown(
            [
                line(2, {"input": asked}, {"object": "response", "output": replied}),
                line(3, {"input": again}, {"object": "response", "output": [empty, SPOKEN]}),
            ]
        )
        assert messages_of(found.turns) == [
            ("user", "Hi"), ("assistant", text), ("tool", "found a"), ("tool", "found b"),
            ("assistant", "I look."),
        ]  # fmt: skip
        assert not any(turn.note for turn in found.turns)
        _, called, *results, _ = chat_of(found)
        assert [call["id"] for call in called["tool_calls"]] == ["a", "b"]
        assert [result["tool_call_id"] for result in results] == ["a", "b"]


def test_item_without_text_leaves_the_others_readable() -> None:
    """Its type is shown, and the conversation is no training data, because a part of it is unknown."""
    search = item("web_search_call", id="w", status="completed")
    found = shown([line(2, {"input": "Hi"}, {"output": [search, THOUGHT, SPOKEN]})])
    text = "<think>\nWhere?\n</think>\n[web_search_call]\nI look."
    assert messages_of(found.turns) == [("user", "Hi"), ("assistant", text)]
    assert not chat_of(found)


def test_calls_and_results_of_openais_older_api_are_those_of_tools() -> None:
    """A reply's `function_call` is a tool call, and a message of the role `function` is its result."""
    function = {"name": "add", "arguments": '{"a": 1}'}
    asked = {"role": "assistant", "content": None, "function_call": function}
    said = [user("And 1?"), asked, {"role": "function", "name": "add", "content": "2"}]
    found = shown(
        [
            line(2, {"messages": said[:1]}, {"choices": [{"message": asked}]}),
            line(3, {"a": 1}, "2", name="add", kind="TOOL"),
            line(4, {"messages": said}, assistant("2.")),
        ]
    )
    assert messages_of(found.turns) == [
        ("user", "And 1?"),
        ("assistant", ""),
        ("tool", "2"),
        ("assistant", "2."),
    ]
    assert found.turns[1].calls == (Call("add", {"a": 1}),)
    _, called, result, _ = chat_of(found)
    assert called["tool_calls"] == [
        {"id": "2-1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    ]
    assert result == {"role": "tool", "content": "2", "tool_call_id": "2-1"}


def test_calls_without_ids_get_the_same_ids_in_training_data_and_in_atif() -> None:
    """Ollama's calls have none; a result is that of the first call without one."""
    calls = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("add", "halve")]
    asking = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [{"role": "tool", "tool_name": name, "content": name} for name in ("add", "halve")]
    said = [user("Hi"), asking, *results]
    twice = [*said, asking, *results]
    found = shown(
        [
            line(2, {"messages": said[:1]}, {"message": asking, "done": True}),
            line(3, {"messages": said}, {"message": asking, "done": True}),
            line(4, {"messages": twice}, {"message": assistant("Done."), "done": True}),
        ]
    )
    chat, steps = chat_of(found), atif.document_of(found)["steps"]
    asked = [call["id"] for message in chat for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in chat if message["role"] == "tool"]
    assert asked == answered == ["2-1", "2-2", "3-1", "3-2"]
    assert [call["tool_call_id"] for step in steps for call in step.get("tool_calls", ())] == asked


def test_a_tool_that_is_called_by_its_name_shows_what_stands_beside_its_arguments() -> None:
    """Such a function's other arguments that have a value are shown, else only the tool's own."""
    given = {"name": "add", "arguments": {"a": 1}, "timeout": None}
    for timeout, expected in ((None, {"a": 1}), (0, {**given, "timeout": 0})):
        named = line(2, {**given, "timeout": timeout}, "2", name="call_tool", kind="TOOL")
        (turn,) = shown([named]).turns
        assert (turn.name, turn.arguments) == ("add", expected)


def test_messages_that_are_resent_are_shown_once() -> None:
    """Requests repeat everything before them.

    A repeated reply may lack its tool call's markup.
    """
    first = [{"role": "system", "content": "Be brief."}, user("One?")]
    reply = assistant("Let me see. <tool_call>{}</tool_call>")
    resent = {**assistant("Let me see."), "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    second = [*first, resent, {"role": "tool", "content": "1"}, user("And two?")]
    turns = shown(
        [
            line(2, {"messages": first}, reply),
            line(3, {"name": "look", "arguments": {}}, "1", name="execute_tool look", kind="TOOL"),
            line(4, {"messages": second}, assistant("Two.")),
            line(5, {"messages": [*second, assistant("Two."), user("Thanks")]}, assistant("Bye.")),
        ]
    ).turns
    assert [text for _, text in messages_of(turns)] == [
        "Be brief.", "One?", "Let me see. <tool_call>{}</tool_call>", "1", "And two?", "Two.", "Thanks",
        "Bye.",
    ]  # fmt: skip
    assert turns[2].calls == (Call("look", {}),)
    assert (turns[3].name, turns[3].arguments) == ("look", {})
    assert not any(turn.note for turn in turns)


@pytest.mark.parametrize(
    "reply", [{"content": "Let me see."}, {"content": "", **CALLS["OpenAI"]}, {"content": ""}]
)
def test_reply_to_an_untold_request_is_shown_once(reply: dict[str, Any]) -> None:
    """A context that begins with the reply goes on from it; the beginning of the context nobody told."""
    said = [assistant("") | reply, {"role": "tool", "content": "1"}]
    turns = shown(
        [
            line(2, {}, said[0]),
            line(3, {"messages": said}, assistant("Two.")),
            line(4, {"messages": [*said, assistant("Two."), user("Thanks")]}, assistant("Bye.")),
        ]
    ).turns
    assert [text for _, text in messages_of(turns)] == [reply["content"], "1", "Two.", "Thanks", "Bye."]
    assert not any(turn.note for turn in turns)


@pytest.mark.parametrize("first", [user("Yes."), assistant("No.")])
def test_context_that_does_not_begin_with_an_untold_ones_reply_shares_nothing(first: dict[str, str]) -> None:
    """All of its messages are shown, with a note."""
    turns = shown([line(2, {}, assistant("Yes.")), line(3, [first, user("Why?")], assistant("So."))]).turns
    assert [text for _, text in messages_of(turns)] == ["Yes.", first["content"], "Why?", "So."]
    assert [turn.note for turn in turns if turn.note] == ["a context of its own"]


def test_context_that_was_edited_or_is_new_has_a_note() -> None:
    """An edited context is shown from its first difference.

    A new one is called a context of its own.
    """
    first = [user("One?"), assistant("Yes."), user("Two?")]
    turns = shown(
        [
            line(2, {"messages": first}, assistant("No.")),
            line(3, {"messages": [user("One?"), user("In short: yes.")]}, assistant("Fine.")),
            line(4, {"messages": [user("Judge this.")]}, assistant("Bad.")),
            line(5, {"messages": [user("Judge this.")]}, assistant("Good.")),
        ]
    ).turns
    assert messages_of(turns)[4:] == [
        ("user", "In short: yes."), ("assistant", "Fine."), ("user", "Judge this."), ("assistant", "Bad."),
        ("assistant", "Good."),
    ]  # fmt: skip
    assert [turn.note for turn in turns if turn.note] == [
        "goes on from message 1 of a context of 3",
        "a context of its own",
    ]
    assert turns[-1].tokens.output is None


INSIDE = {**IDENTITY, semconv.ROLLOUT_N: 1}


def tool(number: int, name: str, result: str | None, **more: Any) -> bytes:
    return line(number, {"name": name, "arguments": {}}, result, name=name, kind="TOOL", **more)


def answered(text: str) -> dict[str, str]:
    return {"role": "tool", "content": text}


def test_edited_context_shows_each_tool_result_once_at_its_own_call() -> None:
    """Of a context whose first reply was replaced, only the replacement is shown, with a note."""
    question = [user("6 * 7, and its half?")]
    thinking, dividing = assistant("First I multiply."), assistant("Then I divide.")
    second = [*question, thinking, answered("42")]
    third = [*question, assistant("…"), answered("42"), dividing, answered("21")]
    turns = shown(
        [
            line(2, {"messages": question}, thinking),
            tool(3, "python", "42"),
            line(4, {"messages": second}, dividing),
            tool(5, "calculator", "21"),
            line(6, {"messages": third}, assistant("21.")),
            line(7, {"messages": [*third, assistant("21."), user("Sure?")]}, assistant("Yes.")),
        ]
    ).turns
    assert [(turn.name or turn.role, turn.text, turn.note) for turn in turns] == [
        ("user", "6 * 7, and its half?", ""),
        ("assistant", "First I multiply.", ""),
        ("python", "42", ""),
        ("assistant", "Then I divide.", ""),
        ("calculator", "21", ""),
        ("assistant", "…", "the context was edited after message 1"),
        ("assistant", "21.", ""),
        ("user", "Sure?", ""),
        ("assistant", "Yes.", ""),
    ]


def test_context_without_its_oldest_messages_repeats_nothing() -> None:
    """Messages that are left out are named; those that stay are not shown again."""
    question = [user("6 * 7, and its half?")]
    first = [*question, assistant("First I multiply."), answered("42")]
    turns = shown(
        [
            line(2, {"messages": question}, assistant("First I multiply.")),
            tool(3, "python", "42"),
            line(4, {"messages": first}, assistant("Then I divide.")),
            tool(5, "calculator", None, error="ValueError: no"),
            line(6, [*question, assistant("Then I divide."), answered("Error: ValueError")], "21."),
        ]
    ).turns
    assert [(turn.name or turn.role, turn.text, turn.note) for turn in turns] == [
        ("user", "6 * 7, and its half?", ""),
        ("assistant", "First I multiply.", ""),
        ("python", "42", ""),
        ("assistant", "Then I divide.", ""),
        ("calculator", "Error: ValueError", ""),
        ("assistant", "21.", "the context was edited after message 1"),
    ]


def test_replaced_last_reply_has_a_note() -> None:
    """A reply that comes back as another one is an edit; going on from another sample's reply is none."""
    question = [user("Six?")]
    samples = [line(2, question, "Seven."), line(3, question, "Eight.")]
    edited = shown([*samples, line(4, [*question, assistant("Nine."), user("Sure?")], "Yes.")]).turns
    chosen = shown([*samples, line(4, [*question, assistant("Seven."), user("Sure?")], "Yes.")]).turns
    assert [(turn.text, turn.note) for turn in edited[2:]] == [
        ("Eight.", ""), ("Nine.", "the context was edited after message 1"), ("Sure?", ""), ("Yes.", "")
    ]  # fmt: skip
    assert [(turn.text, turn.note) for turn in chosen[2:]] == [("Eight.", ""), ("Sure?", ""), ("Yes.", "")]


def test_answer_that_comes_back_without_its_reasoning_has_a_note() -> None:
    """The model gets another context than the one that it was sampled with."""
    thinking = assistant("<think>Six by seven.</think>42.")
    asked = line(2, [user("6 * 7?")], thinking)
    for again, note in ((assistant("42."), "the context was edited after message 1"), (thinking, "")):
        turns = shown([asked, line(3, [user("6 * 7?"), again, user("Sure?")], "Yes.")]).turns
        assert [(turn.text, turn.note) for turn in turns[2:]] == [("Sure?", note), ("Yes.", "")]


def test_tool_keeps_its_own_result_beside_another_message() -> None:
    """A message without id that is not the recorded result is a turn of its own; a part of it is not."""
    asked = [user("Go")]
    given = [*asked, assistant("Yes"), answered("tide"), answered("{'text': 'low'}")]
    turns = shown([line(2, asked, "Yes"), tool(3, "look", "low"), line(4, given, "Done")]).turns
    assert [(turn.name or turn.role, turn.text) for turn in turns[2:]] == [
        ("look", "{'text': 'low'}"), ("tool", "tide"), ("assistant", "Done")
    ]  # fmt: skip
    other = [*asked, assistant("Yes"), answered("tide")]
    turns = shown([line(2, asked, "Yes"), tool(3, "look", "low"), line(4, other, "Done")]).turns
    assert [(turn.name or turn.role, turn.text) for turn in turns[2:]] == [
        ("look", "low"), ("tool", "tide"), ("assistant", "Done")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ConnectionError: no answer"),
        ("Error: ConnectionError", "no answer"),
        ("Error: no answer", ""),
        ("SubConnectionErrors", "ConnectionError: no answer"),
    ],
)
def test_error_repeats_nothing_that_the_result_says(text: str, said: str) -> None:
    """The type of an error is printed once, and so is its message."""
    failed = Turn("tool", text, error="ConnectionError: no answer")
    assert formatting.error(failed) == said


def test_comparison_does_not_say_that_a_trajectory_with_fewer_turns_has_ended() -> None:
    """It may still run."""
    two = [line(2, {"messages": [user("How?")]}, assistant("So")), line(3, "x", "y", kind="TOOL")]
    found = compare(*(shown(lines) for lines in (two[:1], two)))
    assert formatting.divergence(found) == "2 turns alike; then one of them has no more turns."


def test_a_score_of_minus_zero_is_zero() -> None:
    """A mean of such scores has no sign either."""
    assert formatting.score_value(-0.0) == "0.0"


@pytest.mark.parametrize(
    ("left", "right", "said", "marked"),
    [
        ("17 * 24", "17 * 24 / 0", "8 of it (its end and “/”)", (None, "/")),
        ("17 * 24", "17 + 24", "4 of it (“*” and “+”)", ("*", "+")),
        ("is 24 now", "is 240 now", "6 of it (“24” and “240”)", ("24", "240")),
        ("is 24", "is 240", "6 of it (“24” and “240”)", ("24", "240")),
        ("so it\nis", "so it was", "6 of it (“is” and “was”)", ("is", "was")),
    ],
)
def test_comparison_marks_the_first_word_that_differs(
    left: str, right: str, said: str, marked: tuple[str | None, str | None]
) -> None:
    """A word that both sides have whole is not marked; a side that has ended there has no mark."""
    found = compare(*(shown([line(2, "How?", text)]) for text in (left, right)))
    assert formatting.divergence(found) == f"They part at turn 2 (assistant), character {said}."
    parts = [found.changed(turn) for turn in found.rows[0] if turn]
    assert tuple(each and each[1] for each in parts) == marked


def test_comparison_of_equal_turns_names_scores_that_differ() -> None:
    """Siblings with the same text and other scores are not called the same; terminal and page agree."""

    def sibling(value: float, *more: str) -> Conversation:
        names = ["reward", "format", *more]
        values = [value, 1.0, *(0.5 for _ in more)]
        scores = [
            line(
                number,
                None,
                None,
                name=f"score {name}",
                kind="EVALUATOR",
                attributes={
                    semconv.GEN_AI_EVALUATION_NAME: name,
                    semconv.GEN_AI_EVALUATION_SCORE_VALUE: each,
                },
            )
            for number, (name, each) in enumerate(zip(names, values, strict=True), start=3)
        ]
        return shown([line(2, "One?", "Yes."), *scores])

    def printed(comparison: Comparison) -> str:
        console = Console(file=io.StringIO(), width=120, record=True)
        terminal.compare(comparison, console)
        return console.export_text()

    other, same = compare(sibling(1.0), sibling(0.0, "length")), compare(sibling(1.0), sibling(1.0))
    sentence = "The same in all 2 turns, but other scores: reward 1.0 and 0.0, length missing and 0.5."
    assert sentence in printed(other)
    assert ["length", "–", "0.5"] in [line.split() for line in printed(other).splitlines()]
    assert f'<div class="divergence ">{sentence}</div>' in page.of_comparison(other)
    assert "The same in all 2 turns." in printed(same)
    silent = [replace(one, turns=[Turn("assistant", is_call=True)]) for one in (same.left, same.right)]
    assert "What they said was not recorded: nothing tells them apart." in printed(compare(*silent))
    failed = replace(same.right, summary=replace(same.right.summary, error="ValueError: no page"))
    assert ["error", "–", "ValueError: no page"] in [
        re.split(r"  +", line.strip()) for line in printed(compare(same.left, failed)).splitlines()
    ]
    assert '<div class="divergence none">The same in all 2 turns.</div>' in page.of_comparison(same)


def test_parallel_tool_calls_get_their_own_results() -> None:
    """Results are matched by call id, in whatever order the model gets them."""
    answers = [{"role": "tool", "tool_call_id": id_, "content": f"answer {id_}"} for id_ in ("b", "a")]
    tools = [
        line(
            number,
            {"arguments": {}},
            None,
            kind="TOOL",
            name=id_,
            attributes={semconv.GEN_AI_TOOL_CALL_ID: id_},
        )
        for number, id_ in ((3, "a"), (4, "b"))
    ]
    turns = shown([line(2, "Go", "Yes"), *tools, line(5, [user("Go"), *answers], "Done")]).turns
    assert [(turn.name, turn.text) for turn in turns if turn.role == "tool"] == [
        ("a", "answer a"),
        ("b", "answer b"),
    ]


def test_result_of_a_tool_that_asks_a_model_is_shown_once() -> None:
    """The calls of a subagent inside a tool come before the tool's result, which is the tool's turn."""
    answer = {"role": "tool", "tool_call_id": "c", "content": "wool is warm"}
    named = {semconv.GEN_AI_TOOL_CALL_ID: "c"}
    asked = [user("Look"), assistant("I look")]
    found = shown(
        [
            line(2, [user("Why?")], assistant("I ask")),
            line(3, {}, "wool is warm", name="research", kind="TOOL", attributes=named, end=900),
            line(4, [user("Look")], assistant("I look"), parent=3),
            line(5, [*asked, user("More")], assistant("That is all"), parent=3),
            line(950, [user("Why?"), assistant("I ask"), answer], assistant("Warm")),
        ]
    )
    assert [(turn.name, turn.text) for turn in found.turns if turn.role == "tool"] == [
        ("research", "wool is warm")
    ]
    assert [(message.text, turn.name) for message, turn in found.said if message.role == "tool"] == [
        ("wool is warm", "research")
    ]


BETWEEN = {
    "a judge": [
        line(5, {}, 0.5, name="rate", kind="EVALUATOR", end=60),
        line(6, [user("Rate it")], "0.5", parent=5),
        tool(7, "click", None, parent=5, error="TimeoutError: no button"),
    ],
    "a summary": [line(5, [user("In short?")], "wool")],
    "a sub-trajectory": [
        line(4, {}, "gave up", name="delegate", kind="TOOL", end=90),
        line(5, None, None, parent=4, name="helper", kind="AGENT", attributes=INSIDE, end=80),
        line(6, [user("Help")], "I look", parent=5, attributes=INSIDE),
        tool(7, "look", "wool is warm", parent=5, attributes=INSIDE),
        tool(8, "click", None, parent=5, attributes=INSIDE, error="TimeoutError: no button"),
    ],
    "a subagent": [
        line(4, {}, "gave up", name="delegate", kind="TOOL", end=90),
        line(5, [user("Help")], "I look", parent=4),
        tool(6, "click", None, parent=4, error="TimeoutError: no button"),
    ],
}


@pytest.mark.parametrize("result", ["wool is warm", None], ids=["told", "untold"])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_result_is_its_own_tools_whatever_model_is_asked_before_it_is_told(
    between: list[bytes], result: str | None
) -> None:
    """A result is shown once, at the tool that gave it, and never at a tool of an evaluator or a subagent."""
    told = [("search", "wool is warm"), *([("delegate", "gave up")] if b"delegate" in between[0] else [])]
    answers = [
        {"role": "tool", "tool_call_id": f"o{number}", "content": text}
        for number, (_, text) in enumerate(told)
    ]
    found = shown(
        [
            line(2, [user("Why?")], assistant("I ask")),
            tool(3, "search", result),
            *between,
            line(100, [user("Why?"), assistant("I ask"), *answers], assistant("Warm")),
        ]
    )
    own = [(turn.name, turn.text) for turn in found.turns if turn.role == "tool" and not turn.sub_trajectory]
    assert [each for each in own if each != ("click", "")] == told
    said = [(turn.name, each.text) for each, turn in found.said if each.role == "tool"]
    assert [each for each in said if each != ("click", "")] == told


def test_tool_whose_result_no_model_gets_is_said_before_a_judge_is_asked() -> None:
    """The last call of a trajectory is part of what was said, though an evaluator asks a model after it."""
    found = shown(
        [
            line(2, [user("Why?")], assistant("I submit")),
            line(3, {}, None, name="submit", kind="TOOL", error="ValueError: no grader"),
            line(4, {}, 1.0, name="grade", kind="EVALUATOR", end=900),
            line(5, [user("Is it right?")], assistant("yes"), parent=4),
        ]
    )
    assert [(message.role, turn.name, turn.error) for message, turn in found.said] == [
        ("user", "", ""), ("assistant", "", ""), ("tool", "submit", "ValueError: no grader")
    ]  # fmt: skip


def test_error_is_shown_once_at_its_origin() -> None:
    """An error that passes through a tool to the loop is shown at the tool only."""
    error = "ValueError: no"
    turns = shown(
        [
            line(2, {}, None, name="run", kind="CHAIN", error=error, end=900),
            line(3, {"arguments": {"a": 1}}, None, parent=2, name="tool", kind="TOOL", error=error),
            line(4, {}, None, parent=3, name="inner", kind="CHAIN", error=error),
            line(5, {"text": "{"}, None, parent=2, name="parse", kind="CHAIN", error="JSONDecodeError: what"),
        ]
    ).turns
    assert [(turn.role, turn.name, turn.error) for turn in turns] == [
        ("tool", "tool", error), ("failure", "parse", "JSONDecodeError: what")
    ]  # fmt: skip


def test_failed_operation_is_shown_after_the_turns_inside_it() -> None:
    """A model call is ordered by its start, even if it ends last.

    A failed operation by its end.
    """
    turns = shown(
        [
            line(2, {}, None, name="run", kind="CHAIN", error="ValueError: no", end=900),
            line(3, "One?", "Yes.", parent=2, end=800),
            line(4, {"arguments": {}}, "found", parent=2, name="search", kind="TOOL"),
        ]
    ).turns
    assert [turn.name or turn.role for turn in turns] == ["user", "assistant", "search", "run"]


def test_engine_span_inside_client_span_is_one_model_call() -> None:
    """The engine's token ids and counts are used where the client's span has none."""
    counts = {semconv.GEN_AI_USAGE_INPUT_TOKENS: 3, semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 2}
    found = shown(
        [
            line(2, {"messages": [user("Hi")]}, assistant("Hello"), end=900),
            line(3, {"prompt_ids": [1, 2, 3]}, {"token_ids": [4, 5]}, parent=2, attributes=counts),
        ]
    )
    assert messages_of(found.turns) == [("user", "Hi"), ("assistant", "Hello")]
    assert found.turns[-1].token_ids == (4, 5)
    assert (found.turns[-1].tokens.input, found.summary.tokens.output, found.summary.turns) == (3, 2, 1)


def test_reply_ended_as_the_call_inside_says() -> None:
    """An operation that returns text alone does not know why, and counts no tokens."""
    ended = {"choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "length"}]}
    counted = {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 2}
    found = shown(
        [
            line(2, {"messages": [user("Hi")]}, "Hello", end=900),
            line(3, {"messages": [user("Hi")]}, ended, parent=2, attributes=counted),
        ]
    )
    assert (found.turns[-1].finish_reason, found.turns[-1].tokens.output) == ("length", 2)
    assert (found.summary.turns, found.summary.tokens.output) == (1, 2)


def test_turns_of_a_sub_trajectory_name_it() -> None:
    """A sub-trajectory's turns carry its path.

    Its score is its own, and its id shows it alone.
    """
    inside = {**IDENTITY, semconv.ROLLOUT_N: 1}
    scored = {**inside, semconv.GEN_AI_EVALUATION_NAME: "reward", semconv.GEN_AI_EVALUATION_SCORE_VALUE: 1.0}
    lines = [
        line(2, "One?", "Yes."),
        line(3, None, None, name="opponent", kind="AGENT", attributes=inside, end=900),
        line(4, "Two?", "No.", parent=3, attributes=inside),
        line(5, None, None, parent=3, name="score reward", kind="EVALUATOR", attributes=scored),
    ]
    found = shown(lines)
    assert [turn.sub_trajectory for turn in found.turns] == ["", "", "1/7/1", "1/7/1"]
    assert not found.summary.scores
    alone = shown(lines, root_id=3)
    assert alone.summary.path == "1/7/1"
    assert [score.value for score in alone.summary.scores] == [1.0]
    assert messages_of(alone.turns) == [("user", "Two?"), ("assistant", "No.")]


def test_spans_below_an_operation_that_has_not_ended_are_shown() -> None:
    """Its span is not there: the process was killed, or the operation still runs."""
    found = shown([line(3, {"messages": [{"role": "user", "content": "Who?"}]}, "Me.", parent=9)])
    assert messages_of(found.turns) == [("user", "Who?"), ("assistant", "Me.")]


def test_trajectory_without_model_calls_shows_the_roots_input_and_output() -> None:
    """Without a model call the root's input and output are the turns."""
    root = line(ROOT, {"question": "Six?"}, "Seven.", parent=0, name="rollout_trace", kind="AGENT")
    assert messages_of(conversation_of(spans_of(root)).turns) == [
        ("input", '{"question":"Six?"}'),
        ("output", "Seven."),
    ]


def test_result_of_a_trajectory_without_model_calls_is_not_said_by_the_model() -> None:
    """It follows the other turns, unless one of these has it, like the input. Messages keep their roles."""

    def turns(result: Any) -> list[tuple[str, str]]:
        root = line(ROOT, {"query": "wool"}, result, parent=0, name="rollout_trace", kind="AGENT", end=900)
        tool = line(2, {"query": "wool"}, ["wool 0", "wool 1"], name="search", kind="TOOL")
        return messages_of(conversation_of([*spans_of(root), *spans_of(tool)]).turns)

    tool = ("tool", '["wool 0","wool 1"]')
    assert turns(["wool 0", "wool 1"]) == [tool]
    assert turns({"text": "Two."}) == [tool, ("output", "Two.")]
    assert turns(["wool 0"]) == [tool, ("output", '["wool 0"]')]
    assert turns([assistant("Two.")]) == [tool, ("assistant", "Two.")]


def test_page_has_the_traceback_of_the_trajectorys_own_error() -> None:
    """An exception that no operation had is told at the top; one of an operation, at its turn alone."""
    stack = {"key": semconv.EXCEPTION_STACKTRACE, "value": {"stringValue": "File train.py, line 71"}}
    ending = {"error": "ValueError: no role", "events": [{"name": "exception", "attributes": [stack]}]}
    root = line(ROOT, None, None, parent=0, name="rollout_trace", kind="AGENT", end=900, **ending)
    operation = line(2, {}, None, name="render", kind="CHAIN", **ending)
    own = conversation_of(spans_of(root))
    assert own.turns == []
    assert page.of_conversation(own).count("File train.py, line 71") == 1
    passed_on = conversation_of([span for each in (root, operation) for span in spans_of(each)])
    assert [turn.name for turn in passed_on.turns] == ["render"]
    assert page.of_conversation(passed_on).count("File train.py, line 71") == 1


def test_reply_of_a_tool_call_alone_has_no_text_to_count() -> None:
    """Token ids beside an empty text and a call are the call's."""
    reply = {"role": "assistant", "content": "", **CALLS["OpenAI"], "response_ids": [4, 5]}
    turns = shown([line(2, {"messages": [user("Add.")]}, reply)]).turns
    assert messages_of(turns) == [("user", "Add."), ("assistant", "")]
    assert turns[-1].calls == (Call("add", {"a": 1}, "c"),)


def test_token_ids_without_text_are_counted_and_compared() -> None:
    """The first prompt is the input of the span around it.

    Siblings are compared by token id.
    """

    def sibling(last: int) -> Conversation:
        return shown(
            [
                line(2, {"raw_prompt": [user("Hi")]}, None, name="run", kind="CHAIN", end=900),
                line(3, {"prompt_ids": [1, 2, 3]}, {"token_ids": [4, 5]}, parent=2),
                line(4, {"prompt_ids": [1, 2, 3, 4, 5, 6]}, {"token_ids": [7, last]}, parent=2),
            ]
        )

    one = sibling(8)
    assert messages_of(one.turns) == [
        ("user", "Hi"),
        ("assistant", "(2 tokens, whose text was not recorded)"),
        ("context", "(1 tokens, whose text was not recorded)"),
        ("assistant", "(2 tokens, whose text was not recorded)"),
    ]
    divergence = compare(one, sibling(9)).divergence
    assert divergence is not None
    assert (divergence.turn, divergence.token, divergence.token_ids) == (3, 1, (8, 9))
    assert compare(one, sibling(8)).divergence is None


@pytest.mark.parametrize("way", ["tokens", "all", "whole"])
def test_exported_lines_show_the_same_turns_as_recorded_ones(way: str) -> None:
    """Turns exported as a context diff or in full read as they were recorded."""
    start, said = list(range(100, 140)), [{"role": "user", "content": "a"}]
    more = [*said, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    recorded = [
        line(2, {"prompt_ids": start}, {"token_ids": [1]}),
        line(3, {"prompt_ids": start}, {"token_ids": [2]}),
        line(4, {"prompt_ids": [*start, 1, 5]}, {"token_ids": [3]}),
        line(5, {"messages": said, "prompt_ids": start}, {"text": "b", "token_ids": [1]}),
        line(6, {"messages": more, "prompt_ids": [*start, 1, 6]}, {"text": "d", "token_ids": [4]}),
        line(7, {"prompt_ids": [*start, 1, 6, 4, 8]}, {"token_ids": [9]}),
    ]
    rewriter = LineRewriter(Path(), way)
    exported = [rewriter.rewrite(raw).encoded for raw in recorded]
    assert (exported == recorded) == (way == "whole")
    assert shown(exported).turns == shown(recorded).turns


@pytest.mark.parametrize("way", ["tokens", "all", "whole"])
def test_recorded_message_with_several_results_counts_once_in_a_reference(way: str) -> None:
    """A turn refers to recorded messages, of which Anthropic's with two results is two messages and more."""
    uses = [{"type": "tool_use", "id": id_, "name": "search", "input": {}} for id_ in "ab"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": f"found {id_}"} for id_ in "ab"]
    first = [user("Hi")]
    second = [*first, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    third = [*second, assistant("Both."), user("Go on.")]
    asked = (first, {"content": uses, "role": "assistant"}), (second, assistant("Both.")), (third, "Done.")
    recorded = [line(number, {"messages": said}, reply) for number, (said, reply) in enumerate(asked, 2)]
    rewriter = LineRewriter(Path(), way)
    found = shown([rewriter.rewrite(raw).encoded for raw in recorded])
    expected = ["Hi", "", "found a", "found b", "Both.", "Go on.", "Done."]
    assert [message["content"] for message in chat_of(found)] == expected
    assert [(turn.text, turn.note) for turn in found.turns] == [(text, "") for text in expected]


def test_spans_that_are_parents_of_one_another_are_shown() -> None:
    """Damaged lines may name each other as parent."""
    found = shown([line(2, "One?", "Yes.", parent=3), line(3, "Two?", "No.", parent=2)])
    assert found.summary.path == "1/7/0"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (0.00001234, "0.01 ms"),
        (0.0123, "12 ms"),
        (1.5, "1.50 s"),
        (61.2, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_duration_is_said_in_the_unit_that_fits(seconds: float | None, said: str) -> None:
    """An unknown duration is no text."""
    assert formatting.duration(seconds) == said


def test_long_and_deep_arguments_are_cut_for_a_screen() -> None:
    """Texts, lists and mappings have a bounded length and depth, and a mark where something is missing."""
    deep: Any = "end"
    for _ in range(2_000):
        deep = [deep]
    given = {"text": "x" * 9, "list": list(range(60)), "mapping": dict.fromkeys(range(60)), "deep": deep}
    (turn, *_) = shown([line(2, "One?", "Yes.")]).turns
    kept = excerpt.shortened(replace(turn, text="a long text", arguments=given), 5)
    assert kept.text == "a lon…"
    assert kept.arguments == {
        "text": "xxxxx…",
        "list": [*range(50), "…"],
        "mapping": {**dict.fromkeys(range(50)), "…": "10 more"},
        "deep": [[[[["…"]]]]],
    }


def test_place_of_an_error_is_that_of_the_innermost_frame() -> None:
    """A person need not open the page to find the line; without a stack trace nothing is said."""
    frames = ('File "/a b/run.py", line 3, in go', "  f()", 'File "tool.py", line 70, in f', "  x")
    stack = "\n".join(["Traceback", *(f"  {each}" for each in frames), "KeyError: 1"])
    assert formatting.raised_at(stack) == "tool.py:70, in f (traceback: --html)"
    assert formatting.raised_at("") == ""


def test_comparison_with_a_reply_without_text_says_so() -> None:
    """Its side has no word to show."""
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = compare(*(shown([line(2, "How?", reply)]) for reply in ("So it is", asked)))
    assert formatting.divergence(found) == (
        "They part at turn 2 (assistant): one begins with “So”, the other has no text."
    )
