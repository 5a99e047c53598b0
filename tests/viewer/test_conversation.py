"""What is told of spans: shapes of messages, contexts that do not simply go on, failures, parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from otel_rollout.base import semconv
from otel_rollout.forwarder.line_rewriter import LineRewriter
from otel_rollout.otlp.reader import spans_of
from otel_rollout.viewer.comparison import compare
from otel_rollout.viewer.conversation import Conversation, Turn, conversation
from otel_rollout.viewer.messages import Call

ROOT = 1
IDENTITY = {semconv.STEP: 1, semconv.SAMPLE_INDEX: 7, semconv.ROLLOUT_N: 0, semconv.VALIDATE: False}


def line(
    number: int,
    given: Any,
    result: Any,
    *,
    parent: int = ROOT,
    name: str = "generate",
    kind: str = "LLM",
    **more: Any,
) -> bytes:
    """A line with span ``number``, which begins at ten times that; ``error`` is how it ended."""
    attributes = {
        **IDENTITY,
        semconv.SPAN_KIND: kind,
        semconv.INPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
        semconv.INPUT_VALUE: orjson.dumps(given).decode(),
        semconv.OUTPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
        semconv.OUTPUT_VALUE: orjson.dumps(result).decode(),
        **more.get("attributes", {}),
    }
    span = {
        "traceId": f"{1:032x}",
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "startTimeUnixNano": str(10 * number),
        "endTimeUnixNano": str(more.get("end", 10 * number + 5)),
        "attributes": [{"key": key, "value": held(value)} for key, value in attributes.items()],
        "status": {"code": 2, "message": more["error"]} if "error" in more else {},
    }
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})


def held(value: bool | int | float | str) -> dict[str, Any]:
    """An attribute's value as OTLP/JSON has it."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return {kinds[type(value)]: str(value) if type(value) is int else value}


def told(lines: Sequence[bytes], root_id: int | None = None) -> Conversation:
    root = line(ROOT, None, None, parent=0, name="rollout_trace", kind="AGENT", end=10**6)
    spans = [span for each in (*reversed(lines), root) for span in spans_of(each)]  # in any order
    return conversation(spans, root_id)


def said(turns: Sequence[Turn]) -> list[tuple[str, str]]:
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
    "token2text": {"token_ids": [1, 2], "response_text": "Hello<|im_end|>"},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_in_every_usual_shape(answer: Any) -> None:
    """What a model said is text, whichever library's object was returned."""
    for given in (
        {"messages": [user("Hi")]},
        [user("Hi")],
        {"prompt": "Hi"},
        "Hi",
        {"kwargs": {"raw_prompt": [user("Hi")]}},
    ):
        assert said(told([line(2, given, answer)]).turns) == [("user", "Hi"), ("assistant", "Hello")]


CALLS = {
    "OpenAI": {"tool_calls": [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
    "Anthropic": {"content": [{"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}]},
    "OpenTelemetry": {"parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 1}}]},
    "responses": {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
}


@pytest.mark.parametrize("answer", CALLS.values(), ids=CALLS)
def test_calls_of_tools_are_read_in_every_usual_shape(answer: Any) -> None:
    """Their name, their arguments as values, their id."""
    (turn,) = told([line(2, {}, [{"role": "assistant", **answer}])]).turns
    assert turn.calls == (Call("add", {"a": 1}, "c"),)


def test_what_was_said_before_is_not_said_again() -> None:
    """Three turns that resend everything; the reply comes back without its call's markup, which it had."""
    first = [{"role": "system", "content": "Be brief."}, user("One?")]
    reply = assistant("Let me see. <tool_call>{}</tool_call>")
    resent = {**assistant("Let me see."), "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    second = [*first, resent, {"role": "tool", "content": "1"}, user("And two?")]
    turns = told(
        [
            line(2, {"messages": first}, reply),
            line(3, {"name": "look", "arguments": {}}, "1", name="execute_tool look", kind="TOOL"),
            line(4, {"messages": second}, assistant("Two.")),
            line(5, {"messages": [*second, assistant("Two."), user("Thanks")]}, assistant("Bye.")),
        ]
    ).turns
    assert [text for _, text in said(turns)] == [
        "Be brief.", "One?", "Let me see. <tool_call>{}</tool_call>", "1", "And two?", "Two.", "Thanks",
        "Bye.",
    ]  # fmt: skip
    assert turns[2].calls == (Call("look", {}),)
    assert (turns[3].name, turns[3].arguments) == ("look", {})
    assert not any(turn.note for turn in turns)


def test_a_context_that_was_edited_or_is_another_says_so() -> None:
    """What is shown then goes on from where they part; another conversation is one of its own."""
    first = [user("One?"), assistant("Yes."), user("Two?")]
    turns = told(
        [
            line(2, {"messages": first}, assistant("No.")),
            line(3, {"messages": [user("One?"), user("In short: yes.")]}, assistant("Fine.")),
            line(4, {"messages": [user("Judge this.")]}, assistant("Bad.")),
            line(5, {"messages": [user("Judge this.")]}, assistant("Good.")),
        ]
    ).turns
    assert said(turns)[4:] == [
        ("user", "In short: yes."), ("assistant", "Fine."), ("user", "Judge this."), ("assistant", "Bad."),
        ("assistant", "Good."),
    ]  # fmt: skip
    assert [turn.note for turn in turns if turn.note] == [
        "goes on from message 1 of a context of 3",
        "a context of its own",
    ]
    assert turns[-1].tokens.output is None


def test_tools_at_the_same_time_get_their_own_answers() -> None:
    """By the ids of their calls, in whatever order the answers are given to the model."""
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
    turns = told([line(2, "Go", "Yes"), *tools, line(5, [user("Go"), *answers], "Done")]).turns
    assert [(turn.name, turn.text) for turn in turns if turn.role == "tool"] == [
        ("a", "answer a"),
        ("b", "answer b"),
    ]


def test_a_failure_is_told_once_where_it_happened() -> None:
    """Not again by what it went through, a tool's own function inside the tool's span, or the loop around."""
    error = "ValueError: no"
    turns = told(
        [
            line(2, {}, None, name="run", kind="CHAIN", error=error, end=900),
            line(3, {"arguments": {"a": 1}}, None, parent=2, name="tool", kind="TOOL", error=error),
            line(4, {}, None, parent=3, name="inner", kind="CHAIN", error=error),
            line(5, {"text": "{"}, None, parent=2, name="parse", kind="CHAIN", error="JSONDecodeError: what"),
        ]
    ).turns
    assert [(turn.role, turn.name, turn.problem) for turn in turns] == [
        ("tool", "tool", error), ("failure", "parse", "JSONDecodeError: what")
    ]  # fmt: skip


def test_the_engine_below_a_client_is_the_same_call() -> None:
    """Its token ids and counts are the client's where that has none."""
    counts = {semconv.GEN_AI_USAGE_INPUT_TOKENS: 3, semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 2}
    found = told(
        [
            line(2, {"messages": [user("Hi")]}, assistant("Hello"), end=900),
            line(3, {"prompt_ids": [1, 2, 3]}, {"token_ids": [4, 5]}, parent=2, attributes=counts),
        ]
    )
    assert said(found.turns) == [("user", "Hi"), ("assistant", "Hello")]
    assert found.turns[-1].ids == (4, 5)
    assert (found.turns[-1].tokens.input, found.summary.tokens.output, found.model_calls) == (3, 2, 1)


def test_a_trajectory_inside_another_is_told_apart() -> None:
    """Its turns say where they belong, its score is its own; by its id it is shown alone."""
    inside = {**IDENTITY, semconv.ROLLOUT_N: 1}
    scored = {**inside, semconv.GEN_AI_EVALUATION_NAME: "reward", semconv.GEN_AI_EVALUATION_SCORE_VALUE: 1.0}
    lines = [
        line(2, "One?", "Yes."),
        line(3, None, None, name="opponent", kind="AGENT", attributes=inside, end=900),
        line(4, "Two?", "No.", parent=3, attributes=inside),
        line(5, None, None, parent=3, name="score reward", kind="EVALUATOR", attributes=scored),
    ]
    found = told(lines)
    assert [turn.inside for turn in found.turns] == ["", "", "1/7/1", "1/7/1"]
    assert not found.summary.scores
    alone = told(lines, root_id=3)
    assert alone.summary.path == "1/7/1"
    assert [score.value for score in alone.summary.scores] == [1.0]
    assert said(alone.turns) == [("user", "Two?"), ("assistant", "No.")]


def test_a_trajectory_without_model_calls_is_what_was_asked_and_answered() -> None:
    """As its root shows it."""
    root = line(ROOT, {"question": "Six?"}, "Seven.", parent=0, name="rollout_trace", kind="AGENT")
    assert said(conversation(spans_of(root)).turns) == [
        ("input", '{"question":"Six?"}'),
        ("assistant", "Seven."),
    ]


def test_token_ids_without_text_are_counted_and_compared() -> None:
    """The prompt is what the trajectory was asked; siblings part at a token all the same."""

    def sibling(last: int) -> Conversation:
        return told(
            [
                line(2, {"raw_prompt": [user("Hi")]}, None, name="run", kind="CHAIN", end=900),
                line(3, {"prompt_ids": [1, 2, 3]}, {"token_ids": [4, 5]}, parent=2),
                line(4, {"prompt_ids": [1, 2, 3, 4, 5, 6]}, {"token_ids": [7, last]}, parent=2),
            ]
        )

    one = sibling(8)
    assert said(one.turns) == [
        ("user", "Hi"),
        ("assistant", "(2 tokens, whose text was not recorded)"),
        ("context", "(1 tokens, whose text was not recorded)"),
        ("assistant", "(2 tokens, whose text was not recorded)"),
    ]
    divergence = compare(one, sibling(9)).divergence
    assert divergence is not None
    assert (divergence.turn, divergence.token, divergence.ids) == (3, 1, (8, 9))
    assert compare(one, sibling(8)).divergence is None


@pytest.mark.parametrize("way", ["tokens", "all", "whole"])
def test_what_exporters_get_reads_as_what_was_recorded(way: str) -> None:
    """Told by reference or in full: the same prompt once more, one that goes on, messages beside ids."""
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
    exported = [rewriter.rewritten(raw) for raw in recorded]
    assert (exported == recorded) == (way == "whole")
    assert told(exported).turns == told(recorded).turns


def test_a_loop_of_parents_ends() -> None:
    """Damaged lines may name each other as parent."""
    found = told([line(2, "One?", "Yes.", parent=3), line(3, "Two?", "No.", parent=2)])
    assert found.summary.path == "1/7/0"
