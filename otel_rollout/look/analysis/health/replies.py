"""Check the model's replies: cut, empty, repetitive, a sibling's, or with special tokens of the template."""

from __future__ import annotations

from typing import Final

from otel_rollout.look.analysis.health.findings import Finding
from otel_rollout.look.analysis.health.rates import Fault, RateLimits, judged
from otel_rollout.look.analysis.health.scope import Scope

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
_MIN_BYTES: Final = 200
"""Least bytes of a trajectory's replies: short right answers are equal without being copies."""
_MIN_TOKENS: Final = 60
"""Least tokens of them, where no text was recorded."""


def truncated(scope: Scope) -> Finding:
    """Find steps in which many replies end at the length limit."""
    return judged(scope.counts(_of_calls(scope, "is_cut", "has_end")), _TRUNCATED, scope.steps)


def empty(scope: Scope) -> Finding:
    """Find steps in which the model says nothing, and calls no tool."""
    return judged(scope.counts(_of_calls(scope, "is_empty", "has_reply")), _EMPTY, scope.steps)


def repetitive(scope: Scope) -> Finding:
    """Find steps in which replies repeat one text in a loop."""
    looked = scope.looked
    return judged(looked.repetitive, _REPETITIVE, scope.steps, looked.note)


def special_tokens(scope: Scope) -> Finding:
    """Find control tokens of the chat template in replies, and in the first messages."""
    return judged(scope.counts(_of_calls(scope, "has_special", "has_text")), _SPECIAL, scope.steps)


def copied(scope: Scope) -> Finding:
    """Find siblings whose replies are equal, letter for letter."""
    counts = scope.counts(
        f"SELECT trajectory.trace_id, trajectory.step, copy.trace_id IS NOT NULL AS is_bad "  # noqa: S608
        f"FROM ({_eligible(scope)}) AS trajectory LEFT JOIN ({_copies(scope)}) AS copy "
        "ON trajectory.trace_id = copy.trace_id"
    )
    return judged(counts, _COPIES, scope.steps)


def _of_calls(scope: Scope, bad: str, known: str) -> str:
    """Select the trajectories with calls for which ``known`` holds, and whether ``bad`` holds for any."""
    return (
        f"SELECT trace_id, step, bool_or(coalesce({bad}, false)) AS is_bad FROM {scope.calls} "  # noqa: S608
        f"WHERE {known} GROUP BY trace_id, step"
    )


def _eligible(scope: Scope) -> str:
    """Return the trajectories with siblings whose replies are long enough, and the length of these."""
    return f"""
SELECT * FROM (
  SELECT run.trace_id, run.step, run.group_path, said.calls, said.bytes, said.tokens,
    count(*) OVER (PARTITION BY run.group_path) AS siblings,
    count(*) OVER (PARTITION BY run.group_path, said.calls, said.bytes, said.tokens) AS alike
  FROM {scope.trajectories} AS run JOIN (
    SELECT trace_id, count(*) AS calls, coalesce(sum(reply_bytes), 0) AS bytes, sum(tokens_out) AS tokens
    FROM {scope.calls} GROUP BY trace_id
  ) AS said ON run.trace_id = said.trace_id
  WHERE run.group_path IS NOT NULL
    AND (said.bytes >= {_MIN_BYTES} OR (said.bytes = 0 AND said.tokens >= {_MIN_TOKENS}))
) AS counted WHERE siblings > 1"""  # noqa: S608


def _copies(scope: Scope) -> str:
    """Return the trajectories whose replies equal a sibling's; only those of one length are compared."""
    return f"""
SELECT trace_id FROM (
  SELECT hashed.trace_id, count(*) OVER (PARTITION BY alike.group_path, hashed.hash) AS copies
  FROM (
    SELECT trace_id, string_agg(md5(coalesce(reply, output, '')), '' ORDER BY start_ns) AS hash
    FROM {scope.spans} AS span WHERE kind = 'LLM'
      AND trace_id IN (SELECT trace_id FROM ({_eligible(scope)}) AS those WHERE alike > 1)
    GROUP BY trace_id
  ) AS hashed JOIN ({_eligible(scope)}) AS alike ON hashed.trace_id = alike.trace_id
) AS compared WHERE copies > 1"""  # noqa: S608
