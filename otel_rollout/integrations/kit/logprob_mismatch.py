"""Measure how far the sampler's and the trainer's log probabilities of the same tokens differ.

The tensors are the caller's. Only their methods are used, so this module does not import torch. No tensor is
changed, and the results are copied from the device once.
"""

from __future__ import annotations

from typing import Any

from otel_rollout.base import training_scores
from otel_rollout.integrations.kit.token_sums import blocks


def logprob_mismatch(sampler: Any, trainer: Any, mask: Any) -> dict[str, list[Any]]:
    """Compare the log probabilities of a batch; return the columns of :class:`TrainingOutcomes`.

    A row without tokens in the mask has None in each column. If a log probability in the mask is NaN, the
    mean and the largest difference are NaN too, and the token counts for the share.

    Args:
        sampler: the sampler's log probabilities, a torch tensor of shape (batch, tokens).
        trainer: the trainer's log probabilities of the same tokens.
        mask: 1 for tokens that the model has made, 0 for those of tools, users and padding.

    Returns:
        The score's name → one value per row.
    """
    rows, tokens = sampler.shape
    results = mask.new_zeros((rows, 6)).double()
    for block in blocks(sampler, trainer, mask, results) if tokens else ():
        _reduce(*block)
    counts, means, largest, token, turns, over = results.T.tolist()
    known = [count > 0 for count in counts]
    return {
        training_scores.LOGPROB_DIFF_MEAN: _where(known, means),
        training_scores.LOGPROB_DIFF_MAX: _where(known, largest),
        training_scores.LOGPROB_DIFF_TOKEN: _where(known, map(int, token)),
        training_scores.LOGPROB_DIFF_TURN: _where(known, map(int, turns)),
        training_scores.LOGPROB_DIFF_SHARE: _where(known, over),
    }


def _where(known: list[bool], values: Any) -> list[Any]:
    return [value if is_known else None for is_known, value in zip(known, values, strict=True)]


def _reduce(sampler: Any, trainer: Any, mask: Any, results: Any) -> None:
    """Write the reductions of some rows into ``results``, a tensor of shape (rows, 6)."""
    is_model = mask.bool()
    counts = is_model.sum(1)
    differences = (sampler.float() - trainer.float()).abs_()
    # On a CPU, a product takes a third of the time. But what lies outside of the mask may be no number.
    if sampler.device.type == "cpu" and differences.sum().isfinite():
        differences.mul_(is_model)
    else:
        differences.masked_fill_(~is_model, 0.0)
    largest, token = differences.max(1)
    token = token.where(largest != 0, is_model.byte().argmax(1))  # without a difference, the first token
    is_over = (differences <= training_scores.LOGPROB_DIFF_LIMIT).logical_not_()
    results[:, 0] = counts
    results[:, 1] = differences.sum(1) / counts
    results[:, 2] = largest
    results[:, 3] = token
    results[:, 4] = _turns(is_model, token)
    results[:, 5] = is_over.sum(1) / counts


def _turns(is_model: Any, token: Any) -> Any:
    """Return the number of the model's turn that each row's token is in, from 1.

    A turn is an uninterrupted run of the model's tokens.
    """
    begins = is_model.clone()
    begins[:, 1:] &= ~is_model[:, :-1]
    position = token.new_ones(is_model.shape[1]).cumsum(0) - 1
    return begins.masked_fill_(position > token.unsqueeze(1), False).sum(1)
