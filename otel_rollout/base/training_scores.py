"""Name the scores that say how training used a trajectory.

Integrations record these scores; the table and the pages show them.
"""

from __future__ import annotations

from typing import Final

ADVANTAGE: Final = "advantage"
"""The advantage that the trainer computed; if it is per token, the mean over the trained tokens."""
RETURN: Final = "return"
"""The return; if it is per token, the mean over the trained tokens."""
TRAINED_REWARD: Final = "trained_reward"
"""The reward from which the trainer computed the advantage: the sum over the trajectory's tokens, after
penalties."""
KL_PENALTY: Final = "kl_penalty"
"""What a KL penalty took off the reward: the sum over the trajectory's tokens."""
TRAINED: Final = "trained"
"""Whether the loss used the trajectory; if not, the comment is the reason."""
TRAINED_TOKENS: Final = "trained_tokens"
"""Number of tokens that the loss counts."""
TRAINED_STEP: Final = "trained_step"
"""The optimizer step that learned from the trajectory, where that is not its own step."""
POLICY_LAG: Final = "policy_lag"
"""Versions from the oldest weights that made tokens of the trajectory to the weights that trained on it."""
LOGPROB_DIFF_MEAN: Final = "logprob_diff_mean"
"""Mean absolute difference of the sampler's and the trainer's log probabilities, over the model's tokens."""
LOGPROB_DIFF_MAX: Final = "logprob_diff_max"
"""Maximum absolute difference of the sampler's and the trainer's log probabilities."""
LOGPROB_DIFF_TOKEN: Final = "logprob_diff_token"  # noqa: S105 - no password
"""Index, from 0, of the response's token with that maximum."""
LOGPROB_DIFF_TURN: Final = "logprob_diff_turn"
"""Number, from 1, of the model turn that made the token with that maximum."""
LOGPROB_DIFF_SHARE: Final = "logprob_diff_share"
"""Share of the model's tokens whose difference exceeds ``LOGPROB_DIFF_LIMIT``."""
LOGPROB_DIFF_LIMIT: Final = 0.1
"""Difference above which a token counts for ``LOGPROB_DIFF_SHARE``, in nats."""
IMPORTANCE_RATIO: Final = "importance_ratio"
"""Mean weight by which the trainer corrects for the sampler's policy, over the trained tokens."""
TRAINING_TOKENS: Final = "training_tokens"
"""Number of tokens whose values per token are stored with this score; only on request."""
NUMBERS: Final = (
    TRAINED,
    TRAINED_STEP,
    TRAINED_TOKENS,
    ADVANTAGE,
    RETURN,
    TRAINED_REWARD,
    KL_PENALTY,
    POLICY_LAG,
    LOGPROB_DIFF_MAX,
    LOGPROB_DIFF_MEAN,
    LOGPROB_DIFF_SHARE,
    LOGPROB_DIFF_TOKEN,
    LOGPROB_DIFF_TURN,
    IMPORTANCE_RATIO,
)
"""Scores that are numbers; a bool is 0 or 1."""
UNUSED: Final = "training ended before it was used"
"""Comment of ``trained`` for a trajectory that waited in a buffer when training ended, as is usual."""
