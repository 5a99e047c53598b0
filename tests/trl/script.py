"""What the scripted model says to each prompt, and the tools, environments and rewards that it meets."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import otel_rollout
from otel_rollout import rollout_trace_op

SIBLINGS: Final = 4
ENDLESS: Final = "…"
"""The end of a reply that goes on until the token limit."""
CALL: Final = "<tool_call>\n{}\n</tool_call>"


def call(name: str, arguments: Any) -> str:
    """Return the text of a tool call."""
    return CALL.format(json.dumps({"name": name, "arguments": arguments}))


FIRST: Final = {
    "Add.": [
        call("add", {"a": 1, "b": 2}),
        call("fetch", {"key": "x"})
        + "\n"
        + call("add", {"a": 3, "b": 4})
        + "\n"
        + call("fetch", {"key": ""}),
        call("divide", {"a": 1, "b": 0}),
        "On and on" + ENDLESS,
    ],
    "Break.": [
        call("unknown", {"a": 1})
        + "\n"
        + call("add", {"a": 1, "b": 1})
        + "\n"
        + call("add", {"a": 1, "b": 1}),
        call("add", {"c": 1}),
        call("fetch", {"what": 1}),
        "No reward.",
    ],
    "Go on.": [
        call("add", {"a": 100, "b": 1}),
        call("long", {"words": 500}),
        call("noted", {"text": "seen"}),
        call("long", {"words": 155}),  # the answer leaves no room for another turn
    ],
    "Count.": [call("count", {"by": row + 1}) for row in range(SIBLINGS)],
    "Wait.": [call("wait", {"turns": row}) for row in range(SIBLINGS)],
}
"""Prompt → first reply to each sibling."""


def reply(text: str, row: int) -> str:
    """Return the reply to a conversation as Qwen's template renders it, or to a plain prompt."""
    turn = text.rsplit("<|im_start|>user\n", 1)[-1]
    if "<tool_response>" in turn:
        return call("add", {"a": 1, "b": 1}) if "\n101\n" in turn else "It is done."
    asked = next((asked for asked in FIRST if asked in turn), None)
    return FIRST[asked][row % SIBLINGS] if asked else f"Reply {row}."


# --- tools -------------------------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a + b


def divide(a: int, b: int) -> float:
    """Divide two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a / b


async def fetch(key: str) -> str:
    """Fetch a value.

    Args:
        key: name of the value.
    """
    await asyncio.sleep(0)
    if not key:
        raise KeyError("empty")
    return f"value of {key}"


def long(words: int) -> str:
    """Return a long text.

    Args:
        words: number of words.
    """
    return "word " * words


def noted(text: str) -> str:
    """Note a text.

    Args:
        text: what to note.
    """
    otel_rollout.score("noted", 2.0, comment=text)
    return _shout(text)


@rollout_trace_op
def _shout(text: str) -> str:
    return text.upper()


TOOLS: Final = [add, divide, fetch, long, noted]


class Counter:
    """An environment that counts, and that rewards its count."""

    def reset(self, **columns: Any) -> str:
        """Begin at 0."""
        self.total = 0
        return " You are in Counter."

    def count(self, by: int) -> int:
        """Count.

        Args:
            by: how much to add.
        """
        self.total += by
        return self.total

    def get_reward(self) -> float:
        """Return the count."""
        return float(self.total)


class Waiting:
    """An environment with a coroutine, and without a reward."""

    def reset(self, **columns: Any) -> None:
        """Do nothing."""

    async def wait(self, turns: int) -> str:
        """Wait for a while.

        Args:
            turns: turns of the event loop.
        """
        for _ in range(turns):
            await asyncio.sleep(0)
        return "waited"


# --- rewards -----------------------------------------------------------------------------------------------


def done(completions: Any, log_extra: Any, **columns: Any) -> list[float | None]:
    """Reward completions that end with the right words; nothing for those that have no reward."""
    last = [messages[-1]["content"] for messages in completions]
    log_extra("note", [text[:5] for text in last])
    return [None if text == "No reward." else float(text == "It is done.") for text in last]


async def length(completions: Any, **columns: Any) -> list[float | None]:
    """Reward each message; nothing for completions of one message that have no reward."""
    return [None if c[-1]["content"] == "No reward." else float(len(c)) for c in completions]


def text_length(completions: Any, **columns: Any) -> list[float]:
    """Reward the length of a text."""
    return [float(len(text)) for text in completions]


def broken(completions: Any, **columns: Any) -> list[float]:
    """Fail."""
    raise ArithmeticError("no reward today")
