"""Tools and reward functions of the asynchronous worker's tests, which its process imports."""

from __future__ import annotations

import asyncio
from typing import Any


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.

    Returns:
        The sum.
    """
    return a + b


async def add_later(a: int, b: int) -> int:
    """Add two numbers, later.

    Args:
        a: the first.
        b: the second.

    Returns:
        The sum.
    """
    await asyncio.sleep(0.01)
    return a + b


def fail(text: str) -> str:
    """Raise an error.

    Args:
        text: the error's text.

    Returns:
        Nothing.
    """
    raise ValueError(text)


def mentions_five(completions: list[Any], **_: Any) -> list[float]:
    """Reward a last message that mentions 5."""
    return [float("5" in completion[-1]["content"]) for completion in completions]


async def is_short(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """Reward short completions; a cut-off one gets no reward."""
    await asyncio.sleep(0)
    return [None if len(ids) < 10 else 1 / len(ids) for ids in completion_ids]
