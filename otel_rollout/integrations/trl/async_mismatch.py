"""Compare the inference server's log probabilities with those of the asynchronous trainer's loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base import training_scores
from otel_rollout.integrations.kit.logprob_mismatch import logprob_mismatch
from otel_rollout.integrations.kit.training_outcome import wants_token_values
from otel_rollout.integrations.trl.loss_mask import SAMPLER_VALUES as SAMPLER
from otel_rollout.integrations.trl.loss_mask import TRAINER_VALUES as TRAINER


class WatchedModel:
    """A model that keeps the log probabilities of its latest call; otherwise it is the model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.log_probs: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        outputs = self._model(*args, **kwargs)
        self.log_probs = getattr(outputs, "log_probs", None)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def of_tokens(self, inputs: Mapping[str, Any]) -> Any:
        """Return the log probability of each trained token of a micro-batch, on the CPU; None if unknown."""
        if self.log_probs is None:
            return None
        places = inputs["token_index"]
        return self.log_probs.detach().flatten()[places[places >= 0]].float().cpu()


@dataclass
class RowMismatch:
    """The mismatch of one training row.

    Attributes:
        tokens: number of tokens that were compared.
        columns: the score's name → its value.
        values: the name of values per token → their array; empty unless they are asked for.
    """

    tokens: int
    columns: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)


def of_rows(examples: Sequence[Mapping[str, Any]], log_probs: Any) -> list[RowMismatch]:
    """Compare training rows; their tokens are counted from the first one of the model.

    Args:
        examples: rows of TRL's queue dataset.
        log_probs: the trainer's, of all their trained tokens: row after row.
    """
    import torch

    masks = [torch.as_tensor(example["completion_mask"][1:]).bool() for example in examples]
    starts = [int(mask.int().argmax()) if len(mask) else 0 for mask in masks]
    lengths = [len(mask) - start for mask, start in zip(masks, starts, strict=True)]
    mask = torch.zeros(len(examples), max(lengths, default=0), dtype=torch.bool)
    sampler = torch.zeros(mask.shape)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        mask[row, :length] = masks[row][start:]
        sampler[row, :length] = torch.as_tensor(examples[row]["old_log_probs"][start + 1 :])
    trainer = torch.zeros(mask.shape).masked_scatter_(mask, log_probs)
    columns = logprob_mismatch(sampler, trainer, mask)
    found = []
    for row, (tokens, length) in enumerate(zip(mask.sum(dim=1).tolist(), lengths, strict=True)):
        values = {SAMPLER: sampler[row, :length].numpy(), TRAINER: trainer[row, :length].numpy()}
        scores = {name: column[row] for name, column in columns.items()}
        found.append(RowMismatch(tokens, scores, values if wants_token_values() else {}))
    return found


def joined(trajectories: Sequence[Sequence[RowMismatch]]) -> dict[str, list[Any]]:
    """Return the mismatch of trajectories, each of several rows, as columns."""
    found: dict[str, list[Any]] = {}
    for number, rows in enumerate(trajectories):
        for name, value in _join(rows).items():
            found.setdefault(name, [None] * len(trajectories))[number] = value
    return found


def _join(rows: Sequence[RowMismatch]) -> dict[str, Any]:
    """Return means over all tokens, and the row with the largest difference for the rest."""
    if not rows:
        return {}
    tokens = sum(row.tokens for row in rows)
    largest = max(rows, key=lambda row: row.columns[training_scores.LOGPROB_DIFF_MAX])
    means = {
        name: sum(row.columns[name] * row.tokens for row in rows) / tokens
        for name in (training_scores.LOGPROB_DIFF_MEAN, training_scores.LOGPROB_DIFF_SHARE)
    }
    return largest.columns | means


def joined_values(trajectories: Sequence[Sequence[RowMismatch]]) -> dict[str, list[Any]] | None:
    """Return the values per token of each trajectory's first row; None if they are not asked for."""
    found = [rows[0].values if rows else {} for rows in trajectories]
    names = {name for values in found for name in values}
    return {name: [values.get(name) for values in found] for name in sorted(names)} or None
