"""Join the rows of a trajectory whose agent loop has returned several outputs.

Each output is a row of the v1 trainer's batch. The last has the reward, and the others have copies of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from otel_rollout.base import training_scores as names
from otel_rollout.integrations.verl.identities import Identity
from otel_rollout.integrations.verl.training_columns import Columns

_SUMS: Final = {names.TRAINED_TOKENS, names.KL_PENALTY}
_LARGEST: Final = {names.POLICY_LAG, names.TRAINED, names.LOGPROB_DIFF_MAX}
_OF_ONE_OUTPUT: Final = {
    names.LOGPROB_DIFF_TOKEN,
    names.LOGPROB_DIFF_TURN,
    names.LOGPROB_DIFF_MEAN,
    names.LOGPROB_DIFF_SHARE,
    names.IMPORTANCE_RATIO,
}
"""Scores that are known of each output, but not of the trajectory: their tokens are counted per output."""


def one_row_per_trajectory(
    rows: Sequence[Identity | None], keys: Sequence[Any], columns: Columns
) -> tuple[list[Identity | None], Columns]:
    """Return the trajectories, and what training made of them, with one row for each.

    Args:
        rows: the trajectory of each row.
        keys: keys of the rows, which end with the number of the output.
        columns: what training made of the rows.
    """
    outputs: dict[Identity, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row is not None:
            outputs[row].append(number)
    if all(len(numbers) == 1 for numbers in outputs.values()):
        return list(rows), columns
    for numbers in outputs.values():
        numbers.sort(key=lambda number: int(str(keys[number]).rpartition("_")[2]))
    groups = list(outputs.values())
    scores = {
        name: [_joined(name, [values[number] for number in group]) for group in groups]
        for name, values in columns.scores.items()
    }
    reasons = [_reason([columns.reasons[number] for number in group]) for group in groups]
    tokens = {name: [values[group[-1]] for group in groups] for name, values in columns.tokens.items()}
    return list(outputs), Columns(scores, reasons, tokens)


def _joined(name: str, values: list[Any]) -> Any:
    """Return a trajectory's value of a score from those of its outputs, the last one last."""
    if len(values) == 1:
        return values[0]
    present = [value for value in values if value is not None]
    if name in _SUMS:
        return sum(present) if present else None
    if name in _LARGEST:
        return next((value for value in present if value != value), max(present, default=None))
    return None if name in _OF_ONE_OUTPUT else values[-1]


def _reason(reasons: list[str | None]) -> str | None:
    """Return why the loss uses no output; None if it uses one."""
    return None if None in reasons else reasons[-1]
