"""Name the faults that a generated run can have, and say when and whom they hit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

FAULTS: Final = (
    "reward_missing",
    "reward_constant",
    "groups_without_spread",
    "replies_truncated",
    "replies_repetitive",
    "replies_empty",
    "tool_calls_unparsable",
    "tool_error_burst",
    "siblings_identical",
    "special_tokens_in_text",
    "context_edited",
    "answers_retokenized",
    "reward_disagrees",
    "policy_lag",
    "slow_worker",
    "sampler_mismatch",
    "training_lag",
    "training_left_out",
    "trained_reward_differs",
    "training_not_finite",
    "scores_unresolved",
)
"""A fault for each check, with the check's name."""
LENGTH_COLLAPSE: Final = "length_collapse"
"""Replies become a few words, and some become empty."""
TEMPLATE_BUG: Final = "template_bug"
"""The chat template leaks special tokens into replies and changes earlier turns of the context."""
LEFT_OUT_GROUPS: Final = "left_out_groups"
"""The trainer leaves out whole groups, and says why."""
PASSED_OVER: Final = "passed_over"
"""The trainer says nothing of some trajectories."""
SIX_CAUSES: Final = {
    "tool_error_burst": 6,
    "reward_disagrees": 9,
    LENGTH_COLLAPSE: 17,
    "slow_worker": 4,
    "siblings_identical": 14,
    TEMPLATE_BUG: 11,
}
"""Cause → the step of twenty at which it begins, in a run that has six of them."""
KNOWN: Final = (*FAULTS, LENGTH_COLLAPSE, TEMPLATE_BUG, LEFT_OUT_GROUPS, PASSED_OVER)
EXPECTED: Final = {
    LENGTH_COLLAPSE: ("replies_empty",),
    TEMPLATE_BUG: ("special_tokens_in_text", "context_edited"),
    LEFT_OUT_GROUPS: ("training_left_out",),
    PASSED_OVER: ("training_left_out",),
}
"""Fault → the checks that must find it; of a fault that is not here, the check with its name."""
FOLLOWING: Final = {
    "reward_constant": ("groups_without_spread", "reward_disagrees"),
    "groups_without_spread": ("reward_disagrees",),
    "replies_repetitive": ("replies_truncated", "training_left_out"),
    "replies_truncated": ("training_left_out",),
    "policy_lag": ("training_lag",),
    "scores_unresolved": ("training_left_out",),
    LENGTH_COLLAPSE: ("groups_without_spread",),
    "siblings_identical": ("groups_without_spread",),
    "special_tokens_in_text": ("tool_calls_unparsable",),
    TEMPLATE_BUG: ("tool_calls_unparsable",),
}
"""Fault → further checks that may find what follows from it.

A reply in a loop ends at the length limit, and the trainer leaves out replies that do. A trajectory whose
scores were not resolved looks as if the trainer had passed over it. Copies have one reward. Special tokens
may cut a tool call in two.
"""
_USUAL_BEGIN: Final = 0.55
"""Part of a run's steps before a fault that is the only one."""
_SHARES: Final = {
    "reward_missing": 0.1,
    "replies_truncated": 0.4,
    "replies_repetitive": 0.15,
    "replies_empty": 0.15,
    "tool_calls_unparsable": 0.25,
    "tool_error_burst": 0.7,
    "siblings_identical": 0.5,
    "special_tokens_in_text": 0.2,
    "context_edited": 0.3,
    "answers_retokenized": 0.3,
    "reward_disagrees": 0.3,
    TEMPLATE_BUG: 0.3,
    "training_lag": 0.2,
    "training_left_out": 0.1,
    LEFT_OUT_GROUPS: 0.4,
    PASSED_OVER: 0.1,
    "trained_reward_differs": 0.1,
    "training_not_finite": 0.02,
    "scores_unresolved": 0.05,
}
"""Fault → part of the trajectories, calls or groups that it hits; all without an entry."""


@dataclass(frozen=True)
class Faults:
    """The faults of a run.

    Attributes:
        begins: fault → the first step that has it.
    """

    begins: dict[str, int]

    def is_on(self, fault: str, step: int) -> bool:
        """Return whether a fault has begun at a step."""
        return fault in self.begins and step >= self.begins[fault]

    def hits(self, fault: str, step: int, draw: random.Random) -> bool:
        """Draw whether a fault hits one trajectory, call or group of a step."""
        return self.is_on(fault, step) and draw.random() < _SHARES.get(fault, 1.0)


def planted(names: tuple[str, ...], steps: int) -> Faults:
    """Return the named faults of a run; the six causes begin at steps of their own.

    Raises:
        ValueError: there is no fault of this name.
    """
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise ValueError(f"there is no fault {unknown[0]!r}; faults: {', '.join(KNOWN)}")
    if set(names) == set(SIX_CAUSES):
        return Faults({name: max(2, round(step * steps / 20)) for name, step in SIX_CAUSES.items()})
    return Faults(dict.fromkeys(names, max(2, round(_USUAL_BEGIN * steps))))
