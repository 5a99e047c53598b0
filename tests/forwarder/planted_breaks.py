"""Make the model calls of a trajectory whose broken prefixes are known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

SYSTEM, USER, MODEL, END = [1, 2], [1, 3], [1, 4, 6], 5
"""Tokens of a chat template: they open the messages of each role, and end each message."""


class Call(NamedTuple):
    """A model call."""

    prompt: list[int]
    answer: list[int]

    @property
    def context(self) -> list[int]:
        """Prompt and answer."""
        return [*self.prompt, *self.answer]


class Break(NamedTuple):
    """What the call after a broken turn must say of it."""

    of: int
    token: int
    removed: int
    added: int
    kind: str


@dataclass
class Planted:
    """The calls of a trajectory in their order, numbered from 1, and the breaks that were planted.

    Attributes:
        calls: the calls.
        breaks: number of a call → the break between the turn before it and its prompt.
    """

    draw: st.DrawFn
    calls: list[Call] = field(default_factory=list)
    breaks: dict[int, Break] = field(default_factory=dict)
    fresh: Any = field(default_factory=lambda: itertools.count(100))

    def text(self, least: int, most: int) -> list[int]:
        """Return new tokens; no two are equal, so that a difference has one place only."""
        return list(itertools.islice(self.fresh, self.draw(st.integers(least, most))))

    def message(self, role: list[int]) -> list[int]:
        """Return a message of some tokens."""
        return [*role, *self.text(1, 60), END]

    def ask(self, context: list[int]) -> int:
        """Add a call whose prompt is the context and a request for an answer; return its number."""
        self.calls.append(Call([*context, *MODEL], [*self.text(6, 60), END]))
        return len(self.calls)


def retokenize(planted: Planted, last: Call, is_sampled: bool) -> tuple[list[int], tuple[int, int, int, str]]:
    """Give a part of the last answer other tokens."""
    answer = last.answer
    least = (len(answer) + 1) // 2 if is_sampled else 0
    place = planted.draw(st.integers(least, len(answer) - 3))
    removed = planted.draw(st.integers(1, min(4, len(answer) - 1 - place)))
    added = planted.text(1, 4)
    changed = [*answer[:place], *added, *answer[place + removed :]]
    found = len(last.prompt) + place, removed, len(added), "retokenized"
    return [*last.prompt, *changed], found


def cut(planted: Planted, last: Call) -> tuple[list[int], tuple[int, int, int, str]]:
    """Leave out a part of the context before the last answer."""
    end = planted.draw(st.integers(5, len(last.prompt) - len(MODEL)))
    start = planted.draw(st.integers(4, end - 1))
    context = last.context
    while context[start] == context[end]:  # a template token is there in both
        start, end = start + 1, end + 1
    return [*context[:start], *context[end:]], (start, end - start, 0, "cut")


def change_beginning(planted: Planted, last: Call) -> tuple[list[int], tuple[int, int, int, str]]:
    """Replace tokens of the system prompt."""
    removed, added = planted.draw(st.integers(1, 3)), planted.text(1, 9)
    context = last.context
    return [*context[:2], *added, *context[2 + removed :]], (2, removed, len(added), "beginning")


@st.composite
def planted_breaks(draw: st.DrawFn) -> Planted:
    """Draw a trajectory: appended turns, breaks, subagents, several answers to a prompt, and steps back."""
    planted = Planted(draw)
    system = [*SYSTEM, *planted.text(6, 40), END]
    current = planted.ask([*system, *planted.message(USER)])
    is_sampled = False
    for _ in range(draw(st.integers(1, 8))):
        last = planted.calls[current - 1]
        action = draw(
            st.sampled_from(["append", "retokenize", "cut", "beginning", "subagent", "sample", "back"])
        )
        if action == "subagent":
            planted.ask([*system, *planted.message(USER)])
            continue
        if action == "sample":
            planted.calls.append(Call(last.prompt, [*last.answer[:2], *planted.text(4, 20), END]))
            is_sampled = True
            continue
        context, found = last.context, None
        if action == "retokenize":
            context, found = retokenize(planted, last, is_sampled)
        elif action == "cut":
            context, found = cut(planted, last)
        elif action == "beginning":
            context, found = change_beginning(planted, last)
        of = current
        current = planted.ask([*context, *planted.message(USER)])
        is_sampled = False
        if found is not None:
            planted.breaks[current] = Break(of, *found)
        if action == "back":
            planted.ask([*planted.calls[0].context, *planted.message(USER)])
    return planted
