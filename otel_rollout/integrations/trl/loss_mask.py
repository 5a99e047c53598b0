"""Read the columns of TRL's batches: which tokens the loss counts, and log probabilities of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.kit.training_outcome import wants_token_values

CUT_OFF: Final = "the completion was cut off, and mask_truncated_completions is set"
OUT_OF_BOUNDS: Final = "the importance sampling ratio is out of bounds"
MASKED: Final = "no token of the completion is in the loss"


@dataclass(frozen=True)
class LossMask:
    """The tokens of a batch that the loss counts, as far as the batch says.

    Attributes:
        of_model: 1 for tokens of the model, 0 for those of tools and for padding. A tensor of shape (rows,
            tokens); so are the others.
        counted: 1 for tokens of the model that the importance sampling ratio does not mask.
        ratio: weight of each token, or of each row with one column, by which the trainer corrects for the
            sampler's policy; None without a correction.
        lengths: tokens of each row's completion that the trainer has not masked, also those of tools.
        tokens: number of counted tokens of each row.
        reasons: why the loss counts no token of a row; None if it counts some.
    """

    of_model: Any
    counted: Any
    ratio: Any
    lengths: list[int]
    tokens: list[int]
    reasons: list[str | None]

    @classmethod
    def of(cls, trainer: Any, batch: Mapping[str, Any]) -> LossMask:
        """Return the mask of a batch of a trainer, as ``_generate_and_score_completions`` returns it."""
        of_model, ratio = batch["completion_mask"], batch.get("importance_sampling_ratio")
        completed = generated = tokens = of_model.sum(dim=1).tolist()
        if "tool_mask" in batch:
            of_model = of_model * batch["tool_mask"]
            generated = tokens = of_model.sum(dim=1).tolist()
        counted = of_model
        if ratio is not None and _multiplies(trainer):
            counted = of_model * (ratio != 0)
            tokens = counted.sum(dim=1).tolist()
        is_cut = bool(getattr(trainer, "mask_truncated_completions", False))
        reasons = [reason(is_cut, *row) for row in zip(completed, generated, tokens, strict=True)]
        return cls(of_model, counted, ratio, completed, tokens, reasons)

    def times(self, factor: Any, reason: str) -> LossMask:
        """Return the mask that counts only tokens for which a factor is not 0; of other rows, say why."""
        counted = self.counted * (factor != 0)
        tokens = counted.sum(dim=1).tolist()
        reasons = [old or (None if n else reason) for old, n in zip(self.reasons, tokens, strict=True)]
        return replace(self, counted=counted, tokens=tokens, reasons=reasons)

    def mean(self, values: Any) -> list[float]:
        """Return the mean of values per token over the model's tokens; 0 for a row without any."""
        masked = values.masked_fill(self.of_model == 0, 0.0)
        means: list[float] = (masked.sum(dim=1) / self.of_model.sum(dim=1).clamp(min=1)).tolist()
        return means

    def importance_ratios(self) -> list[float | None] | None:
        """Return each row's mean weight over the model's tokens; None for a row without any."""
        if self.ratio is None:
            return None
        ratios = self.ratio.squeeze(1).tolist() if self.ratio.shape[1] == 1 else self.mean(self.ratio)
        has_tokens = self.of_model.any(dim=1).tolist()
        return [ratio if known else None for ratio, known in zip(ratios, has_tokens, strict=True)]


def _multiplies(trainer: Any) -> bool:
    """Return whether a trainer's loss multiplies each token by the importance sampling ratio."""
    is_gmpo = any(base.__name__ == "GMPOTrainer" for base in type(trainer).__mro__)
    return not is_gmpo and getattr(trainer, "loss_type", None) != "vespo"


def reason(is_cut: bool, completed: int, of_model: int, counted: int) -> str | None:
    """Return why the loss counts no token of a row; None if it counts some.

    Args:
        is_cut: whether the trainer masks completions that were cut off.
        completed: tokens of the completion that the trainer has not masked.
        of_model: those that the model has generated.
        counted: those that the loss counts.
    """
    if counted:
        return None
    if not completed and is_cut:
        return CUT_OFF
    return OUT_OF_BOUNDS if of_model else MASKED


# --- log probabilities of TRL's sampler and of its trainer -------------------------------------------------


SAMPLER: Final = "sampling_per_token_logps"
"""Column of TRL's batches: the sampler's log probabilities, if vLLM or a ``rollout_func`` gave them."""
TRAINER: Final = "old_per_token_logps"
"""Column of TRL's batches: those of the trainer's weights that generated; missing if the loss needs none."""

SAMPLER_VALUES: Final = "sampler_logprobs"
TRAINER_VALUES: Final = "trainer_logprobs"


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
    if not wants_token_values():
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
