"""The demo's dataset and tokenizer are correct.

The tokenizer can be trained again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from otel_rollout_demo.dataset import Message, Row, Split, batch, load
from otel_rollout_demo.policy import worked_steps
from otel_rollout_demo.reward import extract_answer
from otel_rollout_demo.tokenizer import TOKENIZER_DIR, ChatTokenizer, load_tokenizer
from otel_rollout_demo.tools import CALCULATOR_SCHEMA, evaluate, format_number
from otel_rollout_demo.train_tokenizer import VOCAB_SIZE, train

ROWS = [*load("train"), *load("validation")]


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    """Return the demo's own tokenizer."""
    return ChatTokenizer(load_tokenizer())


@pytest.mark.parametrize("split", get_args(Split))
def test_rows_follow_verls_schema(split: Split) -> None:
    """Every row has the columns that verl's agent loops read.

    Its index is its position.
    """
    for place, row in enumerate(load(split)):
        assert set(row) == set(Row.__annotations__)
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert row["reward_model"]["style"] == "rule"
        extra = row["extra_info"]
        assert (extra["split"], extra["index"]) == (split, place)
        assert extra["question"] == row["prompt"][-1]["content"]
        assert extra["need_tools_kwargs"] == bool(extra["tools_kwargs"])


def test_dataset_has_32_training_and_8_validation_problems() -> None:
    """No problem occurs twice."""
    assert (len(load("train")), len(load("validation"))) == (32, 8)
    assert len({row["extra_info"]["question"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['extra_info']['split']}-{row['extra_info']['index']}"
)
def test_worked_solution_of_each_row_is_correct(row: Row) -> None:
    """Each step of a solution has the value it states.

    The last value is the ground truth.
    """
    steps = worked_steps(row["extra_info"]["answer"])
    assert len(steps) >= 2
    for step in steps:
        assert format_number(evaluate(step.expression)) == step.value
    assert (
        steps[-1].value == row["reward_model"]["ground_truth"] == extract_answer(row["extra_info"]["answer"])
    )


def test_batches_repeat_the_dataset() -> None:
    """Steps take the rows in order, and start again after the last row."""
    rows = load("validation")
    assert batch(rows, 1, 3) == rows[:3]
    assert batch(rows, 3, 3) == [*rows[6:8], rows[0]]


def test_tokenizer_restores_any_text(chat: ChatTokenizer) -> None:
    """Decoding gives back any text, with a vocabulary of the size that was asked for."""
    assert len(load_tokenizer()) == VOCAB_SIZE
    for text in ["14 * 7 = 98", '<tool_call>\n{"name": "x"}\n</tool_call>', "ünïcode 漢字 🙂", " \n\t", ""]:
        assert chat.decode(chat.encode(text)) == text


def test_training_again_gives_the_shipped_tokenizer(tmp_path: Path) -> None:
    """Training on the repository's texts is deterministic."""
    train(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        trained, shipped = (json.loads((place / name).read_bytes()) for place in (tmp_path, TOKENIZER_DIR))
        assert trained == shipped, "run: python -m otel_rollout_demo.train_tokenizer"


def test_prompt_has_system_text_tools_and_question(chat: ChatTokenizer) -> None:
    """The template renders roles and the tool's schema, up to the assistant's turn."""
    text = chat.decode(chat.prompt_ids(ROWS[0]["prompt"], [CALCULATOR_SCHEMA]), keep_special=True)
    assert text.startswith("<|im_start|>system\nYou solve")
    assert '"name": "calculator"' in text
    assert ROWS[0]["extra_info"]["question"] in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_turns_encoded_one_by_one_equal_the_whole_conversation(chat: ChatTokenizer) -> None:
    """Prompt, reply and tool turns have the ids of the conversation rendered at once."""
    prompt = ROWS[0]["prompt"]
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1 + 1"}}}
    reply = 'So:\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'
    answers: list[Message] = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "Error: no"}]
    appended = [
        *chat.prompt_ids(prompt, [CALCULATOR_SCHEMA]),
        *chat.encode(reply),
        chat.eos_token_id,
        *chat.turn_ids(answers, closed=True),
    ]
    assistant: Message = {"role": "assistant", "content": "So:", "tool_calls": [call]}
    assert appended == chat.prompt_ids([*prompt, assistant, *answers], [CALCULATOR_SCHEMA])


def test_turn_without_end_token_is_ended_by_the_next(chat: ChatTokenizer) -> None:
    """If the model's end token was cut off, the next turn starts with it."""
    answers: list[Message] = [{"role": "tool", "content": "2"}]
    closed = chat.turn_ids(answers, closed=True)
    assert chat.turn_ids(answers, closed=False) == [chat.eos_token_id, *closed]
