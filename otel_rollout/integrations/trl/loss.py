"""Follow the rows of TRL's batches through the loss: which steps learn from which of their tokens.

TRL generates for several optimizer steps at once, shuffles the rows, splits them into micro-batches, and may
use each several times. So each row has its number in a column of the batch, which TRL shuffles and splits
with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import variable_set
from otel_rollout.integrations.state import state
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl import loss_mask
from otel_rollout.integrations.trl.batch import GenerationBatch
from otel_rollout.integrations.trl.loss_mask import LossMask
from otel_rollout.integrations.trl.patched_modules import TRAINERS, of_trainer, seams
from otel_rollout.integrations.trl.progress import Round, Use, progress_of

ROW: Final = "otel_rollout_row"
"""Column that is added to TRL's batches: the number of each row among all rows of the trainer."""
OFF_POLICY: Final = "off-policy: beyond off_policy_mask_threshold, with a negative advantage"
LOW_ENTROPY: Final = "the entropy of none of its tokens is in top_entropy_quantile"
_GRPO: Final = "trl.trainer.grpo_trainer"
_LOSS: Final = "the steps that learn from a trajectory, and masks that the loss makes, are not recorded"
_LOG_PROBS: Final = "KL penalties are not recorded, nor mismatch where TRL's batches lack log probabilities"


def expect(
    batch: GenerationBatch, result: Any, ids: list[str | None], tokens: list[int], reasons: list[str | None]
) -> None:
    """Number the rows of a batch that the loss will use, and keep what is known of them.

    Args:
        batch: the batch.
        result: what ``_generate_and_score_completions`` returns for it; gets a column more.
        ids: ids of the rows' trajectories; None for one that is not recorded.
        tokens: number of tokens of each row that the loss counts.
        reasons: why a row teaches nothing; None if it teaches.
    """
    uses, micro_step = progress_of(batch.trainer).uses, getattr(batch.trainer, "_step", None)
    round_ = Round(
        micro_step=-1 if micro_step is None else int(micro_step),
        first=uses.next_row,
        ids=ids,
        version=batch.identity.policy_version,
        tokens=tokens,
        reasons=reasons,
        uses_left=len(ids) * int(getattr(batch.trainer, "num_iterations", 1)),
    )
    if micro_step is None:  # of another version: it is not known when a batch is over
        round_.record(None)
        return
    import torch

    uses.expect(round_)
    result[ROW] = torch.arange(round_.first, round_.first + len(ids))


# --- the loss ----------------------------------------------------------------------------------------------


@dataclass
class _Loss:
    """Tensors that TRL makes while it computes the loss of a micro-batch; None for those that it does not."""

    log_probs: Any = None
    off_policy: Any = None
    entropy: Any = None


_current: ContextVar[_Loss | None] = ContextVar("otel-rollout-trl-loss", default=None)


@seams.around(TRAINERS, of_trainer("compute_loss"), _LOSS)
def _compute_loss(
    original: Callable[..., Any], /, self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
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
    if loss_mask.SAMPLER in inputs and loss_mask.TRAINER not in inputs and seen.log_probs is not None:
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
    values = loss_mask.token_values(inputs, log_probs, mask) or {}
    return replace(use, mismatch=loss_mask.columns(inputs, log_probs, mask), token_values=values)


@seams.after(TRAINERS, of_trainer("_get_per_token_logps_and_entropies"), _LOG_PROBS)
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
def _train(original: Callable[..., Any], /, self: Any, *args: Any, **kwargs: Any) -> Any:
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
