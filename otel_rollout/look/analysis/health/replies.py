"""Check the model's replies: cut, empty, repetitive, equal to a sibling's, or with special tokens.

Check also the next turn: whether its context was edited, or has other tokens for a reply.
"""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Fault, RateLimits, judged
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.analysis.health.texts import counts_of
from otel_rollout.table import filters

_NO_TEXT: Final = "No text of a reply was recorded."
_TRUNCATED: Final = Fault(
    RateLimits(rise=0.1, always=0.5, steady=0.35),
    "trajectories of which it is known how replies ended",
    "a reply that was cut at the length limit",
    "No model call has a finish reason, or a limit of tokens.",
)
_EMPTY: Final = Fault(
    RateLimits(rise=0.02, always=0.2, steady=0.05),
    "trajectories with a recorded reply",
    "an empty one",
    _NO_TEXT,
)
_REPETITIVE: Final = Fault(
    RateLimits(rise=0.03, always=0.2, steady=0.05),
    "trajectories with text in a reply",
    "a reply that repeats one text",
    _NO_TEXT,
)
_SPECIAL: Final = Fault(
    RateLimits(rise=0.02, always=0.1, steady=0.01),
    "trajectories with a recorded text",
    "special tokens of the chat template in it",
    "No text of a message or reply was recorded.",
)
_COPIES: Final = Fault(
    RateLimits(rise=0.05, always=0.2, steady=0.05),
    "trajectories with replies long enough to compare with siblings",
    "those of a sibling, letter for letter",
    "No group has siblings with recorded replies long enough to compare.",
)
_CONTINUED_LIMITS: Final = RateLimits(rise=0.02, always=0.05, steady=0.01)
_EDITED: Final = Fault(
    _CONTINUED_LIMITS,
    "trajectories with a turn that can be compared with an earlier one",
    "a turn whose context is not the beginning of the next one's, beyond answers that are encoded anew",
    "No model call names the turn that it continues: there is one turn each, a call has several answers, or "
    "OTEL_ROLLOUT_TURNS=whole.",
    "In all {of} trajectories whose turns name the turn that they continue, each begins with that turn, but "
    "for answers that are encoded anew.",
)
_RETOKENIZED: Final = Fault(
    _CONTINUED_LIMITS,
    "trajectories with token ids in two turns or more",
    "an answer whose tokens are others in the next prompt, for one text",
    _EDITED.missing,
    "In all {of} trajectories with token ids in two turns or more, the next prompt has the sampled tokens.",
)
_WITHOUT_IDS: Final = "No model call that continues a turn has the token ids of its prompt and its answer."
_LISTED: Final = " `otel-rollout list --broken-prefix` names each trajectory, with the turn and the token."
_MIN_BYTES: Final = 200
"""Least bytes of a trajectory's replies: short right answers are equal without being copies."""
_MIN_TOKENS: Final = 60
"""Least tokens of a trajectory's replies, if no text was recorded."""
_LONG: Final = (
    f"sample_index IS NOT NULL AND (own_bytes >= {_MIN_BYTES} "
    f"OR (coalesce(own_bytes, 0) = 0 AND own_tokens >= {_MIN_TOKENS}))"
)
"""SQL condition of a trajectory that may have siblings, and whose replies are long enough."""
_LENGTHS: Final = ("group_path", "own_calls", "own_bytes", "own_tokens")
"""Columns in which a copy equals its sibling."""
_MANY: Final = 1000
"""Number of trajectories from which on a query selects them by a subquery.

With fewer trajectories, the query lists their ids, and so reads only their texts.
"""


def truncated(scope: Scope) -> Finding:
    """Find steps in which many replies end at the length limit."""
    return judged(scope.counts_of_sign("has_cut"), _TRUNCATED, scope.steps)


def empty(scope: Scope) -> Finding:
    """Find steps in which the model says nothing, and calls no tool."""
    return judged(scope.counts_of_sign("has_empty"), _EMPTY, scope.steps)


def repetitive(scope: Scope) -> Finding:
    """Find steps in which replies repeat one text in a loop."""
    looked = scope.looked
    return judged(counts_of(looked.repetitive), _REPETITIVE, scope.steps, looked.note)


def special_tokens(scope: Scope) -> Finding:
    """Find control tokens of the chat template in replies, and in the first messages."""
    return judged(scope.counts_of_sign("has_special"), _SPECIAL, scope.steps)


def edited(scope: Scope) -> Finding:
    """Find turns whose context was changed in the next turn."""
    return judged(scope.counts_of_sign("has_edited"), _EDITED, scope.steps)


def retokenized(scope: Scope) -> Finding:
    """Find answers that a later prompt encodes with other tokens than those that were sampled."""
    counts = scope.counts_of_sign("has_retokenized")
    if not counts:
        return unobserved(_WITHOUT_IDS)
    return judged(counts, _RETOKENIZED, scope.steps, _LISTED if any(count.bad for count in counts) else "")


def copied(scope: Scope) -> Finding:
    """Find siblings whose own replies are equal, letter for letter."""
    groups = f"SELECT group_path FROM {scope.signs} WHERE {_LONG} GROUP BY group_path HAVING count(*) > 1"  # noqa: S608
    counts = scope.counts(
        f"SELECT one.trace_id, step, copy.trace_id IS NOT NULL AS is_bad FROM ({groups}) AS several "  # noqa: S608
        f"JOIN {scope.signs} AS one ON several.group_path = one.group_path "
        f"LEFT JOIN ({_copies(scope)}) AS copy ON one.trace_id = copy.trace_id WHERE {_LONG}"
    )
    return judged(counts, _COPIES, scope.steps)


def _copies(scope: Scope) -> str:
    """Return SQL for trajectories whose replies equal a sibling's; only equal lengths are compared."""
    lengths = ", ".join(_LENGTHS)
    alike = f"SELECT {lengths} FROM {scope.signs} WHERE {_LONG} GROUP BY {lengths} HAVING count(*) > 1"  # noqa: S608
    is_of = " AND ".join(f"(alike.{name} IS NOT DISTINCT FROM one.{name})" for name in _LENGTHS)
    those = f"SELECT one.trace_id FROM ({alike}) AS alike JOIN {scope.signs} AS one ON {is_of}"  # noqa: S608
    few = [row["trace_id"] for row in scope.rows(f"{those} LIMIT {_MANY}")]
    is_alike = f"trace_id IN ({those})" if len(few) == _MANY else filters.equals("trace_id", few)
    return f"""
SELECT trace_id FROM (
  SELECT hashed.trace_id, count(*) OVER (PARTITION BY one.group_path, hashed.hash) AS copies
  FROM (
    SELECT trace_id, string_agg(reply_hash, '' ORDER BY start_ns) AS hash
    FROM call_signs WHERE is_own AND {is_alike}
    GROUP BY trace_id
  ) AS hashed JOIN {scope.signs} AS one ON hashed.trace_id = one.trace_id
) AS compared WHERE copies > 1"""  # noqa: S608
