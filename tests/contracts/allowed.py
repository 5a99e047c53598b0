"""What ways of asking may tell differently from the account, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.contracts.account import Trajectory


class Told(NamedTuple):
    """A difference.

    Attributes:
        way: who was asked.
        what: the fact.
        of: the trajectory, or the first one of the group or step.
        told: the answer.
        expected: what the account says.
    """

    way: str
    what: str
    of: Trajectory
    told: object
    expected: object

    def __str__(self) -> str:
        """Name the trajectory and the two answers."""
        of = f"{self.of.path} {self.of.trace_id}"
        return f"{self.way} says {self.what} {self.told!r}, not {self.expected!r}, of {of}"


class Allowed(NamedTuple):
    """A difference that is allowed.

    Attributes:
        way: who was asked.
        what: names of facts.
        when: of which trajectories.
        reason: why.
    """

    way: str
    what: frozenset[str]
    when: Callable[[Trajectory], bool]
    reason: str

    def covers(self, told: Told) -> bool:
        """Return whether a difference is this one."""
        return told.way == self.way and told.what in self.what and self.when(told.of)


def differing(
    way: str, of: Trajectory, found: Mapping[str, Any], expected: Mapping[str, object]
) -> Iterator[Told]:
    """Yield the facts that are told differently; numbers may differ by a millionth."""
    for what, value in expected.items():
        told = found[what]
        if told != (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value):
            yield Told(way, what, of, told, value)


def _is_remote(one: Trajectory) -> bool:
    return one.end is not None and one.root.inside is not None


def _has_calls_inside(one: Trajectory) -> bool:
    return any(span.kind == "LLM" and one.around(span, "LLM") for span in one.spans)


def _has_tools_inside(one: Trajectory) -> bool:
    return any(span.kind == "TOOL" and one.around(span, "LLM") for span in one.spans)


def _has_counts_inside(one: Trajectory) -> bool:
    """Return whether a span that is no model call, inside one, has counts."""
    others = [span for span in one.spans if span.kind != "LLM" and span.tokens != (None, None)]
    return any(one.around(span, "LLM") for span in others)


def _has_odd_reward(one: Trajectory) -> bool:
    return isinstance(one.given, (bool, str)) or one.is_odd


def _has_scores_of_others(one: Trajectory) -> bool:
    """Return whether a trajectory inside has scores that tail sampling cannot tell from the outer one's."""
    scored = [span for span in one.spans if span.evaluation and one.around(span, "AGENT") is not one.own_root]
    return any(span.evaluation and span.evaluation.origin == "process" for span in scored) or (
        bool(scored) and (one.end is None or _is_remote(one))
    )


def _has_equal_times(one: Trajectory) -> bool:
    """Return whether two scores of the trajectory were given at one time."""
    return len({rank[:3] for rank in one.ranks}) < len(one.ranks)


def _allowed(ways: str, facts: str, when: Callable[[Trajectory], bool], reason: str) -> list[Allowed]:
    return [Allowed(way.strip(), frozenset(facts.split()), when, reason) for way in ways.split(",")]


ALLOWED: tuple[Allowed, ...] = (
    *_allowed(
        "group, group of MLflow, show ID, page of a trajectory",
        "tool_calls",
        _has_tools_inside,
        "defect: a call of a tool inside a model call is no tool call there; `list` and `steps` count it",
    ),
    *_allowed(
        "group, group of MLflow, show ID, page of a trajectory",
        "tokens_out output_tokens",
        _has_counts_inside,
        "defect: a call without counts takes those of any span inside it, of a tool for example",
    ),
    *_allowed(
        "page of trajectories",
        "reward",
        _has_odd_reward,
        "defect: the page shows no reward that is NaN, infinite or text, and False as 0.0; `show` tells them",
    ),
    *_allowed(
        "metrics",
        "calls input output",
        _has_calls_inside,
        "defect: each inner call is measured when it ends, and then the outer one's own tokens are not",
    ),
    *_allowed(
        "metrics",
        "seconds turns",
        _is_remote,
        "defect: the span of a trajectory in another system's trace has a parent, so it is not measured",
    ),
    *_allowed(
        "tail sampling",
        "has_ended seconds",
        _is_remote,
        "defect: a trajectory in another system's trace never ends for tail sampling",
    ),
    *_allowed(
        "tail sampling",
        "score",
        _has_scores_of_others,
        "defect: scores of a trajectory inside count that another process gave, or until the root has ended",
    ),
    *_allowed(
        "tail sampling, show of MLflow, group of MLflow",
        "score reward reward_mean",
        _has_equal_times,
        "defect: of two scores of one time the last that is read counts, so the order of lines decides",
    ),
)


def is_allowed(told: Told) -> bool:
    """Return whether a difference is in the table."""
    return any(allowed.covers(told) for allowed in ALLOWED)
