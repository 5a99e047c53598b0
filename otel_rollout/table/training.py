"""Define the reasons that the view ``training`` gives, and SQL conditions on its rows."""

from __future__ import annotations

from typing import Final

NO_REASON: Final = "no reason given"
"""The view's reason for a trajectory that the trainer left out without a reason."""
PASSED_OVER: Final = "the trainer did not name it"
"""The view's reason for a trajectory that the trainer did not name, though it named others of the step."""
FILTERED: Final = "reason IS NOT NULL"
"""Condition that the loss did not use a trajectory: the trainer said so, or did not name it."""
DIFFERS: Final = "abs(reward_difference) > 0.001 * greatest(1, abs(reward), abs(trained_reward))"
"""Condition that the reward that was trained on is not the recorded one, on a row that has both.

The trainer's rewards have single precision, and a KL penalty is a sum over tokens: a thousandth is no
difference.
"""
