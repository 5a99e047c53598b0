"""Write the texts of a generated run: questions, reasoning, tool calls and answers that differ."""

from __future__ import annotations

import random
from typing import Any, Final

import orjson

_NOUNS: Final = "apples boxes pages coins miles tickets bricks litres hours parcels shelves students".split()  # noqa: SIM905
_VERBS: Final = "add multiply divide compare check subtract count estimate round collect".split()  # noqa: SIM905
_LINKS: Final = "then first so because next afterwards however therefore finally instead".split()  # noqa: SIM905
_PLACES: Final = "shop school garage library harbour market station farm museum kitchen".split()  # noqa: SIM905
TOOLS: Final = ("search", "calculator", "python")
_LOOP: Final = "Wait, let me check the total once more. The total is not right yet. "
_LEAK: Final = "<|im_end|>\n<|im_start|>user\n"
SYSTEM: Final = "Solve the problem step by step. Call a tool for each calculation. End with '#### <number>'."


def question(draw: random.Random) -> str:
    """Return a word problem."""
    return (
        f"A {draw.choice(_PLACES)} has {draw.randrange(3, 99)} {draw.choice(_NOUNS)} and gets "
        f"{draw.randrange(100, 9999)} more each {draw.choice(('day', 'week', 'month'))}. How many are there "
        f"after {draw.randrange(2, 30)} of them, if {draw.randrange(2, 50)} are lost?"
    )


def reasoning(draw: random.Random, sentences: int) -> str:
    """Return sentences of reasoning."""
    return " ".join(
        f"{draw.choice(_LINKS).capitalize()} I {draw.choice(_VERBS)} {draw.randrange(2, 9999)} "
        f"{draw.choice(_NOUNS)} and {draw.randrange(2, 999)} of the {draw.choice(_PLACES)}."
        for _ in range(sentences)
    )


def call(tool: str, arguments: dict[str, Any], is_broken: bool) -> str:
    """Return a tool call in the format of Hermes, as the model writes it."""
    text = orjson.dumps({"name": tool, "arguments": arguments}).decode()
    return f"<tool_call>\n{text[: len(text) - 9] if is_broken else text}\n</tool_call>"


def arguments(draw: random.Random, tool: str) -> dict[str, Any]:
    """Return the arguments of a tool call."""
    expression = f"{draw.randrange(2, 9999)} * {draw.randrange(2, 99)} + {draw.randrange(99)}"
    if tool == "search":
        return {"query": f"{draw.choice(_NOUNS)} per {draw.choice(_PLACES)} {draw.randrange(1950, 2030)}"}
    return {"expression": expression} if tool == "calculator" else {"code": f"print({expression})"}


def result(draw: random.Random, tool: str) -> str:
    """Return the answer of a tool."""
    return reasoning(draw, 3) if tool == "search" else str(draw.randrange(10, 999_999))


def answer(draw: random.Random) -> str:
    """Return the last line of a solution."""
    return f"#### {draw.randrange(10, 99_999)}"


def looped(text: str) -> str:
    """Return a text that ends in a loop."""
    return text[:80] + _LOOP * 40


def leaked(draw: random.Random, text: str) -> str:
    """Return a text into which special tokens of the template have leaked."""
    place = draw.randrange(len(text) // 2 + 1)
    return text[:place] + _LEAK + text[place:]
