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
    """Yield the facts that are told differently; quantiles may differ by 1e-5: the engine interpolates."""
    for what, value in expected.items():
        told = found[what]
        if told != (pytest.approx(value, abs=1e-5) if isinstance(value, float) else value):
            yield Told(way, what, of, told, value)


def _is_remote(one: Trajectory) -> bool:
    return one.end is not None and one.root.inside is not None


def _has_calls_inside(one: Trajectory) -> bool:
    return any(span.kind == "LLM" and one.around(span, "LLM") for span in one.spans)


def _has_scores_inside_an_unended_one(one: Trajectory) -> bool:
    """Return whether a trajectory inside one whose root is not read has scores."""
    scored = [span for span in one.spans if span.evaluation and one.around(span, "AGENT") is not one.own_root]
    return bool(scored) and (one.end is None or _is_remote(one))


def _has_equal_times(one: Trajectory) -> bool:
    """Return whether two scores of the trajectory were given at one time."""
    return len({rank[:3] for rank in one.ranks}) < len(one.ranks)


def _allowed(ways: str, facts: str, when: Callable[[Trajectory], bool], reason: str) -> list[Allowed]:
    return [Allowed(way.strip(), frozenset(facts.split()), when, reason) for way in ways.split(",")]


ALLOWED: tuple[Allowed, ...] = (
    *_allowed(
        "metrics",
        "calls input output",
        _has_calls_inside,
        "a call is measured when it ends, and a histogram takes nothing back: the inner call is measured",
    ),
    *_allowed(
        "metrics",
        "seconds turns",
        _is_remote,
        "a process cannot tell a trajectory in another system's trace from one inside another trajectory",
    ),
    *_allowed(
        "tail sampling",
        "has_ended seconds score",
        _is_remote,
        "the line of a trajectory around it may be still to come: its group waits for the deadline, and "
        "scores that its span repeats do not count",
    ),
    *_allowed(
        "tail sampling",
        "score",
        _has_scores_inside_an_unended_one,
        "until the root is read, all scores of the trace count: a group is not decided before",
    ),
    *_allowed(
        "show of MLflow, group of MLflow",
        "reward reward_mean",
        _has_equal_times,
        "MLflow keeps no id of a score's span: of two scores of one time the one that it returns last counts",
    ),
)


def is_allowed(told: Told) -> bool:
    """Return whether a difference is in the table."""
    return any(allowed.covers(told) for allowed in ALLOWED)
