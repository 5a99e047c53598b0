"""Account for generated spans in plain Python, by the rules of docs/ alone.

The rules are those of table.md (views), why.md (figures of a step, phases), architecture.md (which score
counts) and recording.md (scores by identity).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from tests.contracts.made_spans import Identity, Made, Value

Number = int | float
_SOURCES = ("trace", "identity", "root")
"""Where a score may be, in order of precedence between scores that are equal otherwise."""


@dataclass(frozen=True)
class Given:
    """A score that counts for a trajectory if it is the greatest.

    Attributes:
        rank: what is compared.
        value: the score.
    """

    rank: tuple[bool, int, bool, int, str]
    value: Value


@dataclass(frozen=True)
class Trajectory:
    """What is to be told of a trajectory; seconds are milliseconds here."""

    trace_id: str
    run: str
    project: str
    identity: Identity
    state: str
    error: str
    begin: int
    end: int | None
    turns: int
    tool_calls: int
    tool_errors: int | None
    tokens: tuple[int | None, int | None]
    given: Value | None
    ranks: tuple[tuple[object, ...], ...]
    spans: tuple[Made, ...]

    @property
    def own_root(self) -> Made | None:
        """The span of the trajectory; None while it runs."""
        return next((span for span in self.spans if span.name == "agent_loop"), None)

    @property
    def root(self) -> Made:
        """The span of the trajectory, which has ended."""
        assert self.own_root is not None
        return self.own_root

    def around(self, span: Made, kind: str) -> Made | None:
        """Return the nearest span of a kind around a span."""
        return around({each.span: each for each in self.spans}, span, kind)

    @property
    def milliseconds(self) -> int | None:
        """Duration; None while it runs."""
        return None if self.end is None else self.end - self.begin

    @property
    def reward(self) -> float | None:
        """The reward, if it is a finite number."""
        return None if self.is_odd or self.given is None or isinstance(self.given, str) else float(self.given)

    @property
    def is_odd(self) -> bool:
        """Whether the reward is NaN or infinite."""
        return isinstance(self.given, float) and not math.isfinite(self.given)

    @property
    def group(self) -> tuple[str, bool, str, str]:
        """Run, kind, step and row."""
        return self.run, self.identity.validate, str(self.identity.step), str(self.identity.sample)

    @property
    def step(self) -> tuple[str, bool, str]:
        """Run, kind and step."""
        return self.run, self.identity.validate, str(self.identity.step)

    @property
    def group_path(self) -> str:
        """Name of the group."""
        kind = "validation/" if self.identity.validate else ""
        step = "-" if self.identity.step is None else self.identity.step
        return f"{kind}{step}/{self.identity.sample}"

    @property
    def path(self) -> str:
        """Name of the trajectory."""
        rollout = "-" if self.identity.rollout is None else self.identity.rollout
        return f"{self.group_path}/{rollout}"


# --- spans and trajectories ---------------------------------------------------------------------------------


def once(spans: Iterable[Made]) -> list[Made]:
    """Return each span once: of several copies the one that ended last, then the longest."""
    found: dict[str, Made] = {}
    for span in spans:
        known = found.get(span.id)
        if known is None or _length(span) > _length(known):
            found[span.id] = span
    return list(found.values())


def _length(span: Made) -> tuple[int, int]:
    return max(span.begin, span.end), len(json.dumps(span.attributes))


def trajectories_of(recorded: Iterable[Made]) -> list[Trajectory]:
    """Return the trajectories that spans tell of."""
    spans = once(recorded)
    by_identity = [span for span in spans if is_by_identity(span)]
    traces: dict[str, dict[int, Made]] = {}
    for span in spans:
        if not is_by_identity(span):
            traces.setdefault(span.trace_id, {})[span.span] = span
    facts = {trace_id: _Facts(trace) for trace_id, trace in traces.items()}
    for score in by_identity:
        matches = resolved(score, facts.values())
        if len(matches) == 1:
            matches[0].scores.append(score_of(score, "identity"))
    return [facts[trace_id].trajectory() for trace_id in sorted(facts)]


def is_by_identity(span: Made) -> bool:
    """Return whether a span is a score by identity, and no part of a trajectory."""
    return span.evaluation is not None and span.evaluation.origin == "identity"


def around(spans: Mapping[int, Made], span: Made, kind: str) -> Made | None:
    """Return the nearest span of a kind around a span."""
    above = None if span.inside is None else spans.get(span.inside)
    while above is not None and above.kind != kind:
        above = None if above.inside is None else spans.get(above.inside)
    return above


class _Facts:
    """A trace with a trajectory."""

    def __init__(self, spans: dict[int, Made]) -> None:
        self.spans = spans
        root = spans.get(1)
        self.root = root if root is not None and root.name == "agent_loop" else None
        own = [span for span in spans.values() if self.agent_of(span) is None and span.identity]
        first = self.root or next(span for span in own if span.kind != "AGENT")
        assert first.identity is not None
        self.identity, self.run, self.project = first.identity, first.run, first.project
        named = [span.begin for span in spans.values() if span.identity]  # a judge's score has no name
        self.begin = self.root.begin if self.root else min(named)
        self.scores = [*self._evaluated(), *(_repeated_of(self.root) if self.root else [])]

    def around(self, span: Made, kind: str) -> Made | None:
        """Return the nearest span of a kind around a span."""
        return around(self.spans, span, kind)

    def agent_of(self, span: Made) -> Made | None:
        """Return the trajectory inside this one whose span or part a span is."""
        agent = span if span.kind == "AGENT" else self.around(span, "AGENT")
        return None if agent is self.root else agent

    def _evaluated(self) -> list[Given]:
        return [
            score_of(span, "trace")
            for span in self.spans.values()
            if span.evaluation and span.evaluation.name == "reward" and self.agent_of(span) is None
        ]

    def count(self, call: Made, which: int) -> int | None:
        """Return a count of a call: its own, or the sum over the nearest calls inside it."""
        if call.tokens[which] is not None:
            return call.tokens[which]
        return total(self.count(inner, which) for inner in self.calls() if self.around(inner, "LLM") is call)

    def calls(self) -> list[Made]:
        """Return all model calls, inner ones too."""
        return [span for span in self.spans.values() if span.kind == "LLM"]

    def trajectory(self) -> Trajectory:
        """Return the facts."""
        outer = [call for call in self.calls() if self.around(call, "LLM") is None]
        tools = [span for span in self.spans.values() if span.kind == "TOOL"]
        newest = max(self.scores, key=lambda score: score.rank, default=None)
        root = self.root
        counts = [total(self.count(call, which) for call in outer) for which in (0, 1)]
        return Trajectory(
            next(iter(self.spans.values())).trace_id, self.run, self.project, self.identity,
            "running" if root is None else "error" if root.error else "ok",
            root.error if root else "", self.begin, root.end if root else None,
            len(outer), len(tools), sum(bool(tool.error) for tool in tools), (counts[0], counts[1]),
            newest.value if newest else None, tuple(score.rank for score in self.scores),
            tuple(self.spans.values()),
        )  # fmt: skip


def total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of known numbers; None without any."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


# --- scores -------------------------------------------------------------------------------------------------


def score_of(span: Made, source: str) -> Given:
    """Return the score of an evaluation span, given at its start."""
    assert span.evaluation is not None
    has_comment = bool(span.evaluation.comment)
    return Given((True, span.begin, has_comment, -_SOURCES.index(source), span.id), span.evaluation.value)


def _repeated_of(root: Made) -> list[Given]:
    place = -_SOURCES.index("root")
    return [
        Given((at is not None, root.end if at is None else at, False, place, root.id), score.value)
        for score, at in root.repeated
    ]


def resolved(score: Made, trajectories: Iterable[_Facts]) -> list[_Facts]:
    """Return the trajectories that a score by identity fits; it counts if that is one."""
    known, wanted = list(trajectories), score.identity
    assert wanted is not None
    has_own = any(one.run == score.run for one in known)
    found = [
        one
        for one in known
        if (one.run == score.run or not has_own)
        and one.project == score.project
        and one.identity.validate == wanted.validate
        and str(one.identity.step) == str(wanted.step)
        and str(one.identity.sample) == str(wanted.sample)
        and wanted.rollout in (None, one.identity.rollout)
    ]
    if len(found) > 1:
        found = [one for one in found if one.begin <= score.begin] or found
    return found


def unresolved_of(recorded: Iterable[Made]) -> list[Made]:
    """Return the scores by identity that are of no trajectory."""
    spans = once(recorded)
    traces: dict[str, dict[int, Made]] = {}
    for span in spans:
        if not is_by_identity(span):
            traces.setdefault(span.trace_id, {})[span.span] = span
    facts = [_Facts(trace) for trace in traces.values()]
    return [span for span in spans if is_by_identity(span) and len(resolved(span, facts)) != 1]


# --- groups and steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Figures of trajectories: of a group or a step."""

    of: Sequence[Trajectory]

    @property
    def rewards(self) -> list[float]:
        """The rewards that are numbers."""
        return [one.reward for one in self.of if one.reward is not None]

    @property
    def spread(self) -> float | None:
        """Greatest less least reward; None with fewer than two."""
        return max(self.rewards) - min(self.rewards) if len(self.rewards) > 1 else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the rewards; None with fewer than two."""
        return stdev(self.rewards) if len(self.rewards) > 1 else None

    @property
    def seconds(self) -> list[float]:
        """Durations of those that have ended."""
        return [one.milliseconds / 1000 for one in self.of if one.milliseconds is not None]

    def _tool_errors(self) -> int | None:
        """Failed tool calls; None if a source says of no call whether it failed."""
        known = [one.tool_errors for one in self.of if one.tool_calls and one.tool_errors is not None]
        return sum(known) if known or not any(one.tool_calls for one in self.of) else None

    def row(self) -> dict[str, Number | None]:
        """Return what ``groups`` and ``steps`` tell."""
        return {
            "trajectories": len(self.of),
            "failed": sum(one.state == "error" for one in self.of),
            "running": sum(one.state == "running" for one in self.of),
            "rewarded": len(self.rewards),
            "reward_mean": mean_of(self.rewards),
            "reward_min": min(self.rewards, default=None),
            "reward_max": max(self.rewards, default=None),
            "turns_mean": mean(one.turns for one in self.of),
            "tool_calls": sum(one.tool_calls for one in self.of),
            "tool_errors": self._tool_errors(),
            "tokens_in": total(one.tokens[0] for one in self.of),
            "tokens_out": total(one.tokens[1] for one in self.of),
            "seconds_mean": mean_of(self.seconds),
        }


def mean_of(numbers: Sequence[float]) -> float | None:
    """Return a mean; None without numbers."""
    return mean(numbers) if numbers else None


def quantile(numbers: Sequence[float], share: float) -> float | None:
    """Return a quantile, between the two numbers that are nearest to it; None without numbers."""
    if not numbers:
        return None
    place = (len(numbers) - 1) * share
    below, ordered = math.floor(place), sorted(numbers)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Recording:
    """A recording, and what the account says of it."""

    def __init__(self, spans: list[Made]) -> None:
        self.spans = spans
        self.trajectories = trajectories_of(spans)
        newest = max(self.trajectories, key=lambda one: one.trace_id)
        self.run, self.project = newest.run, newest.project
        self.of_run = [one for one in self.trajectories if one.run == self.run]

    def groups(self) -> dict[tuple[Any, ...], list[Trajectory]]:
        """Return the trajectories of each group."""
        return by_key((one.group, one) for one in self.trajectories)

    def steps(self) -> dict[tuple[Any, ...], list[Trajectory]]:
        """Return the trajectories of each step."""
        return by_key((one.step, one) for one in self.trajectories)


def by_key(pairs: Iterable[tuple[tuple[Any, ...], Trajectory]]) -> dict[tuple[Any, ...], list[Trajectory]]:
    """Return trajectories by their keys."""
    found: dict[tuple[Any, ...], list[Trajectory]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return found


def seconds_of(one: Trajectory) -> float | None:
    """Return a duration; None while the trajectory runs."""
    return None if one.milliseconds is None else one.milliseconds / 1000
