"""Name what the view ``training`` says, and conditions on its rows."""

from __future__ import annotations

from typing import Final

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
