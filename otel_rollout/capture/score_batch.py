"""Record scores of a whole batch of trajectories at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from otel_rollout.capture.scores import score


def score_batch(
    scores: Mapping[str, Any],
    *,
    trajectory: Sequence[str | None] | None = None,
    step: Any = None,
    sample_index: Any = None,
    rollout_n: Any = None,
    validate: Any = False,
    comments: Mapping[str, Sequence[str | None]] | None = None,
    token_values: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Score the trajectories of a batch: a whole training step with one call. Never raises.

    Each argument has one entry per trajectory of the batch, or is one value for all of them: a list, or an
    array of numpy or torch of shape (batch,).

    Args:
        scores: the score's name → its values; None records nothing for that trajectory.
        trajectory: :attr:`Trajectory.id` of each trajectory; None for one without.
        step: steps of the trajectories.
        sample_index: dataset rows of the trajectories.
        rollout_n: the trajectories' indices in their groups.
        validate: whether the steps are validations.
        comments: the score's name → the reasons, in words.
        token_values: name → for each trajectory one array of shape (tokens,), or None; recorded only if
            ``OTEL_ROLLOUT_TRAINING_TOKENS`` asks for it.
    """
    sizes = [len(values) for values in scores.values() if _is_column(values)]
    sizes += [len(x) for x in (trajectory, step, sample_index, rollout_n, validate) if _is_column(x)]
    size = max(sizes, default=0)

    def at(values: Any, row: int) -> Any:
        value = values[row] if _is_column(values) else values
        return value.item() if hasattr(value, "item") else value

    for row in range(size):
        for name, values in scores.items():
            value = at(values, row)
            if value is None:
                continue
            comment = at((comments or {}).get(name), row)
            if trajectory is not None:
                if trajectory[row] is not None:
                    score(name, value, comment=comment, trajectory=trajectory[row])
                continue
            score(
                name,
                value,
                comment=comment,
                step=at(step, row),
                sample_index=at(sample_index, row),
                rollout_n=at(rollout_n, row),
                validate=bool(at(validate, row)),
            )


def _is_column(values: Any) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, str)
