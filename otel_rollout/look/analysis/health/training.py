"""Check how many trajectories the trainer leaves out, and how old the weights of the others are."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from otel_rollout.base.training_scores import UNUSED
from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Fault, RateLimits, judged, of_several
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.table.training import FILTERED, NO_REASON, PASSED_OVER

_NO_WORD: Final = "No score `trained` says which trajectories the loss uses."
_SURPRISE: Final = 12.0
"""Least surprise of a rise, in nats. It is less than for replies, which vary more by chance."""
_SILENT: Final = Fault(
    RateLimits(rise=0.01, always=0.02, steady=0.002, surprise=_SURPRISE),
    "trajectories that reached the trainer or should have",
    "been left out by the loss without a reason",
    _NO_WORD,
    "The loss uses all {of} trajectories, or the trainer says why not.",
)
_FILTERED: Final = Fault(
    RateLimits(rise=0.05, always=0.2, steady=0.1, surprise=_SURPRISE),
    "trajectories that the trainer spoke of",
    "been left out by the loss for a reason, those of groups with one reward not counted",
    _NO_WORD,
    "None of {of} trajectories was left out for a reason, but for groups with one reward and the end of "
    "training.",
)
_IS_SILENT: Final = f"reason IN ('{NO_REASON}', '{PASSED_OVER}')"
_STALE: Final = RateLimits(rise=0.05, always=0.5, steady=0.2, surprise=_SURPRISE)
_NO_LAG: Final = (
    "No score `policy_lag` says how old the weights were when the trainer learned. A lag in `report` is by "
    "the numbers of the steps."
)
_ALLOWED: Final = 2
"""Versions of lag that are allowed beyond twice the usual lag of the run."""
_NAMED: Final = 3
"""Maximum reasons that a message names."""


def left_out(scope: Scope) -> Finding:
    """Find trajectories that the loss left out: without a reason, or too many with a reason."""
    if not scope.engine.count(f"{scope.training} WHERE trained IS NOT NULL"):
        return unobserved(_NO_WORD)
    silent = scope.counts(
        f"SELECT trace_id, step, coalesce({_IS_SILENT}, false) AS is_bad FROM ({_reached(scope)}) AS reached"  # noqa: S608
    )
    filtered = scope.counts(
        f"SELECT trace_id, step, NOT trained AND NOT {_IS_SILENT} AND reason <> '{UNUSED}' "  # noqa: S608
        "AND NOT has_one_reward AS is_bad "
        f"FROM ({_reached(scope)}) AS reached WHERE trained IS NOT NULL"
    )
    found = of_several(judged(silent, _SILENT, scope.steps), judged(filtered, _FILTERED, scope.steps))
    return replace(found, message=f"{found.message}{_by_reason(scope, found)}")


def _reached(scope: Scope) -> str:
    """Return SQL for the trajectories that the trainer named, or passed over as the view says.

    The column ``has_one_reward`` says whether all siblings of a trajectory have the same reward: also those
    that the trainer did not speak of.
    """
    return f"""
SELECT trace_id, step, group_path, trained, reason, one_reward IS NOT NULL AS has_one_reward
FROM {scope.training} LEFT JOIN (
  SELECT step AS of_step, group_path AS one_reward FROM {scope.groups} WHERE has_one_reward
) AS spent ON group_path = one_reward AND (step IS NOT DISTINCT FROM of_step)
WHERE trained IS NOT NULL OR {FILTERED}"""  # noqa: S608


def _by_reason(scope: Scope, found: Finding) -> str:
    """Return sentences on reasons, a missing one first, and on groups with one reward or wholly left out."""
    reached = f"({_reached(scope)}) AS reached WHERE {scope.is_said_by(found)}"
    reasons = scope.rows(
        "SELECT reason, count(*) AS number, CAST(sum(count(*)) OVER () AS BIGINT) AS whole, "  # noqa: S608
        "CAST(sum(count(*) FILTER (WHERE has_one_reward)) OVER () AS BIGINT) AS spent "
        f"FROM {reached} AND reason IS NOT NULL "
        f"GROUP BY reason ORDER BY {_IS_SILENT} DESC, number DESC, reason LIMIT {_NAMED}"
    )
    if not reasons:
        return ""
    whole, spent = reasons[0]["whole"], reasons[0]["spent"]
    numbers = {row["reason"]: row["number"] for row in reasons}
    if rest := whole - sum(numbers.values()):
        numbers["other reasons"] = rest
    listed = ", ".join(f"{reason} {number:,}" for reason, number in numbers.items())
    of_spent = f"; {spent:,} of these {whole:,} are of groups with one reward" if spent else ""
    groups = scope.rows(
        "SELECT count(*) AS number, count(*) FILTER (WHERE has_one_reward) AS spent FROM ("  # noqa: S608
        f"SELECT bool_or(has_one_reward) AS has_one_reward FROM {reached} AND group_path IS NOT NULL "
        "GROUP BY step, group_path HAVING count(*) > 1 AND NOT bool_or(coalesce(trained, false))"
        ") AS whole"
    )[0]
    of_groups = f" Whole groups left out: {groups['number']:,}, {groups['spent']:,} of them with one reward."
    return f" Left out, by reason: {listed}{of_spent}.{of_groups if groups['number'] else ''}"


def stale(scope: Scope) -> Finding:
    """Find trajectories whose weights were much older than the trainer's when it learned from them."""
    chosen = f"{scope.training} WHERE lag_source = 'trainer' AND lag IS NOT NULL"
    usual = scope.rows(
        f"SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY lag) AS usual FROM {chosen}"  # noqa: S608
    )[0]["usual"]
    if usual is None:
        return unobserved(_NO_LAG)
    limit = 2 * usual + _ALLOWED
    counts = scope.counts(f"SELECT trace_id, step, lag > {limit!r} AS is_bad FROM {chosen}")  # noqa: S608
    fault = Fault(
        _STALE,
        "trajectories with the trainer's lag",
        f"tokens of weights more than {limit:g} versions older than those that trained on them",
        _NO_LAG,
    )
    found = judged(counts, fault, scope.steps)
    lags = scope.rows(
        f"SELECT avg(lag) AS mean, max(lag) AS most FROM {chosen} AND {scope.is_said_by(found)}"  # noqa: S608
    )[0]
    if lags["mean"] is None:
        return found
    said = f" The mean is {lags['mean']:.3g}, the greatest {lags['most']:g}; in the run, a quarter has "
    return replace(found, message=f"{found.message}{said}{usual:g} or less.")
