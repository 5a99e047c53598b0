"""Replies, contexts and siblings: what counts as empty, cut, edited or copied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.turns import context_diff
from tests.analysis.health.answers import answer, call, span, trajectories

_CALLS = '{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}}]}'
_EMPTY = '{"choices":[{"message":{"role":"assistant","content":""}}]}'


def each_with(**columns: Any) -> list[dict[str, Any]]:
    """Return eight trajectories with one model call each."""
    return [*trajectories(8), *(call(index, 1, **columns) for index in range(8))]


@pytest.mark.parametrize(
    ("columns", "status"),
    [
        ({"output": _EMPTY, "tokens_out": 1}, "unhealthy"),
        ({"output": _EMPTY}, "unhealthy"),
        ({"output": _CALLS, "tokens_out": 20}, "healthy"),
        ({"output": '{"token_ids":[1,2,3]}', "tokens_out": 3}, "healthy"),
        ({"output": "[1,2,3]"}, "healthy"),
        ({"output": "[1,2,3]", "tokens_out": 3}, "healthy"),
        ({"output": "[2]", "tokens_out": 1}, "unhealthy"),
        ({"output": '{"token_ids":[2]}', "tokens_out": 1}, "unhealthy"),
        ({"reply": "7", "output": '"7"', "tokens_out": 1}, "healthy"),
        ({"reply": "</s>\n", "output": '{"text":"</s>"}'}, "unhealthy"),
        ({"tokens_out": 12}, "unobserved"),
        ({"tokens_out": 0}, "unhealthy"),
        ({"output": _EMPTY, "status": "error"}, "unobserved"),
    ],
)
def test_empty_reply_says_nothing_and_calls_nothing(
    tmp_path: Path, columns: dict[str, Any], status: str
) -> None:
    """A tool call, token ids without text, and a short answer are no empty replies."""
    assert answer(tmp_path, "replies_empty", each_with(**columns)).status == status


@pytest.mark.parametrize(
    ("columns", "status"),
    [
        ({"finish_reason": "length"}, "unhealthy"),
        ({"finish_reason": "MAX_TOKENS"}, "unhealthy"),
        ({"finish_reason": "length", "status": "error"}, "unhealthy"),  # as in report
        ({"finish_reason": "stop"}, "healthy"),
        ({"finish_reason": "completed"}, "unobserved"),
        (
            {
                "finish_reason": "completed",
                "tokens_out": 64,
                "attributes": '{"gen_ai.request.max_tokens":64}',
            },
            "unhealthy",
        ),
        ({"tokens_out": 63, "attributes": '{"gen_ai.request.max_tokens":64}'}, "healthy"),
        ({}, "unobserved"),
    ],
)
def test_reply_is_cut_by_its_reason_or_its_length(
    tmp_path: Path, columns: dict[str, Any], status: str
) -> None:
    """verl's engines say `completed` in both cases, so the number of tokens decides."""
    assert answer(tmp_path, "replies_truncated", each_with(**columns)).status == status


@pytest.mark.parametrize("turn", range(3))
def test_of_errors_that_are_equally_frequent_the_first_by_name_is_named(tmp_path: Path, turn: int) -> None:
    """The order of the rows decides nothing: a compaction changes it."""
    errors = ["ValueError", "KeyError", "TimeoutError", *[None] * 5]
    calls = [
        call(index, 1, kind="TOOL", tool_name="search", status="error" if error else "ok", error_type=error)
        for index, error in enumerate(errors)
    ]
    found = answer(tmp_path, "tool_error_burst", [*trajectories(8), *calls[turn:], *calls[:turn]])
    assert "The most frequent error is KeyError of `search`" in found.message


@pytest.mark.parametrize(
    ("check", "columns"),
    [
        ("replies_truncated", {"finish_reason": "length"}),
        ("replies_empty", {"output": _EMPTY}),
        ("replies_repetitive", {"reply": "again and again, " * 200, "output": "{}"}),
        ("special_tokens_in_text", {"reply": "<|im_start|>x", "output": "{}"}),
        (
            "tool_error_burst",
            {"kind": "TOOL", "tool_name": "search", "status": "error", "error_type": "OSError"},
        ),
    ],
)
def test_calls_are_of_the_trajectory_of_their_root(
    tmp_path: Path, check: str, columns: dict[str, Any]
) -> None:
    """A trajectory inside one of validation does not repeat that; its step may be another one, too."""
    good = call(0, 1, reply="7", output='"7"', finish_reason="stop", tokens_out=1)
    inside = [call(index, 2, **columns) | {"step": 9} for index in range(8)]
    tool = call(0, 1, turn=1, kind="TOOL", tool_name="search")
    validation = answer(tmp_path / "v", check, [*trajectories(8, 2, validate=True), *inside])
    assert (validation.status, validation.steps) == ("unhealthy", (2,))
    rows = [*trajectories(8), good, tool, *trajectories(8, 2, validate=True), *inside]
    assert answer(tmp_path / "t", check, rows).status == "healthy"


def test_special_token_in_a_first_message_is_found(tmp_path: Path) -> None:
    """A template that was applied twice puts them there; marks of calls, and of a turn's end, are none."""
    leaked = each_with(reply="4", messages_user=1, input='{"messages":["<|im_start|>user"]}')
    usual = each_with(reply="<tool_call>{}</tool_call><|python_tag|> <s>", messages_user=1, input="{}")
    ended = each_with(reply="The answer is 4.<|end|>\n</s></s>")
    assert answer(tmp_path / "a", "special_tokens_in_text", leaked).status == "unhealthy"
    assert answer(tmp_path / "b", "special_tokens_in_text", usual).status == "healthy"
    assert answer(tmp_path / "c", "special_tokens_in_text", ended).status == "healthy"


def two_turns(**second: Any) -> Iterator[dict[str, Any]]:
    """Yield eight trajectories whose second call continues the first, both with token ids."""
    yield from trajectories(8)
    ids = {"output": '{"token_ids":[1,2,3]}'}
    for index in range(8):
        yield call(index, 1, 0, tokens_in=40, tokens_out=10, **ids)
        yield call(index, 1, 1, **{"continues": span(index, 1, 0), **ids, **second})


@pytest.mark.parametrize(
    ("kind", "edited", "retokenized"),
    [
        (None, "healthy", "healthy"),
        ("retokenized", "healthy", "unhealthy"),
        ("cut", "unhealthy", "healthy"),
        ("beginning", "unhealthy", "healthy"),
        ("edited", "unhealthy", "healthy"),
    ],
)
def test_retokenized_answer_is_told_from_an_edited_context(
    tmp_path: Path, kind: str | None, edited: str, retokenized: str
) -> None:
    """The forwarder says how a prompt breaks the prefix; the turn before a cut may not be referred to."""
    broken = {"break_kind": kind, "break_token": 44, **({"continues": None} if kind == "beginning" else {})}
    rows = list(two_turns(**(broken if kind else {})))
    assert answer(tmp_path / "a", "context_edited", rows).status == edited
    found = answer(tmp_path / "b", "answers_retokenized", rows)
    assert found.status == retokenized
    assert ("--broken-prefix" in found.message) == (kind == "retokenized")


def test_retokenized_answer_of_a_conversation_is_found(tmp_path: Path) -> None:
    """A call may have messages, whose prefix is whole, besides its token ids."""
    counts = {"messages_system": 0, "messages_user": 1, "messages_assistant": 0, "messages_tool": 0}
    second = {**counts, "messages_assistant": 1, "messages_user": 2, "shared": 1, "turn_length": 3}
    rows = list(two_turns(**second, break_kind="retokenized", break_token=44))
    rows = [
        {**each, **counts} if each["kind"] == "LLM" and "continues" not in each else each for each in rows
    ]
    assert answer(tmp_path / "a", "context_edited", rows).status == "healthy"
    assert answer(tmp_path / "b", "answers_retokenized", rows).status == "unhealthy"


def test_conversations_without_token_ids_leave_retokenization_unobserved(tmp_path: Path) -> None:
    """Nobody knows the tokens of their prompts."""
    assert answer(tmp_path, "answers_retokenized", two_turns(output="x")).status == "unobserved"


def test_only_trajectories_with_token_ids_count_for_retokenization(tmp_path: Path) -> None:
    """Of the others nobody knows the tokens."""
    rows = [
        each | ({"output": "x"} if each["kind"] == "LLM" and each["sample_index"] == "1" else {})
        for each in two_turns()
    ]
    assert answer(tmp_path, "answers_retokenized", rows).message.startswith("In all 4 trajectories")


def two_conversations(shared: int, length: int) -> Iterator[dict[str, Any]]:
    """Yield eight trajectories whose second call continues the first, of five messages."""
    yield from trajectories(8)
    counts = {"messages_system": 1, "messages_user": 2, "messages_assistant": 2, "messages_tool": 0}
    for index in range(8):
        yield call(index, 1, 0, **counts)
        more = {"continues": span(index, 1, 0), "shared": shared, "turn_length": length}
        yield call(index, 1, 1, **counts, **more)


@pytest.mark.parametrize(
    ("shared", "length", "status"),
    [
        (5, 7, "healthy"),
        (4, 7, "unhealthy"),  # the last message has changed
        (1, 7, "healthy"),  # another conversation with the same system prompt
        (4, 4, "healthy"),  # the beginning of the context again
    ],
)
def test_messages_that_are_no_prefix_of_the_next_context_are_an_edit(
    tmp_path: Path, shared: int, length: int, status: str
) -> None:
    """Going back to an earlier context is none."""
    assert answer(tmp_path, "context_edited", two_conversations(shared, length)).status == status


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


ASKED = [system("It is ten."), user("Why?")]
SECOND = [*ASKED, assistant("<think>Let me see.</think> First."), user("And?")]
THIRD = [*SECOND, assistant("Second."), user("So?")]
FOURTH = [*THIRD, assistant("Third."), user("Then?")]


def recorded(*contexts: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield eight trajectories with a model call for each context; each call has the next reply."""
    yield from trajectories(8)
    replies = ("<think>Let me see.</think> First.", "Second.", "Third.", "Fourth.")
    for index in range(8):
        known = context_diff.Turns(context_diff.MESSAGE_BYTES)
        for turn, (context, reply) in enumerate(zip(contexts, replies, strict=False)):
            id_, items = span(index, 1, turn), context_diff.messages(context)
            shared = known.shared(id_, items, turn)
            known.add(id_, items, turn)
            named = (
                {"continues": shared.turn, "shared": shared.length, "turn_length": len(context)}
                if shared
                else {}
            )
            roles = [message["role"] for message in context]
            counts = {
                f"messages_{role}": roles.count(role) for role in ("system", "user", "assistant", "tool")
            }
            asked = json.dumps({"messages": context}, separators=(",", ":"), ensure_ascii=False)
            yield call(index, 1, turn, input=asked, reply=reply, output=json.dumps(reply), **named, **counts)


EDITS = {
    "an answer in the middle": [ASKED, SECOND, THIRD, [*SECOND, assistant("Changed."), *FOURTH[5:]]],
    "an old turn is left out": [ASKED, SECOND, THIRD, [*ASKED, *FOURTH[4:]]],
    "the first question": [ASKED, SECOND, [ASKED[0], user("How?"), *THIRD[2:]]],
    "the system's prompt": [ASKED, SECOND, [system("It is eleven."), *THIRD[1:]]],
    "the system's prompt each time": [ASKED, [system("It is eleven."), *SECOND[1:]]],
    "reasoning is left out": [ASKED, [*ASKED, assistant("First."), user("And?")]],
}
CONTINUATIONS = {
    "a conversation": [ASKED, SECOND, THIRD, FOURTH],
    "a step back": [ASKED, SECOND, THIRD, [*SECOND, assistant("Other."), user("So?")]],
    "other samples of a turn": [ASKED, SECOND, SECOND, THIRD],
    "a subagent with the same instructions": [ASKED, SECOND, [ASKED[0], user("Help")], THIRD],
    "a subagent that is shown an example": [
        ASKED, SECOND, [system("Help"), user("One?"), assistant("1."), user("Second.")], THIRD
    ],
    "a summary that replaces all": [ASKED, SECOND, [ASKED[0], user("In short: First. Second.")]],
}  # fmt: skip


@pytest.mark.parametrize("contexts", EDITS.values(), ids=EDITS)
def test_context_is_edited_if_it_has_an_answer_and_not_what_was_asked(
    tmp_path: Path, contexts: list[list[dict[str, str]]]
) -> None:
    """Wherever messages were changed or left out, the last context is not what the answers were given to."""
    assert answer(tmp_path, "context_edited", recorded(*contexts)).status == "unhealthy"


@pytest.mark.parametrize("contexts", CONTINUATIONS.values(), ids=CONTINUATIONS)
def test_step_back_or_another_conversation_is_no_edit(
    tmp_path: Path, contexts: list[list[dict[str, str]]]
) -> None:
    """Each call has all that was asked before the answers that it has."""
    assert answer(tmp_path, "context_edited", recorded(*contexts)).status == "healthy"


@pytest.mark.parametrize(("writers", "status"), [("111", "unhealthy"), ("121", "unobserved")])
@pytest.mark.parametrize("name", ["context_edited", "answers_retokenized"])
def test_turn_of_another_process_that_came_too_late_leaves_both_unobserved(
    tmp_path: Path, name: str, writers: str, status: str
) -> None:
    """The third call was compared with the first: nobody knows what it has of the second."""
    rows = list(recorded(ASKED, SECOND, THIRD))
    calls = [each for each in rows if each["kind"] == "LLM"]
    for place, each in enumerate(calls):
        turn = place % 3
        each["resource"] = f'{{"rollout.segment.id":"{writers[turn]}-a.000001"}}'
        each["output"] = '{"token_ids":[1,2,3]}'
        if turn == 2:
            each |= {"continues": calls[place - 2]["span_id"], "shared": len(ASKED)}
            each |= {"break_kind": "retokenized", "break_token": 4} if writers == "111" else {}
    assert answer(tmp_path, name, rows).status == status


def test_turns_without_a_reference_are_unobserved(tmp_path: Path) -> None:
    """Nobody knows whether one continues another."""
    rows = [*trajectories(8), *(call(index, 1, turn, reply="x") for index in range(8) for turn in (0, 1))]
    assert answer(tmp_path, "context_edited", rows).status == "unobserved"


@pytest.mark.parametrize(
    ("reply", "status"), [("#### 42", "unobserved"), ("I add the two numbers. " * 12, "unhealthy")]
)
def test_only_long_replies_can_be_copies(tmp_path: Path, reply: str, status: str) -> None:
    """Siblings give the same short answer because it is right."""
    assert answer(tmp_path, "siblings_identical", each_with(reply=reply)).status == status


@pytest.mark.parametrize(("output", "status"), [(None, "unobserved"), ('{"token_ids":[1,2,3]}', "unhealthy")])
def test_replies_that_nobody_recorded_are_no_copies(tmp_path: Path, output: str | None, status: str) -> None:
    """Instrumentors count tokens without recording content; equal counts prove nothing."""
    rows = each_with(output=output, tokens_out=64)
    assert answer(tmp_path, "siblings_identical", rows).status == status


OTHERS = {
    "a judge": {"name": "judge", "attributes": '{"rollout.in_evaluator":true}'},
    "a sub-trajectory": {"rollout_n": 100},
}
"""What marks a model call that is not the trajectory's own."""


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_copies_are_found_by_the_trajectorys_own_replies(tmp_path: Path, other: dict[str, Any]) -> None:
    """What a judge or a sub-trajectory says makes no copy, and hides none."""

    def said(own: str, others: str) -> list[dict[str, Any]]:
        calls = [call(index, 1, 1, reply=others.format(index), **other) for index in range(8)]
        return [*each_with(reply=own), *calls]

    copies, judged = said("I add the two numbers. " * 12, "It is worth {}."), said("42", "It is right. " * 20)
    assert answer(tmp_path / "a", "siblings_identical", copies).status == "unhealthy"
    assert answer(tmp_path / "b", "siblings_identical", judged).status == "unobserved"


def test_trajectories_of_different_groups_are_no_copies(tmp_path: Path) -> None:
    """Siblings are compared."""
    rows = [*trajectories(8), *(call(index, 1, reply=f"{index % 4}" * 300) for index in range(8))]
    assert answer(tmp_path, "siblings_identical", rows).status == "healthy"
