"""Check that trajectories come from weights that are new enough."""

from __future__ import annotations

import itertools
from collections.abc import Container
from typing import Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Count, Fault, RateLimits, fault_in, judged
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.conversation.formatting import steps_in_words

_STALE: Final = RateLimits(rise=0.05, always=0.5, steady=0.2)
_NEWEST: Final = "coalesce(policy_version_max, policy_version_min)"
_NO_VERSION: Final = "No trajectory has `policy_version_min`, the version of the weights that made it."
_ALLOWED: Final = 2
"""Versions of lag that are allowed beyond twice the usual lag of the run."""
_STUCK: Final = 3
"""Minimum steps in a row without a new version for a finding, if versions rise with most steps."""
_NEVER: Final = 5
"""Minimum steps of a run for a finding that its version never rises."""


def lag(scope: Scope) -> Finding:
    """Find trajectories of stale weights, and steps in which no new weights arrive."""
    known = f"{scope.trajectories} WHERE policy_version_min IS NOT NULL AND step IS NOT NULL"
    rows = scope.rows(
        f"SELECT step, max({_NEWEST}) AS newest, min(trace_id) AS first FROM {known} GROUP BY step"  # noqa: S608
    )
    newest = {row["step"]: row["newest"] for row in rows}
    if scope.steps.isdisjoint(newest):
        return unobserved(_NO_VERSION)
    stuck = _stuck(newest, scope.steps)
    if not stuck:
        return _stale(scope, known)
    first = {row["step"]: row["first"] for row in rows}
    counts = [Count(step, 1, 1, (first[step],)) for step in stuck]
    message = f"No new weights arrive: the version stays {newest[stuck[0]]} in {steps_in_words(stuck)}."
    return fault_in(counts, message)


def _stuck(newest: dict[int, int], chosen: Container[int | None]) -> list[int]:
    """Return the chosen steps in the longest series without a new version; empty if no series is too long."""
    steps = sorted(newest)
    rises = [newest[step] > newest[before] for before, step in itertools.pairwise(steps)]
    if not any(rises):
        return [step for step in steps if step in chosen] if len(steps) >= _NEVER else []
    if sum(rises) * 2 < len(rises) and sum(rises[: len(rises) // 3 + 1]) * 2 < len(rises) // 3 + 1:
        return []  # versions that rise now and then, from the beginning
    longest: list[int] = []
    current: list[int] = []
    for step, has_risen in zip(steps[1:], rises, strict=True):
        current = [] if has_risen else [*current, step]
        found = [step for step in current if step in chosen] if len(current) >= _STUCK else []
        longest = max(longest, found, key=len)
    return longest


def _stale(scope: Scope, known: str) -> Finding:
    """Find trajectories whose weights are too far behind the newest of their step and all earlier steps."""
    lags = (
        f"(SELECT trace_id, step, max({_NEWEST}) OVER (ORDER BY step) - policy_version_min AS lag, "  # noqa: S608
        f"step - policy_version_min AS lag_by_step FROM {known}) AS lags"
    )
    usual = scope.rows(
        "SELECT CAST(floor(percentile_cont(0.5) WITHIN GROUP (ORDER BY lag)) AS BIGINT) AS usual "  # noqa: S608
        f"FROM {lags}"
    )[0]["usual"]
    sizes = scope.rows(
        "SELECT max(lag) AS most, avg(lag_by_step) AS mean_by_step, max(lag_by_step) AS most_by_step "  # noqa: S608
        f"FROM {lags} WHERE {scope.is_judged}"
    )[0]
    limit = 2 * usual + _ALLOWED
    fault = Fault(
        _STALE,
        "trajectories with a known version of the weights",
        f"weights more than {limit} versions behind the newest of their step",
        _NO_VERSION,
    )
    note = f" Usual is a lag of {usual}; the greatest is {sizes['most']}."
    if not scope.validate:
        note += (
            " Counted from the step's number, as `report` does, the lag is "
            f"{sizes['mean_by_step']:.3g} on average, at most {sizes['most_by_step']}."
        )
    counts = scope.counts(f"SELECT trace_id, step, lag > {limit} AS is_bad FROM {lags}")  # noqa: S608
    return judged(counts, fault, scope.steps, note)
