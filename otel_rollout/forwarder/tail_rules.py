"""Apply the rules of tail sampling: which groups are exported, by their outcome."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations, model_calls
from otel_rollout.otlp.call_tokens import CallTokens
from otel_rollout.otlp.evaluations import Evaluation
from otel_rollout.otlp.json_span import JsonSpan, spans_of_json
from otel_rollout.otlp.score_identity import is_by_identity
from otel_rollout.recording.sampling import Group, group_hash

_USUAL_TRAJECTORIES: Final = 1000
"""Latest trajectories whose median duration and token count are the usual ones."""
_MIN_USUAL_TRAJECTORIES: Final = 20
"""Minimum trajectories for a median; with fewer, no trajectory counts as slow or long."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class TrajectoryOutcome:
    """The outcome of a trajectory, as far as its trace has been read.

    Args:
        score: name of the score that rules use.

    Attributes:
        first_seen: monotonic time of the first line.
        last_seen: monotonic time of the last line.
        group: the trajectory's group; None if it has no group, or no line has named one yet.
        group_size: number of trajectories in the group; 0 if the root is missing or does not say.
        has_ended: whether the root has been read.
        has_failed: whether any span has the status error.
        size: bytes of the trace's lines.
        seconds: duration of the root; 0 until it has been read.
        is_score: whether the trace is a score by identity, and no trajectory.
        rollout_n: index of the trajectory, or of the scored one, in the group.
    """

    def __init__(self, score: str) -> None:
        self._score_name = score
        self.first_seen = self.last_seen = time.monotonic()
        self.group: Group | None = None
        self.group_size = 0
        self.has_ended = False
        self.has_failed = False
        self.size = 0
        self.seconds = 0.0
        self.is_score = False
        self.rollout_n: Any = None
        self._root_id = ""
        self._tokens: CallTokens[str] = CallTokens()
        # Id of the scored span → its newest score. The score of a sub-trajectory does not count here.
        self._scores: dict[str, Evaluation] = {}

    @property
    def tokens(self) -> int:
        """Output tokens of the trajectory's model calls."""
        return self._tokens.total(semconv.GEN_AI_USAGE_OUTPUT_TOKENS)[0] or 0

    @property
    def is_scored(self) -> bool:
        """Whether the trajectory has the score that rules use."""
        return self._newest_score() is not None

    @property
    def score(self) -> float | None:
        """The newest score, infinities included; None if it is missing or no number."""
        newest = self._newest_score()
        return None if newest is None else evaluations.number_of(newest.value)

    def take(self, score: TrajectoryOutcome) -> None:
        """Add a score by identity; adding it again changes nothing."""
        for given in score._scores.values():
            self._add_score("", given)

    def add(self, line: bytes) -> None:
        """Add a line of the trace; of an unreadable line only the size counts."""
        self.last_seen = time.monotonic()
        self.size += len(line)
        try:
            for span in spans_of_json(orjson.loads(line)):
                self._add_span(span)
        except _UNREADABLE:
            return

    def _add_span(self, span: JsonSpan) -> None:
        attributes = span.scalars()
        self.has_failed |= span.has_failed
        is_call = model_calls.kind_of(attributes) == semconv.KIND_LLM
        self._tokens.add(
            span.span_id, span.parent_id or None, model_calls.counts_of(attributes) if is_call else None
        )
        if semconv.GEN_AI_EVALUATION_NAME in attributes:
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

    def _add_root(self, span: JsonSpan, attributes: Mapping[str, Any]) -> None:
        self.has_ended = True
        self.rollout_n = attributes.get(semconv.ROLLOUT_N)
        self._root_id = span.span_id
        end_ns = span.end_ns
        self.seconds = (end_ns - span.start_ns) / 1e9
        size = attributes.get(semconv.GROUP_SIZE)
        self.group_size = size if isinstance(size, int) else 0
        for score in evaluations.repeated_in(attributes, end_ns):
            self._add_score(self._root_id, score)

    def _add_evaluation(self, span: JsonSpan, attributes: Mapping[str, Any]) -> None:
        score = evaluations.recorded_in(attributes, span.start_ns)
        if score is not None:
            # A score given inside the trajectory is a child of the active span, not always of the root.
            is_inside = score.origin in (semconv.ORIGIN_PROCESS, semconv.ORIGIN_IDENTITY)
            self._add_score("" if is_inside else span.parent_id, score)

    def _add_score(self, scored_id: str, score: Evaluation) -> None:
        known = self._scores.get(scored_id)
        if score.name == self._score_name and (known is None or score.rank >= known.rank):
            self._scores[scored_id] = score

    def _newest_score(self) -> Evaluation | None:
        own = ("", self._root_id) if self.has_ended else self._scores
        scores = [self._scores[id_] for id_ in own if id_ in self._scores]
        return max(scores, key=lambda score: score.rank, default=None)


def trajectories_in(traces: Collection[TrajectoryOutcome]) -> list[TrajectoryOutcome]:
    """Return the trajectories of a group's traces, with the group's scores by identity."""
    trajectories = [trace for trace in traces if not trace.is_score]
    for score in (trace for trace in traces if trace.is_score):
        fitting = [one for one in trajectories if score.rollout_n in (None, one.rollout_n)]
        if len(fitting) == 1:
            fitting[0].take(score)
    return trajectories


def _group_of(attributes: Mapping[str, Any]) -> Group | None:
    group = Group.of({key: value for key, value in attributes.items() if key in semconv.IDENTITY})
    return None if group.sample_index is None else group


class Decision(NamedTuple):
    """Whether a group is exported, and why."""

    is_kept: bool
    reason: str


class TailRules:
    """Decides which groups are exported, by the outcome of their trajectories.

    Args:
        reasons: rule → its number, from ``Settings.tail_rules``; a rule is a reason to keep a group.
        budget: maximum bytes of spans exported per step; 0: no limit.
        seed: selects the groups that rule ``rate`` keeps, whatever their outcome.

    Attributes:
        spent: step → bytes of the groups kept so far.
        needs_scores: whether any rule uses scores.
    """

    SHARE_FOR_ERRORS: Final = 0.25
    """Fraction of a step's budget reserved for groups with errors, which may come late in the step."""

    def __init__(self, reasons: Mapping[str, float], budget: int, seed: str) -> None:
        self._reasons = reasons
        self._budget = budget
        self._seed = f"outcome {seed}"
        self.spent: dict[str, int] = {}
        # Training and validation (the key) have separate medians.
        self._seconds: dict[bool, deque[float]] = _latest_values()
        self._tokens: dict[bool, deque[float]] = _latest_values()
        self.needs_scores = not reasons.keys().isdisjoint({"zero", "spread"})

    def learn(self, group: Group, trajectories: Collection[TrajectoryOutcome]) -> None:
        """Add ended trajectories to the latest durations and token counts."""
        for trajectory in trajectories:
            if trajectory.has_ended:
                self._seconds[bool(group.validate)].append(trajectory.seconds)
                self._tokens[bool(group.validate)].append(trajectory.tokens)

    def decide(self, group: Group, trajectories: Sequence[TrajectoryOutcome]) -> Decision:
        """Decide by the group's trajectories, without regard to the budget."""
        reason = self._reason(group, trajectories)
        if reason is not None:
            return Decision(True, reason)
        if not any(trajectory.has_ended for trajectory in trajectories):
            return Decision(True, "elsewhere")
        if self.needs_scores and not all(trajectory.is_scored for trajectory in trajectories):
            return Decision(False, "unscored")
        return Decision(False, "ordinary")

    def _reason(self, group: Group, trajectories: Sequence[TrajectoryOutcome]) -> str | None:
        """Return the first rule below that keeps the group; None if none does."""
        reasons, is_validation = self._reasons, bool(group.validate)
        scored = [t for t in trajectories if t.is_scored]
        scores = [t.score for t in scored if t.score is not None]
        ended = [t for t in trajectories if t.has_ended]
        holds = {
            "errors": any(t.has_failed for t in trajectories),
            "validation": is_validation,
            "spread": bool(scores) and max(scores) - min(scores) > reasons.get("spread", 0),
            "zero": bool(scored) and all(t.score == 0 for t in scored),
            "slow": _is_beyond([t.seconds for t in ended], self._seconds[is_validation], reasons.get("slow")),
            "long": _is_beyond([t.tokens for t in ended], self._tokens[is_validation], reasons.get("long")),
            "rate": group_hash(group, self._seed) < reasons.get("rate", 0),
        }
        return next((name for name, does_hold in holds.items() if does_hold and name in reasons), None)

    def admit(self, step: str, decision: Decision, size: int) -> Decision:
        """Return the decision that the step's budget allows; charge the budget."""
        if not decision.is_kept or not self._budget:
            return decision
        share = 1.0 if decision.reason == "errors" else 1.0 - self.SHARE_FOR_ERRORS
        if self.spent.get(step, 0) + size > share * self._budget:
            return Decision(False, "budget")
        self.spent[step] = self.spent.get(step, 0) + size
        return decision


def _latest_values() -> dict[bool, deque[float]]:
    return {is_validation: deque(maxlen=_USUAL_TRAJECTORIES) for is_validation in (False, True)}


def _is_beyond(values: Sequence[float], usual: Sequence[float], factor: float | None) -> bool:
    """Return whether the greatest value exceeds ``factor`` times the usual median."""
    if factor is None or len(usual) < _MIN_USUAL_TRAJECTORIES or not values:
        return False
    middle = median(usual)
    return middle > 0 and max(values) > factor * middle
