"""Load word problems in verl's dataset schema.

The files (``data/train.jsonl``, ``data/validation.jsonl``) have one JSON object per line.
``extra_info.index`` is the sample index, ``agent_name`` selects the agent loop, and the reward compares
answers with ``reward_model.ground_truth``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

DATA: Final = Path(__file__).parent / "data"

Split = Literal["train", "validation"]


class Message(TypedDict, total=False):
    """A chat message in OpenAI's format; ``role`` and ``content`` are never missing."""

    role: str
    content: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str


class RewardModel(TypedDict):
    """Rule by which an answer is judged."""

    style: str
    ground_truth: str


class ExtraInfo(TypedDict):
    """What verl passes to agent loops, tools and rewards beside the prompt."""

    split: str
    index: int
    answer: str
    question: str
    need_tools_kwargs: bool
    tools_kwargs: dict[str, dict[str, Any]]
    interaction_kwargs: dict[str, Any]


class Row(TypedDict):
    """A sample."""

    data_source: str
    agent_name: str
    prompt: list[Message]
    ability: str
    reward_model: RewardModel
    extra_info: ExtraInfo


def load(split: Split) -> list[Row]:
    """Return all rows of a split, in order of their index."""
    lines = (DATA / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def batch(rows: list[Row], step: int, size: int) -> list[Row]:
    """Return the samples of a training step, counted from 1; the dataset repeats."""
    first = (step - 1) * size
    return [rows[(first + offset) % len(rows)] for offset in range(size)]
