"""Follow the rows of TRL's batches through the loss: which steps learn from which of their tokens.

The columns of a batch say which tokens the loss counts, and have the log probabilities of sampler and
trainer. TRL generates for several optimizer steps at once, shuffles the rows, splits them into micro-batches,
and may use each row several times. So a column of the batch holds the number of each row. TRL shuffles and
splits this column with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import variable_set
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.kit.training_outcome import wants_token_values
from otel_rollout.integrations.state import state
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl.batch import GenerationBatch
from otel_rollout.integrations.trl.patched_modules import TRAINERS, seams
from otel_rollout.integrations.trl.progress import Round, Use, progress_of

ROW: Final = "otel_rollout_row"
"""Column that is added to TRL's batches: the number of each row among all rows of the trainer."""
CUT_OFF: Final = "the completion was cut off, and mask_truncated_completions is set"
OUT_OF_BOUNDS: Final = "the importance sampling ratio is out of bounds"
MASKED: Final = "no token of the completion is in the loss"
OFF_POLICY: Final = "off-policy: beyond off_policy_mask_threshold, with a negative advantage"
LOW_ENTROPY: Final = "the entropy of none of its tokens is in top_entropy_quantile"
_GRPO: Final = "trl.trainer.grpo_trainer"
_LOSS: Final = "the steps that learn from a trajectory, and masks that the loss makes, are not recorded"
_LOG_PROBS: Final = "KL penalties are not recorded, nor mismatch where TRL's batches lack log probabilities"


# --- which tokens the loss counts, as far as a batch says ---------------------------------------------------


@dataclass(frozen=True)
class LossMask:
    """The tokens of a batch that the loss counts, as far as the batch says.

    Attributes:
        of_model: 1 for tokens of the model, 0 for those of tools and for padding. A tensor of shape (rows,
            tokens).
        counted: a tensor of the same shape: 1 for tokens of the model that the importance sampling ratio does
            not mask.
        ratio: weight of each token, by which the trainer corrects for the sampler's policy. A tensor with one
            column has a weight for each row. None without a correction.
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
        """Return a mask of those tokens whose factor is not 0; a row without such tokens gets the reason."""
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


# --- log probabilities of TRL's sampler and of its trainer --------------------------------------------------


SAMPLER: Final = "sampling_per_token_logps"
"""Column of TRL's batches: the sampler's log probabilities, if vLLM or a ``rollout_func`` gave them."""
TRAINER: Final = "old_per_token_logps"
"""Column of TRL's batches: log probabilities by the weights that generated; missing if not needed."""

SAMPLER_VALUES: Final = "sampler_logprobs"
TRAINER_VALUES: Final = "trainer_logprobs"


def mismatch_columns(batch: Mapping[str, Any], trainer: Any, mask: LossMask) -> dict[str, list[Any]]:
    """Return the mismatch of each row; nothing if either side's log probabilities are missing.

    Args:
        batch: a TRL batch.
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


# --- the rows that the loss will use ------------------------------------------------------------------------


def expect(
    batch: GenerationBatch, result: Any, ids: list[str | None], tokens: list[int], reasons: list[str | None]
) -> None:
    """Number the rows of a batch that the loss will use, and keep what is known of them.

    Args:
        batch: the batch.
        result: what ``_generate_and_score_completions`` returns for it; gets the column ``ROW``.
        ids: ids of the rows' trajectories; None for one that is not recorded.
        tokens: number of tokens of each row that the loss counts.
        reasons: why the loss learns nothing from a row; None if it does learn.
    """
    import torch

    uses = progress_of(batch.trainer).uses
    round_ = Round(
        micro_step=int(batch.trainer._step),
        first=uses.next_row,
        ids=ids,
        version=batch.identity.policy_version,
        tokens=tokens,
        reasons=reasons,
        uses_left=len(ids) * int(getattr(batch.trainer, "num_iterations", 1)),
    )
    uses.expect(round_)
    result[ROW] = torch.arange(round_.first, round_.first + len(ids))


# --- the loss ----------------------------------------------------------------------------------------------


@dataclass
class _Loss:
    """Tensors that TRL makes while it computes the loss of a micro-batch; None for a tensor not made."""

    log_probs: Any = None
    off_policy: Any = None
    entropy: Any = None


_current: ContextVar[_Loss | None] = ContextVar("otel-rollout-trl-loss", default=None)


@seams.around(TRAINERS, "compute_loss", _LOSS)
def _compute_loss(
    original: Function, /, self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    if not isinstance(inputs, Mapping) or ROW not in inputs:
        return original(self, model, inputs, *args, **kwargs)
    seen = _Loss()
    with variable_set(_current, seen):
        result = original(self, model, inputs, *args, **kwargs)
    with internal_errors("recording what TRL's loss made of a micro-batch"):
        # Here TRL has just read its metrics, so reading its masks does not wait for the device.
        progress_of(self).uses.note(inputs[ROW].tolist(), _use(self, inputs, seen))
    return result


def _use(trainer: Any, inputs: Mapping[str, Any], seen: _Loss) -> Use:
    use = Use(int(trainer.state.global_step))
    log_probs = None
    if SAMPLER in inputs and TRAINER not in inputs and seen.log_probs is not None:
        log_probs = seen.log_probs.detach()  # with the batch's own, the mismatch is recorded already
    if log_probs is seen.off_policy is seen.entropy is None:
        return use
    mask = LossMask.of(trainer, inputs)
    for factor, reason in ((seen.off_policy, OFF_POLICY), (seen.entropy, LOW_ENTROPY)):
        if factor is not None:
            mask = mask.times(factor, reason)
            use = replace(use, tokens=mask.tokens, reasons=mask.reasons)
    if log_probs is None:
        return use
    values = token_values(inputs, log_probs, mask) or {}
    return replace(use, mismatch=mismatch_columns(inputs, log_probs, mask), token_values=values)


@seams.after(TRAINERS, "_get_per_token_logps_and_entropies", _LOG_PROBS)
def _note_log_probs(result: Any, trainer: Any, /, *_: Any, **__: Any) -> None:
    seen, running = _current.get(), batches.current(trainer)
    if seen is not None:
        seen.log_probs = result[0]
    elif running is not None and not running.is_scored:
        running.log_probs.append(result[0])


@seams.after(_GRPO, "GRPOTrainer.get_off_policy_mask", "off-policy masks are not recorded")
def _note_off_policy_mask(mask: Any, /, *_: Any, **__: Any) -> None:
    seen = _current.get()
    if seen is not None:
        seen.off_policy = mask


@seams.after(_GRPO, "GRPOTrainer.get_high_entropy_mask", "entropy masks are not recorded")
def _note_entropy_mask(mask: Any, /, *_: Any, **__: Any) -> None:
    seen = _current.get()
    if seen is not None:
        seen.entropy = mask


@seams.around(
    "transformers.trainer", "Trainer.train", "whether TRL's trainers used the last batch is not recorded"
)
def _train(original: Function, /, self: Any, *args: Any, **kwargs: Any) -> Any:
    has_failed = True
    try:
        result = original(self, *args, **kwargs)
        has_failed = False
        return result
    finally:
        with internal_errors("recording what TRL's training has left over"):
            progress = state.trainers.get(self)
            if progress is not None:
                progress.uses.close(has_failed)
