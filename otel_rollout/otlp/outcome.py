"""Determine the outcome of a trajectory from the lines of its trace, in any order.

Tail sampling decides before there is a table. The views ``roots``, ``trajectories`` and ``newest_scores``
have the same rules, for spans in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations, model_calls
from otel_rollout.otlp.evaluations import Evaluation, Rank
from otel_rollout.otlp.groups import Group
from otel_rollout.otlp.json_line import spans_of_json
from otel_rollout.otlp.score_identity import is_by_identity
from otel_rollout.otlp.span import UNREADABLE, Span

_MAX_DEPTH: Final = 32
"""Maximum nested spans that are followed, as in the view. Damaged spans may be parents of one another."""
_PATH: Final = (semconv.VALIDATE, semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N)

_Rank = tuple[Rank, int, str]
"""Sort key of a score: its rank, then its source (trace, identity, root), then the id of its span."""
_Path = tuple[Any, ...]
"""The identity that a span has, as in its trajectory's name; empty outside trajectories."""


class CallTokens:
    """The token counts of a trace's model calls, each once.

    A model call is an LLM span that is not inside another one. A count that a model call lacks is the sum
    over the nearest LLM spans inside it.
    """

    def __init__(self) -> None:
        self._spans: dict[str, tuple[str, Mapping[str, int] | None]] = {}

    def add(self, span_id: str, parent_id: str, counts: Mapping[str, int] | None) -> None:
        """Add a span, or replace it; ``counts`` is None unless the span is an LLM span."""
        self._spans[span_id] = parent_id, counts

    def total(self, name: str) -> int | None:
        """Return the sum of a count over the trace's model calls; None where no span has it."""
        inside: dict[str, list[str]] = {}
        for span_id, (parent_id, counts) in self._spans.items():
            if counts is not None:
                inside.setdefault(self._call_around(parent_id), []).append(span_id)
        return self._sum(inside.get("", ()), inside, name)

    def _sum(
        self, calls: Iterable[str], inside: Mapping[str, Sequence[str]], name: str, depth: int = 0
    ) -> int | None:
        known = [count for call in calls if (count := self._count(call, inside, name, depth)) is not None]
        return sum(known) if known else None

    def _count(self, call: str, inside: Mapping[str, Sequence[str]], name: str, depth: int) -> int | None:
        own = (self._spans[call][1] or {}).get(name)
        if own is not None or depth == _MAX_DEPTH:
            return own
        return self._sum(inside.get(call, ()), inside, name, depth + 1)

    def _call_around(self, span_id: str) -> str:
        """Return the id of the nearest LLM span: this span or an ancestor; empty without one."""
        for _ in range(_MAX_DEPTH):
            if span_id not in self._spans:
                break
            parent_id, counts = self._spans[span_id]
            if counts is not None:
                return span_id
            span_id = parent_id
        return ""


class TrajectoryOutcome:
    """The outcome of a trajectory, as far as its trace has been read.

    Args:
        score: name of the score that is wanted.

    Attributes:
        group: the trajectory's group; None if it has no group, or no line has named one yet.
        group_size: number of trajectories in the group; 0 if the root is missing or does not say.
        has_ended: whether the root has been read.
        has_failed: whether any span has the status error.
        seconds: duration of the root; 0 until it has been read.
        is_score: whether the trace is a score by identity, and no trajectory.
        rollout_n: index of the trajectory, or of the scored one, in the group.
    """

    def __init__(self, score: str) -> None:
        self._score_name = score
        self.group: Group | None = None
        self.group_size = 0
        self.has_ended = False
        self.has_failed = False
        self.seconds = 0.0
        self.is_score = False
        self.rollout_n: Any = None
        self._path: _Path = ()
        self._tokens = CallTokens()
        self._parts: set[str] = set()
        """Ids of the spans that begin a trajectory inside this one."""
        self._scores: dict[tuple[str, _Path], tuple[_Rank, Evaluation]] = {}
        """Id of a scored span and the score's identity → the newest score of both, with its rank."""
        self._own: tuple[_Rank, Evaluation] | None = None
        """The newest score that the root repeats or that was given by identity, with its rank."""

    @property
    def tokens(self) -> int:
        """Output tokens of the trajectory's model calls."""
        return self._tokens.total(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) or 0

    @property
    def is_scored(self) -> bool:
        """Whether the trajectory has the score that is wanted."""
        return self._newest_score() is not None

    @property
    def score(self) -> float | None:
        """The newest score, infinities included; None if it is missing or no number."""
        newest = self._newest_score()
        return None if newest is None else evaluations.number_of(newest.value)

    def take(self, score: TrajectoryOutcome) -> None:
        """Add a score by identity; adding it again changes nothing."""
        for (rank, _, span_id), given in score._scores.values():
            self._add_own(given, (rank, 2, span_id))

    def add(self, line: bytes) -> None:
        """Add a line of the trace; an unreadable line changes nothing."""
        try:
            for span in spans_of_json(orjson.loads(line)):
                self._add_span(span)
        except UNREADABLE:
            return

    def _add_span(self, span: Span) -> None:
        attributes = span.scalars()
        self.has_failed |= span.has_failed
        self._tokens.add(span.span_id, span.parent_id, model_calls.usage_of(attributes))
        if attributes.get(semconv.BEGINS_TRAJECTORY) is True:
            self._parts.add(span.span_id)
        self._add_evaluation(span, attributes)
        is_root = not span.parent_id
        if is_root and is_by_identity(attributes):
            self.is_score = self.has_ended = True
            self.group, self.rollout_n = _group_of(attributes), attributes.get(semconv.ROLLOUT_N)
            return
        if is_root or (self.group is None and not self.has_ended):
            self.group = _group_of(attributes)
        if is_root:
            self._add_root(span, attributes)

    def _add_root(self, span: Span, attributes: Mapping[str, Any]) -> None:
        self.has_ended = True
        self.rollout_n = attributes.get(semconv.ROLLOUT_N)
        self._path = _path_of(attributes)
        self.seconds = span.seconds
        size = attributes.get(semconv.GROUP_SIZE)
        self.group_size = size if isinstance(size, int) else 0
        for score in evaluations.repeated_in(attributes, span.end_ns):
            self._add_own(score, (score.rank, 1, ""))

    def _add_evaluation(self, span: Span, attributes: Mapping[str, Any]) -> None:
        score = evaluations.recorded_in(attributes, span.start_ns)
        if score is None or score.name != self._score_name:
            return
        place = span.parent_id, _path_of(attributes)
        rank = score.rank, 3, span.span_id
        if place not in self._scores or rank >= self._scores[place][0]:
            self._scores[place] = rank, score

    def _add_own(self, score: Evaluation, rank: _Rank) -> None:
        if score.name == self._score_name and (self._own is None or rank >= self._own[0]):
            self._own = rank, score

    def _newest_score(self) -> Evaluation | None:
        """Return the newest score that is not of a trajectory inside this one."""
        found = [
            ranked
            for (around, path), ranked in self._scores.items()
            if not self.has_ended or (around not in self._parts and path in ((), self._path))
        ]
        found += [] if self._own is None else [self._own]
        return max(found, key=lambda ranked: ranked[0])[1] if found else None


Outcome = TypeVar("Outcome", bound=TrajectoryOutcome)


def trajectories_in(traces: Iterable[Outcome]) -> list[Outcome]:
    """Return the trajectories of a group's traces, with the group's scores by identity."""
    listed = list(traces)
    trajectories = [trace for trace in listed if not trace.is_score]
    for score in (trace for trace in listed if trace.is_score):
        fitting = [one for one in trajectories if score.rollout_n in (None, one.rollout_n)]
        if len(fitting) == 1:
            fitting[0].take(score)
    return trajectories


def _path_of(attributes: Mapping[str, Any]) -> _Path:
    return tuple(map(attributes.get, _PATH)) if semconv.is_of_trajectory(attributes) else ()


def _group_of(attributes: Mapping[str, Any]) -> Group | None:
    group = Group.of({key: value for key, value in attributes.items() if key in semconv.IDENTITY})
    return None if group.sample_index is None else group
