"""Check that each turn's context begins with the whole turn before: nobody edits what the model has seen."""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Fault, RateLimits, judged
from otel_rollout.look.analysis.health.scope import ID_MARKS, Scope

_LIMITS: Final = RateLimits(rise=0.02, always=0.05, steady=0.01)
_EDITED: Final = Fault(
    _LIMITS,
    "trajectories whose turns name the turn that they continue",
    "a turn whose context is not the beginning of the next one's",
    "No model call names the turn that it continues: there is one turn each, or OTEL_ROLLOUT_TURNS=whole.",
    "In all {of} trajectories whose turns name the turn that they continue, each begins with that turn.",
)
_RETOKENIZED: Final = Fault(
    _LIMITS,
    "trajectories with token ids in two turns or more",
    "an answer whose tokens are others in the next prompt, for one text",
    _EDITED.missing,
    "In all {of} trajectories with token ids in two turns or more, the next prompt has the sampled tokens.",
)
_WITHOUT_IDS: Final = "No model call that continues a turn has the token ids of its prompt and its answer."
_SAMPLE: Final = 200
"""Model calls that are looked at to see whether token ids are recorded."""
_LISTED: Final = " `otel-rollout list --broken-prefix` names each trajectory, with the turn and the token."


def edited(scope: Scope) -> Finding:
    """Find turns of which the next turn's context has another version."""
    counts = scope.counts(
        "SELECT trace_id, step, bool_or(is_edited) AS is_bad FROM ("  # noqa: S608
        f"{_pairs(scope)} UNION ALL {_prompts(scope, '<>', 'continues IS NOT NULL')}) AS pairs "
        "GROUP BY trace_id, step"
    )
    return judged(counts, _EDITED, scope.steps)


def retokenized(scope: Scope) -> Finding:
    """Find answers that a later prompt encodes with other tokens than those that were sampled."""
    if not _has_ids(scope):
        return unobserved(_WITHOUT_IDS)
    counts = scope.counts(
        "SELECT trace_id, step, bool_or(is_edited) AS is_bad FROM ("  # noqa: S608
        f"{_prompts(scope, '=', 'continues IS NOT NULL AND has_ids')}) AS prompts GROUP BY trace_id, step"
    )
    return judged(counts, _RETOKENIZED, scope.steps, _LISTED if any(count.bad for count in counts) else "")


def _has_ids(scope: Scope) -> bool:
    """Return whether the run records token ids: the forwarder compares the prompts of such calls."""
    calls = (
        f"(SELECT output, break_kind FROM {scope.spans} AS span "  # noqa: S608
        f"WHERE kind = 'LLM' AND (continues IS NOT NULL OR break_kind IS NOT NULL) LIMIT {_SAMPLE}) AS calls"
    )
    return scope.number(f"{calls} WHERE break_kind IS NOT NULL OR regexp_like(output, '{ID_MARKS}')") > 0


def _prompts(scope: Scope, sign: str, whole: str) -> str:
    """Return each model call with an earlier turn, and whether its prompt breaks the prefix.

    Args:
        scope: the run.
        sign: ``=`` for retokenized answers, ``<>`` for all other breaks.
        whole: a condition on the calls whose prompt is known to break nothing.
    """
    return f"""
SELECT trace_id, step, coalesce(break_kind {sign} 'retokenized', false) AS is_edited
FROM {scope.calls} WHERE ({whole}) OR break_kind IS NOT NULL"""  # noqa: S608


def _pairs(scope: Scope) -> str:
    """Return each call with messages that continues another one, and whether it changes what that one has.

    A call that goes back to an earlier turn changes nothing, nor does another conversation that begins with
    the same system prompt.
    """
    calls = scope.calls
    return f"""
SELECT pair.trace_id, pair.step, (
    pair.shared < pair.length AND pair.turn_length > pair.shared
    AND pair.shared > pair.instructions AND whole.turn IS NULL
    AND (pair.is_of_one_parent OR 2 * pair.shared >= pair.length)
  ) AS is_edited
FROM ({_joined(calls)}) AS pair LEFT JOIN (
  SELECT DISTINCT trace_id, turn FROM ({_joined(calls)}) AS complete WHERE shared >= length
) AS whole ON pair.trace_id = whole.trace_id AND pair.turn = whole.turn"""  # noqa: S608


def _joined(calls: str) -> str:
    return f"""
SELECT
  next.trace_id, next.step, turn.span_id AS turn, next.shared, next.turn_length,
  coalesce(next.messages_system, 0) AS instructions, coalesce(turn.turn_length, turn.messages) AS length,
  next.parent_span_id IS NOT DISTINCT FROM turn.parent_span_id AS is_of_one_parent
FROM {calls} AS next JOIN {calls} AS turn ON next.trace_id = turn.trace_id AND next.continues = turn.span_id
WHERE next.messages IS NOT NULL AND turn.messages IS NOT NULL"""  # noqa: S608
