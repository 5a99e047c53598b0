"""Check that each turn's context begins with the whole turn before: nobody edits what the model has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_rollout.analysis.health.judging import Fault, judged
from otel_rollout.analysis.health.rates import Limits

if TYPE_CHECKING:
    from otel_rollout.analysis.health.findings import Finding
    from otel_rollout.analysis.health.scope import Scope

_EDITED: Final = Fault(
    Limits(rise=0.02, always=0.05, steady=0.01),
    "trajectories with two turns or more",
    "a turn whose context is not the beginning of the next one's",
    "No model call names the turn that it continues: there is one turn each, or OTEL_ROLLOUT_TURNS=whole.",
    "In all {of} trajectories with two turns or more, each turn's context begins with the turn before.",
)
_TOLERANCE: Final = 2
"""Last tokens of a turn that may differ: templates drop or add the token that ends a turn."""


def edited(scope: Scope) -> Finding:
    """Find turns of which the next turn's context has another version."""
    counts = scope.counts(
        f"SELECT trace_id, step, bool_or(is_edited) AS is_bad FROM ({_pairs(scope)}) AS pairs "  # noqa: S608
        "GROUP BY trace_id, step"
    )
    return judged(counts, _EDITED, scope.steps)


def _pairs(scope: Scope) -> str:
    """Return each model call that continues another one, and whether it changes what that one has.

    A call that goes back to an earlier turn changes nothing, nor does another conversation that begins with
    the same system prompt.
    """
    calls = scope.calls
    return f"""
SELECT pair.trace_id, pair.step, (
    pair.shared < pair.length - pair.tolerance AND pair.turn_length > pair.shared
    AND pair.shared > pair.instructions AND whole.turn IS NULL
    AND (pair.is_of_one_parent OR 2 * pair.shared >= pair.length)
  ) AS is_edited
FROM ({_joined(calls)}) AS pair LEFT JOIN (
  SELECT DISTINCT trace_id, turn FROM ({_joined(calls)}) AS complete WHERE shared >= length - tolerance
) AS whole ON pair.trace_id = whole.trace_id AND pair.turn = whole.turn"""  # noqa: S608


def _joined(calls: str) -> str:
    return f"""
SELECT
  next.trace_id, next.step, turn.span_id AS turn, next.shared, next.turn_length,
  CASE WHEN next.messages IS NULL THEN 0 ELSE coalesce(next.messages_system, 0) END AS instructions,
  CASE WHEN next.messages IS NULL THEN {_TOLERANCE} ELSE 0 END AS tolerance,
  CASE WHEN turn.messages IS NULL THEN coalesce(turn.turn_length, turn.tokens_in) + turn.tokens_out
    ELSE coalesce(turn.turn_length, turn.messages) END AS length,
  next.parent_span_id IS NOT DISTINCT FROM turn.parent_span_id AS is_of_one_parent
FROM {calls} AS next JOIN {calls} AS turn ON next.trace_id = turn.trace_id AND next.continues = turn.span_id
WHERE (next.messages IS NULL) = (turn.messages IS NULL)"""  # noqa: S608
