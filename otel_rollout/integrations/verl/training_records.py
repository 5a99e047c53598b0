"""Record what verl's training made of trajectories, one call per training batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import otel_rollout
from otel_rollout.base import training_scores
from otel_rollout.integrations.kit.training_outcome import TrainingOutcomes, record_training_outcomes
from otel_rollout.integrations.verl.identities import Identity
from otel_rollout.integrations.verl.rewards import is_score
from otel_rollout.integrations.verl.training_columns import Columns


def record_columns(rows: Sequence[Identity | None], columns: Columns) -> None:
    """Record what training made of the rows of a batch; a trajectory that is in it twice is recorded once."""
    chosen = _first_rows(rows)
    scores = {
        name: [values[row] for row in chosen]
        for name, values in columns.scores.items()
        if any(values[row] is not None for row in chosen)
    }
    if not scores:
        return
    tokens: dict[str, Sequence[Any]] = {
        name: [values[row] for row in chosen] for name, values in columns.tokens.items()
    }
    outcomes = TrainingOutcomes(
        **{"return_" if name == training_scores.RETURN else name: values for name, values in scores.items()},
        reason=[columns.reasons[row] for row in chosen],
    )
    record_training_outcomes(outcomes, **_named(rows, chosen), token_values=tokens or None)


def record_untrained(
    rows: Sequence[Identity], reasons: Sequence[str], lags: Sequence[int | None] = ()
) -> None:
    """Record that training did not use some trajectories."""
    if not rows:
        return
    outcomes = TrainingOutcomes(
        trained=[False] * len(rows),
        trained_tokens=[0] * len(rows),
        policy_lag=list(lags) if any(lag is not None for lag in lags) else None,
        reason=list(reasons),
    )
    record_training_outcomes(outcomes, **_named(rows, range(len(rows))))


def record_rewards(rows: Sequence[Identity | None], output: Any) -> None:
    """Record rewards that the trainer has computed after the rollouts, as the worker records others.

    Args:
        rows: the trajectories.
        output: verl's ``DataProto`` with ``rm_scores`` and the reward's extra information.
    """
    chosen = _first_rows(rows)
    rewards = output.batch["rm_scores"].sum(-1).tolist()
    scores = {"reward": [rewards[row] for row in chosen]}
    for name in output.meta_info.get("reward_extra_keys", []):
        values = [output.non_tensor_batch[name][row] for row in chosen]
        if name != "reward":
            scores[str(name)] = [value if is_score(value) else None for value in values]
    if chosen:
        otel_rollout.score_batch(scores, **_named(rows, chosen))


def _first_rows(rows: Sequence[Identity | None]) -> list[int]:
    """Return the numbers of the rows to record."""
    first: dict[Identity, int] = {}
    for number, row in enumerate(rows):
        if row is not None:
            first.setdefault(row, number)
    return list(first.values())


def _named(rows: Sequence[Identity | None], chosen: Sequence[int]) -> dict[str, Any]:
    """Return the arguments that name trajectories."""
    named = [row for row in (rows[number] for number in chosen) if row is not None]
    return {name: [getattr(row, name) for row in named] for name in Identity._fields}
