"""Rules of tail sampling: which groups are exported, by what came of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.evaluations import Evaluation
from otel_rollout.otlp.reader import spans_as_json
from otel_rollout.recording.sampling import Group, group_hash

_STATUS_ERROR: Final = 2
_USUAL_TRAJECTORIES: Final = 1000
"""Number of the latest trajectories whose median says what is usual."""
_MIN_USUAL_TRAJECTORIES: Final = 20
"""Number of trajectories below which nothing counts as unusual."""
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class TrajectoryOutcome:
    """What is known of a trace so far.

    Args:
        score: name of the score that counts.

    Attributes:
        first_seen: when the first line came, by the monotonic clock.
        last_seen: when the last line came.
        group: the trajectory's group; None while no line has named one, and for a trajectory of none.
        group_size: number of trajectories in the group, if the root says so; else 0.
        has_ended: whether the root is there.
        has_failed: whether any span is an error.
        size: bytes of the lines.
        tokens: tokens that models gave in the trajectory.
        seconds: duration of the root.
    """

    def __init__(self, score: str) -> None:
        self._score_name = score
        self.first_seen = self.last_seen = time.monotonic()
        self.group: Group | None = None
        self.group_size = 0
        self.has_ended = False
        self.has_failed = False
        self.size = 0
        self.tokens = 0
        self.seconds = 0.0
        self._root_id = ""
        # Id of the scored span → its newest score. The score of a sub-trajectory is not the trajectory's own.
        self._scores: dict[str, Evaluation] = {}

    @property
    def is_scored(self) -> bool:
        """Whether the trajectory has the score that counts."""
        return self._newest_score() is not None

    @property
    def score(self) -> float | None:
        """The newest score, infinities included; None if the score is no number."""
        newest = self._newest_score()
        return None if newest is None else evaluations.number_of(newest.value)

    def add(self, line: bytes) -> None:
        """Learn from a line of the trace; an unreadable line counts by its size alone."""
        self.last_seen = time.monotonic()
        self.size += len(line)
        try:
            for span in spans_as_json(orjson.loads(line)):
                self._add_span(span)
        except _UNREADABLE:
            return

    def _add_span(self, span: Mapping[str, Any]) -> None:
        attributes = {entry["key"]: _scalar(entry["value"]) for entry in span.get("attributes", ())}
        self.has_failed |= span.get("status", {}).get("code") == _STATUS_ERROR
        if attributes.get(semconv.SPAN_KIND) == semconv.KIND_LLM:
            self.tokens += int(attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) or 0)
        if semconv.GEN_AI_EVALUATION_NAME in attributes:
            self._add_evaluation(span, attributes)
        is_root = not span.get("parentSpanId")
        if is_root or (self.group is None and not self.has_ended):
            self.group = _group_of(attributes)
        if is_root:
            self._add_root(span, attributes)

    def _add_root(self, span: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        self.has_ended = True
        self._root_id = str(span["spanId"])
        end_ns = int(span["endTimeUnixNano"])
        self.seconds = (end_ns - int(span["startTimeUnixNano"])) / 1e9
        size = attributes.get(semconv.GROUP_SIZE)
        self.group_size = size if isinstance(size, int) else 0
        for score in evaluations.repeated_in(attributes, end_ns):
            self._add_score(self._root_id, score)

    def _add_evaluation(self, span: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        score = evaluations.recorded_in(attributes, int(span["startTimeUnixNano"]))
        if score is not None:
            # A score given inside lies below the span that ran then, which need not be the root.
            is_inside = score.origin == semconv.ORIGIN_PROCESS
            self._add_score("" if is_inside else str(span.get("parentSpanId", "")), score)

    def _add_score(self, scored_id: str, score: Evaluation) -> None:
        known = self._scores.get(scored_id)
        if score.name == self._score_name and (known is None or score.rank >= known.rank):
            self._scores[scored_id] = score

    def _newest_score(self) -> Evaluation | None:
        own = ("", self._root_id) if self.has_ended else self._scores
        scores = [self._scores[id_] for id_ in own if id_ in self._scores]
        return max(scores, key=lambda score: score.rank, default=None)


def _group_of(attributes: Mapping[str, Any]) -> Group | None:
    group = Group.of({key: value for key, value in attributes.items() if key in semconv.IDENTITY})
    return None if group.sample_index is None else group


def _scalar(value: Any) -> Any:
    """Return an attribute's value, an integer as such; None for a list."""
    for type_, content in (value or {}).items():
        scalar = int(content) if type_ == "intValue" else content
        return scalar if isinstance(scalar, (bool, int, float, str)) else None
    return None


class Decision(NamedTuple):
    """Whether a group is exported, and why."""

    is_kept: bool
    reason: str


class TailRules:
    """Decides about groups by what came of their trajectories.

    Args:
        reasons: reason to keep a group → its number, as ``Settings.tail_rules`` gives them.
        budget: bytes of a step's spans that are exported at most; 0: any number.
        seed: chooses the share that is kept whatever came of it.

    Attributes:
        spent: step → bytes of the step's groups that are kept already.
        needs_scores: whether any of the reasons is about scores.
    """

    SHARE_FOR_ERRORS: Final = 0.25
    """Part of a step's bytes that only groups with errors may take: errors are not known beforehand."""

    def __init__(self, reasons: Mapping[str, float], budget: int, seed: str) -> None:
        self._reasons = reasons
        self._budget = budget
        self._seed = f"outcome {seed}"
        self.spent: dict[str, int] = {}
        # Validation and training each have a median of their own.
        self._seconds: dict[bool, deque[float]] = _latest_values()
        self._tokens: dict[bool, deque[float]] = _latest_values()
        self.needs_scores = not reasons.keys().isdisjoint({"zero", "spread"})

    def learn(self, group: Group, trajectories: Collection[TrajectoryOutcome]) -> None:
        """Let trajectories that have ended count for what is usual."""
        for trajectory in trajectories:
            if trajectory.has_ended:
                self._seconds[bool(group.validate)].append(trajectory.seconds)
                self._tokens[bool(group.validate)].append(trajectory.tokens)

    def decide(self, group: Group, trajectories: Sequence[TrajectoryOutcome]) -> Decision:
        """Decide by what is known of the group, without regard to the budget."""
        reason = self._reason(group, trajectories)
        if reason is not None:
            return Decision(True, reason)
        if not any(trajectory.has_ended for trajectory in trajectories):
            return Decision(True, "elsewhere")
        if self.needs_scores and not all(trajectory.is_scored for trajectory in trajectories):
            return Decision(False, "unscored")
        return Decision(False, "ordinary")

    def _reason(self, group: Group, trajectories: Sequence[TrajectoryOutcome]) -> str | None:
        """Return the first reason to keep the group, in the order below."""
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
        """Return the decision that the step's budget allows, and spend the budget."""
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
    """Return whether the greatest value is more than ``factor`` times the usual one."""
    if factor is None or len(usual) < _MIN_USUAL_TRAJECTORIES or not values:
        return False
    middle = median(usual)
    return middle > 0 and max(values) > factor * middle
