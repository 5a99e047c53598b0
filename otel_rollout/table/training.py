"""Name the columns of the view ``training``, and join them to trajectories for those who ask for them."""

from __future__ import annotations

import re
from typing import Final

COLUMNS: Final = (
    "has_outcome",
    "trained",
    "reason",
    "trained_step",
    "trained_tokens",
    "advantage",
    "return_value",
    "trained_reward",
    "kl_penalty",
    "reward_difference",
    "lag",
    "lag_source",
    "mismatch",
    "mismatch_mean",
    "mismatch_share",
    "mismatch_token",
    "mismatch_turn",
    "importance_ratio",
    "not_finite",
)
"""Columns of the view besides the identity."""
NO_REASON: Final = "no reason given"
"""The view's reason of a trajectory that the trainer left out without one."""
PASSED_OVER: Final = "the trainer did not name it"
"""The view's reason of a trajectory of which the trainer said nothing, though it named others of the step."""
FILTERED: Final = "reason IS NOT NULL"
"""Condition that the loss did not use a trajectory, by the trainer's word or by its silence."""
DIFFERS: Final = (
    "NOT isnan(reward_difference) "
    "AND abs(reward_difference) > 0.001 * greatest(1, abs(reward), abs(trained_reward))"
)
"""Condition that the reward that was trained on is not the recorded one, on a row that has both.

The trainer's rewards have single precision, and a KL penalty is a sum over tokens: a thousandth is no
difference.
"""
ODD: Final = 1e150
"""Magnitude from which a number counts as NaN does, because its square is infinite. The views have it too."""
TRAJECTORIES: Final = (
    f"(SELECT trajectories.*, {', '.join(f'training.{name}' for name in COLUMNS)} "  # noqa: S608
    "FROM trajectories JOIN training ON trajectories.trace_id = training.trace_id) AS with_training"
)
"""The view ``trajectories`` with these columns. Without them, the view is cheaper."""
_WORD: Final = re.compile(r"\w+")


def is_named_in(*texts: str | None) -> bool:
    """Return whether a text names one of the columns."""
    return any(not set(COLUMNS).isdisjoint(_WORD.findall(text)) for text in texts if text)
