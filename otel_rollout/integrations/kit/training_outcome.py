"""Record what training made of a trajectory, under the same names for every framework."""

from __future__ import annotations

import math
from typing import Final

import otel_rollout
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory

ADVANTAGE: Final = "advantage"
"""Score: the advantage that the trainer computed for the trajectory."""
TRAINED: Final = "trained"
"""Score: whether the loss used the trajectory; if not, the comment is the reason."""
TRAINED_TOKENS: Final = "trained_tokens"
"""Score: number of tokens that the loss counts."""


def record_training_outcome(
    trajectory: OpenTrajectory | str | None,
    *,
    advantage: float | None = None,
    trained: bool | None = None,
    trained_tokens: int | None = None,
    reason: str | None = None,
) -> None:
    """Record a trajectory's advantage and its part in the loss as scores. Never raises.

    Args:
        trajectory: an open trajectory, or :attr:`otel_rollout.Trajectory.id` of one that may have ended. For
            None, nothing is recorded.
        advantage: the advantage; None and NaN are not recorded.
        trained: whether the loss uses the trajectory; None if that is not known.
        trained_tokens: number of tokens that the loss counts; None if that is not known.
        reason: why the loss does not use the trajectory; only recorded with ``trained=False``.
    """
    if trajectory is None:
        return
    scores: dict[str, float | bool | int] = {}
    if advantage is not None and not math.isnan(advantage):
        scores[ADVANTAGE] = advantage
    if trained is not None:
        scores[TRAINED] = trained
    if trained_tokens is not None:
        scores[TRAINED_TOKENS] = trained_tokens
    for name, value in scores.items():
        comment = reason if name == TRAINED and not value else None
        if isinstance(trajectory, str):
            otel_rollout.score(name, value, comment=comment, trajectory=trajectory)
        else:
            trajectory.score(name, value, comment)
