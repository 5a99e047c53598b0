"""Chat messages and preference pairs, from the demo's trajectories and from token ids."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout.rollout_table import RolloutTable, messages_of
from otel_rollout.table.errors import TableError
from tests.table.tables import root, row, score, written


@pytest.fixture
def table(demo_table: Path) -> RolloutTable:
    return otel_rollout.open_table(str(demo_table))


def test_messages_are_the_whole_conversation(table: RolloutTable) -> None:
    """With tool calls and results in OpenAI's form, as the model saw them."""
    (example,) = table.messages(table.trajectories.filter(path="1/29/1"))
    assert (example["path"], example["reward"]) == ("1/29/1", 0.0)
    system, user, asked, result, answer = example["messages"]
    assert system["content"].startswith("You solve word problems")
    assert user["content"].startswith("A band plays 8 concerts")
    (call,) = asked["tool_calls"]
    assert json.loads(call["function"].pop("arguments")) == {"expression": "8 / 0"}
    assert call["function"] == {"name": "calculator"}
    assert result == {
        "role": "tool",
        "content": "Error: division by zero in '8 / 0'",
        "tool_call_id": call["id"],
    }
    assert answer == {
        "role": "assistant",
        "content": "I am not sure how to go on from here, so I stop.",
    }
    assert table.trajectory(1, 29, 1).chat[:2] == [system, user]


def test_every_trajectory_has_messages_in_the_asked_order(table: RolloutTable) -> None:
    """Each ends with a reply, and has as many replies as the trajectory has turns."""
    chosen = table.trajectories.sort("-reward", "path")
    turns = {each["path"]: each["turns"] for each in chosen}
    examples = list(table.messages(chosen))
    assert [each["path"] for each in examples] == list(turns)
    for example in examples:
        roles = [message["role"] for message in example["messages"]]
        assert roles[:2] == ["system", "user"]
        assert roles[-1] == "assistant"
        assert roles.count("assistant") == turns[example["path"]]


def test_wrong_arguments_are_one_clear_line(table: RolloutTable) -> None:
    """It has the argument, the value and what is expected, before anything is read."""
    with pytest.raises(TableError, match=r"^min_spread is 'a'; expected a number, such as 0\.5\.$"):
        table.preference_pairs(min_spread="a")  # type: ignore[arg-type]
    methods: tuple[Any, ...] = (table.messages, table.preference_pairs)
    for method in methods:
        with pytest.raises(TableError, match=r"^trajectories is 7; expected rows, as table\.traj"):
            method(7)


def test_rows_of_a_trajectory_become_its_messages(table: RolloutTable) -> None:
    """In any order, and with a row twice."""
    rows = table.trajectory(1, 29, 1).spans.dicts()
    assert messages_of([*reversed(rows), rows[0]]) == table.trajectory(1, 29, 1).chat


def test_pairs_are_the_best_and_the_worst_of_each_group(table: RolloutTable) -> None:
    """Groups whose rewards are equal have none; the prompt is what both begin with."""
    pairs = list(table.preference_pairs())
    spread = {each["path"]: each for each in table.groups.filter(validate=False).where("reward_spread > 0")}
    assert {pair["path"] for pair in pairs} == set(spread)
    for pair in pairs:
        group = spread[pair["path"]]
        assert (pair["chosen_reward"], pair["rejected_reward"]) == (group["reward_max"], group["reward_min"])
        assert [message["role"] for message in pair["prompt"]] == ["system", "user"]
        assert pair["chosen"][0]["role"] == pair["rejected"][0]["role"] == "assistant"
        assert pair["chosen"] != pair["rejected"]
    few = table.trajectories.filter(path=["1/29/1", "1/29/3", "1/7/0"]).sort("-reward").limit(3)
    (pair,) = table.preference_pairs(few)
    assert (pair["chosen_path"], pair["rejected_path"]) == ("1/29/3", "1/29/1")
    least = max(float(group["reward_spread"]) for group in spread.values())
    widest = {path for path, group in spread.items() if group["reward_spread"] == least}
    assert {pair["path"] for pair in table.preference_pairs(min_spread=least)} == widest
    wide = list(table.preference_pairs(min_spread=0.95))
    assert {pair["path"] for pair in wide} == {p for p, g in spread.items() if g["reward_spread"] > 0.95}


def call(trace: str, span: str, request: Any, reply: str, **columns: Any) -> dict[str, Any]:
    """Return the row of a model call."""
    output = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
    said = {"input": json.dumps(request), "output": json.dumps(output)}
    return row(trace, span, "a" + trace, **{"kind": "LLM", **said, **columns})


def test_longest_model_call_has_the_messages(tmp_path: Path) -> None:
    """A short call beside the conversation, such as a judge's, is not part of it."""
    question = {"role": "user", "content": "6 * 7?"}
    rows = [
        root("1"),
        call("1", "b", {"messages": [question]}, "I think."),
        call(
            "1",
            "c",
            {"messages": [question, {"role": "assistant", "content": "I think."}, question]},
            "42",
        ),
        call("1", "d", {"messages": [{"role": "user", "content": "Is 42 right?"}]}, "Yes"),
    ]
    written(tmp_path / "table", rows)
    (example,) = otel_rollout.open_table(str(tmp_path / "table")).messages()
    assert [message["content"] for message in example["messages"]] == ["6 * 7?", "I think.", "6 * 7?", "42"]


def test_siblings_of_a_pair_are_of_one_step_and_have_rewards_that_count(tmp_path: Path) -> None:
    """Steps whose names are texts are several steps; a huge reward is left out, as in every mean."""
    rewards = {"warm-up": [0.25, 0.75, 1e300], "tune": [0.5]}
    rows = []
    for number, (step, n) in enumerate(
        (step, n) for step, given in rewards.items() for n in range(len(given))
    ):
        of_step = {"step": None, "step_text": step, "rollout_n": n}
        request = {"messages": [{"role": "user", "content": "6 * 7?"}]}
        rows += [
            root(str(number), **of_step),
            call(str(number), f"b{number}", request, f"{number}", **of_step),
            score(str(number), f"c{number}", rewards[step][n], **of_step),
        ]
    written(tmp_path / "table", rows)
    (pair,) = otel_rollout.open_table(str(tmp_path / "table")).preference_pairs()
    assert (pair["path"], pair["chosen_reward"], pair["rejected_reward"]) == ("warm-up/7", 0.75, 0.25)


def test_trajectory_without_known_messages_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Token ids whose text nobody recorded make no example; one line counts them."""
    rows = [
        root("1"),
        call("1", "b", {"prompt_ids": [1, 2, 3]}, "a"),
        score("1", "c", 1.0),
        root("2", rollout_n=1),
        score("2", "d", 0.0),
    ]
    written(tmp_path / "table", rows)
    table = otel_rollout.open_table(str(tmp_path / "table"))
    with caplog.at_level(logging.WARNING):
        assert list(table.messages()) == []
    assert list(table.preference_pairs()) == []
    assert "left out: 2 trajectories, because messages of the model calls are unknown" in caplog.text


def test_no_chosen_trajectories_give_no_data(table: RolloutTable) -> None:
    """A filter that nothing meets is not the same as no filter."""
    none = table.trajectories.filter(reward=99)
    assert list(table.messages(none)) == []
    assert list(table.preference_pairs(none)) == []


def chats(path: Path, *rows: dict[str, Any]) -> list[list[str]]:
    """Return the contents of the messages of each trajectory in a table of these rows."""
    written(path / "table", rows)
    examples = otel_rollout.open_table(str(path / "table")).messages()
    return [[message["content"] for message in example["messages"]] for example in examples]


QUESTION = {"role": "user", "content": "6 * 7?"}
RESENT = [QUESTION, {"role": "assistant", "content": "I think."}, QUESTION]


def test_model_call_that_failed_is_no_reply(tmp_path: Path) -> None:
    """The longest call that succeeded has the messages; without one they are unknown."""
    found = chats(
        tmp_path,
        root("1"),
        call("1", "b", {"messages": [QUESTION]}, "I think."),
        call("1", "c", {"messages": RESENT}, "", output=None, status="error", error_type="TimeoutError"),
        root("2", rollout_n=1),
        call("2", "d", {"messages": [QUESTION]}, "", output=None, status="error", error_type="TimeoutError"),
    )
    assert found == [["6 * 7?", "I think."]]


@pytest.mark.parametrize(
    ("text", "has_calls"),
    [
        ("I will search for 2 of them.", True),
        ('<tool_call>\n{"name": "search", "arguments": {"n": 2}}\n</tool_call>', False),
        ("<tool_call>search\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>", False),
        ("<tool_call>\n<function=search>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>", False),
        ('[TOOL_CALLS]search[ARGS]{"n": 2}', False),
        ('<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"n": 2}<｜tool▁call▁end｜>', False),
        ('{"name": "search", "parameters": {"n": 2}}', False),
        ('<|channel|>commentary to=functions.search <|message|>{"n": 2}<|call|>', False),
    ],
)
def test_call_stands_beside_a_text_that_has_its_words(tmp_path: Path, text: str, has_calls: bool) -> None:
    """Only what a chat template writes at a call is the call itself, and needs no second form."""
    called = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"n": 2}'}}
    reply = {"role": "assistant", "content": text, "tool_calls": [called]}
    asking = call(
        "1", "b", {"messages": [QUESTION]}, "", output=json.dumps({"choices": [{"message": reply}]})
    )
    written(tmp_path / "table", [root("1"), asking])
    (example,) = otel_rollout.open_table(str(tmp_path / "table")).messages()
    assert len(example["messages"][1].get("tool_calls", ())) == has_calls


def test_judge_inside_an_evaluator_is_not_part_of_the_conversation(tmp_path: Path) -> None:
    """However long its context is."""
    judging = call("1", "d", {"messages": [*RESENT, QUESTION]}, "5 of 5", parent_span_id="c".rjust(16, "0"))
    found = chats(
        tmp_path,
        root("1"),
        call("1", "b", {"messages": [QUESTION]}, "42"),
        row("1", "c", "a1", kind="EVALUATOR"),
        judging,
    )
    assert found == [["6 * 7?", "42"]]


def test_judge_whose_evaluator_is_not_recorded_is_not_part_of_the_conversation(tmp_path: Path) -> None:
    """It runs, or its process was killed. The judge's call tells; the policy's may be an orphan, too."""
    of_loop = {"parent_span_id": "9".rjust(16, "0")}
    judging = call(
        "1", "d", {"messages": [*RESENT, QUESTION]}, "5 of 5", parent_span_id="c".rjust(16, "0"),
        attributes=json.dumps({"rollout.in_evaluator": True}),
    )  # fmt: skip
    loop = call("1", "b", {"messages": [QUESTION]}, "42", **of_loop)
    assert chats(tmp_path / "killed", root("1"), loop, judging) == [["6 * 7?", "42"]]
    assert chats(tmp_path / "running", loop, judging) == [["6 * 7?", "42"]]


@pytest.mark.parametrize(
    "content",
    [
        [
            {"type": "text", "text": "See:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}},
        ],
        [{"type": "input_audio", "input_audio": {"data": "A"}}],
        "a long text… (12 more characters)",
        [{"type": "tool_result", "tool_use_id": "c", "content": "a long text… (12 more characters)"}],
        [{"type": "thinking", "thinking": "long… (12 more characters)"}, {"type": "text", "text": "Hi"}],
    ],
)
def test_message_that_is_more_than_its_text_is_unknown(tmp_path: Path, content: Any) -> None:
    """Images and cut values would be words that nobody said."""
    asked = {"messages": [{"role": "user", "content": content}]}
    assert chats(tmp_path, root("1"), call("1", "b", asked, "A cat.")) == []


def test_list_of_messages_that_was_cut_is_unknown(tmp_path: Path) -> None:
    """What is left of it is no message."""
    cut = {"messages": [QUESTION, "… (3 more items)"]}
    assert chats(tmp_path, root("1"), call("1", "b", cut, "42")) == []


def test_reply_of_token_ids_without_text_is_unknown(tmp_path: Path) -> None:
    """Also if the request has messages."""
    asked, answered = {"messages": [QUESTION]}, json.dumps({"token_ids": [1, 2]})
    assert chats(tmp_path, root("1"), call("1", "b", asked, "", output=answered)) == []


def test_reply_keeps_its_blanks(tmp_path: Path) -> None:
    """The model wrote them, and a chat template counts them."""
    found = chats(tmp_path, root("1"), call("1", "b", {"messages": [QUESTION]}, "\n\n  42\n"))
    assert found == [["6 * 7?", "\n\n  42\n"]]


def test_pair_has_one_prompt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Groups whose siblings answer other prompts, and trajectories without dataset row, have no pair."""
    rows = []
    for trace, columns in (("1", {"sample_index": "8"}), ("2", {"sample_index": None})):
        for number, prompt in enumerate("ab"):
            name = f"{trace}{number}"
            rows += [
                root(name, rollout_n=number, **columns),
                call(name, f"b{name}", {"messages": [{"role": "user", "content": prompt}]}, f"to {prompt}"),
                score(name, f"c{name}", float(number), rollout_n=number, **columns),
            ]
    written(tmp_path / "table", rows)
    with caplog.at_level(logging.WARNING):
        assert list(otel_rollout.open_table(str(tmp_path / "table")).preference_pairs()) == []
    assert "left out: 1 group, because" in caplog.text


def test_pair_is_of_those_among_the_best_and_the_worst_that_fit(tmp_path: Path) -> None:
    """Of several best siblings, one with another prompt or with the words of the worst makes no pair."""
    said = [("Why?", "Because.", 1), ("Why not?", "So.", 1), ("Why?", "So.", 1), ("Why?", "Because.", 0)]
    rows = [
        each
        for number, (asked, reply, reward) in enumerate(said, start=1)
        for each in (
            call(
                f"{number}", "b", {"messages": [{"role": "user", "content": asked}]}, reply, rollout_n=number
            ),
            root(f"{number}", rollout_n=number),
            score(f"{number}", f"c{number}", float(reward), rollout_n=number),
        )
    ]
    written(tmp_path / "table", rows)
    (pair,) = otel_rollout.open_table(str(tmp_path / "table")).preference_pairs()
    assert (pair["chosen_path"], pair["rejected_path"]) == ("1/7/3", "1/7/4")
