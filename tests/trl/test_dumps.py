"""Completions that TRL's own trainer wrote, read by the commands' way and counted without it."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
from transformers import Trainer
from trl import GRPOTrainer

from tests.dumps.reading import OpenedDump

TALK = [{"role": "user", "content": "6*7?"}]
CALLS = [
    {"type": "function", "function": {"name": "calc", "arguments": {"e": "6*7"}}},
    {"type": "function", "function": {"name": "search", "arguments": {"query": "seven"}}},
]
LOOP = [
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "name": "calc", "content": "42"},
    {"role": "tool", "name": "search", "content": "a number"},
    {"role": "assistant", "content": "42"},
]


def _log(folder, step, monkeypatch, **rows):
    """Let TRL write the completions of a step."""
    monkeypatch.setattr(Trainer, "log", lambda *_: None)
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    logs = {"images": deque(), "extra": defaultdict(list), **rows}
    trainer = object.__new__(GRPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer._metrics = {"train": {}}
    trainer.accelerator = SimpleNamespace(is_main_process=True)
    trainer.log_completions = True
    trainer.num_completions_to_print = 0
    trainer.args = SimpleNamespace(report_to=[], output_dir=str(folder))
    trainer.state = SimpleNamespace(global_step=step)
    trainer._logs = logs
    trainer.log({})


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Two steps: four completions of two prompts with tools, and two without."""
    other = [{"role": "user", "content": "8*8?"}]
    rewards = {"right": [1.0, 0.0, math.nan, 1.0], "short": [0.5, 0.5, math.nan, 0.25]}
    _log(
        tmp_path / "run", 2, monkeypatch,
        prompt=[TALK, TALK, other, other], completion=[LOOP, LOOP[-1:], LOOP, LOOP[-1:]],
        rewards=rewards, advantages=[0.5, -0.5, 0.0, 0.0],
    )  # fmt: skip
    _log(
        tmp_path / "run", 3, monkeypatch,
        prompt=["2+2?", "2+2?"], completion=["4", "5"], rewards={"right": [1.0, 0.0]}, advantages=[1.0, -1.0],
    )  # fmt: skip
    return OpenedDump(tmp_path / "run", kept=tmp_path / "kept")


def test_completions_agree_with_what_was_logged(written):
    """Groups, rewards of each function, turns, tool calls and advantages are those of the batch."""
    rows = {row["path"]: row for row in written.trajectories()}
    assert list(rows) == ["2/0/0", "2/0/1", "2/1/0", "2/1/1", "3/0/0", "3/0/1"]
    assert [row["reward"] for row in rows.values()] == [1.5, 0.5, None, 1.25, 1.0, 0.0]
    assert [(row["turns"], row["tool_calls"]) for row in rows.values()] == [(2, 2), (1, 0)] * 2 + [(1, 0)] * 2
    assert written.scores()["2/1/1"] == {"right": 1.0, "short": 0.25, "reward": 1.25, "advantage": 0.0}
    assert written.scores()["2/1/0"] == {"advantage": 0.0}


def test_tool_calls_have_the_arguments_of_their_own_tool_and_results_in_order(written):
    """Parquet gives every call the arguments of all tools: those that are null are dropped."""
    calls = written.rows(
        "SELECT tool_name, arguments, result FROM tool_calls WHERE sample_index = '0' ORDER BY start_ns"
    )
    assert [tuple(call.values()) for call in calls] == [
        ("calc", '{"e":"6*7"}', "42"),
        ("search", '{"query":"seven"}', "a number"),
    ]
