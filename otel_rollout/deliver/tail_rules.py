"""Apply the rules of tail sampling: which groups are exported, by their outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from otel_rollout.otlp.groups import Group, group_hash
from otel_rollout.otlp.outcome import TrajectoryOutcome

_USUAL_TRAJECTORIES: Final = 1000
"""Latest trajectories whose median duration and token count are the usual ones."""
_MIN_USUAL_TRAJECTORIES: Final = 20
"""Minimum trajectories for a median; with fewer, no trajectory counts as slow or long."""


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
        """Return the name of the first rule that keeps the group; None if no rule does."""
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
