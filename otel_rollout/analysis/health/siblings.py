"""Check that siblings are different trajectories, and not copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_rollout.analysis.health.judging import Fault, judged
from otel_rollout.analysis.health.rates import Limits

if TYPE_CHECKING:
    from otel_rollout.analysis.health.findings import Finding
    from otel_rollout.analysis.health.scope import Scope

_COPIES: Final = Fault(
    Limits(rise=0.05, always=0.2, steady=0.05),
    "trajectories with replies long enough to compare with siblings",
    "those of a sibling, letter for letter",
    "No group has siblings with recorded replies long enough to compare.",
)
_MIN_BYTES: Final = 200
"""Least bytes of a trajectory's replies: short right answers are equal without being copies."""
_MIN_TOKENS: Final = 60
"""Least tokens of them, where no text was recorded."""


def identical(scope: Scope) -> Finding:
    """Find siblings whose replies are equal, letter for letter."""
    counts = scope.counts(
        f"SELECT trajectory.trace_id, trajectory.step, copy.trace_id IS NOT NULL AS is_bad "  # noqa: S608
        f"FROM ({_eligible(scope)}) AS trajectory LEFT JOIN ({_copies(scope)}) AS copy "
        "ON trajectory.trace_id = copy.trace_id"
    )
    return judged(counts, _COPIES, scope.steps)


def _eligible(scope: Scope) -> str:
    """Return the trajectories with siblings whose replies are long enough, and the length of these."""
    return f"""
SELECT * FROM (
  SELECT run.trace_id, run.step, run.sample_index, said.calls, said.bytes, said.tokens,
    count(*) OVER (PARTITION BY run.step, run.sample_index) AS siblings,
    count(*) OVER (PARTITION BY run.step, run.sample_index, said.calls, said.bytes, said.tokens) AS alike
  FROM {scope.trajectories} AS run JOIN (
    SELECT trace_id, count(*) AS calls, coalesce(sum(reply_bytes), 0) AS bytes, sum(tokens_out) AS tokens
    FROM {scope.calls} GROUP BY trace_id
  ) AS said ON run.trace_id = said.trace_id
  WHERE said.bytes >= {_MIN_BYTES} OR (said.bytes = 0 AND said.tokens >= {_MIN_TOKENS})
) AS counted WHERE siblings > 1"""  # noqa: S608


def _copies(scope: Scope) -> str:
    """Return the trajectories whose replies equal a sibling's; only those of one length are compared."""
    return f"""
SELECT trace_id FROM (
  SELECT hashed.trace_id, count(*) OVER (PARTITION BY alike.step, alike.sample_index, hashed.hash) AS copies
  FROM (
    SELECT trace_id, string_agg(md5(coalesce(reply, output, '')), '' ORDER BY start_ns) AS hash
    FROM spans WHERE kind = 'LLM' AND {scope.condition}
      AND trace_id IN (SELECT trace_id FROM ({_eligible(scope)}) AS those WHERE alike > 1)
    GROUP BY trace_id
  ) AS hashed JOIN ({_eligible(scope)}) AS alike ON hashed.trace_id = alike.trace_id
) AS compared WHERE copies > 1"""  # noqa: S608
