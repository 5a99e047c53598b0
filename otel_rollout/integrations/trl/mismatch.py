"""Compare the log probabilities of TRL's sampler with those of its trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rollout import runtime
from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.trl.loss_mask import LossMask

SAMPLER: Final = "sampling_per_token_logps"
"""Column of TRL's batches: the sampler's log probabilities, if vLLM or a ``rollout_func`` gave them."""
TRAINER: Final = "old_per_token_logps"
"""Column of TRL's batches: those of the trainer's weights that generated; missing if the loss needs none."""

SAMPLER_VALUES: Final = "sampler_logprobs"
TRAINER_VALUES: Final = "trainer_logprobs"


def wants_tokens() -> bool:
    """Return whether the settings ask for values per token."""
    active = runtime.current()
    return active is not None and bool(getattr(active.settings, "training_tokens", False))


def columns(batch: Mapping[str, Any], trainer: Any, mask: LossMask) -> dict[str, list[Any]]:
    """Return the mismatch of each row; nothing if either side's log probabilities are missing.

    Args:
        batch: a batch of TRL's.
        trainer: the trainer's log probabilities of its tokens; None if they are not known.
        mask: the batch's tokens.
    """
    sampler = batch.get(SAMPLER)
    if sampler is None or trainer is None:
        return {}
    return logprob_mismatch(sampler, trainer, mask.of_model)


def token_values(batch: Mapping[str, Any], trainer: Any, mask: LossMask) -> dict[str, Sequence[Any]] | None:
    """Return the values per token that the batch has, if the settings ask for them.

    Each array has an entry for each token of the completion, also for those of tools.
    """
    if not wants_tokens():
        return None
    found = {SAMPLER_VALUES: batch.get(SAMPLER), TRAINER_VALUES: trainer, "mask": mask.counted}
    if mask.ratio is not None:
        found["importance_ratio"] = mask.ratio.expand(mask.counted.shape)
    advantages = batch.get("advantages")
    if advantages is not None and len(advantages.shape) > 1:
        found["advantages"] = advantages
    return {name: _rows(values, mask.lengths) for name, values in found.items() if values is not None}


def _rows(values: Any, lengths: Sequence[int]) -> list[Any]:
    """Return an array of numpy for each row, without padding; None for a row that is masked as a whole."""
    arrays = values.detach().float().cpu().numpy()
    return [row[:length] if length else None for row, length in zip(arrays, lengths, strict=True)]
