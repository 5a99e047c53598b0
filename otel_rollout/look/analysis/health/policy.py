"""Check that trajectories come from weights that are new enough."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Container
from typing import Any, Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import Count, Fault, RateLimits, counted, fault_in, judged
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.conversation.formatting import steps_in_words

_STALE: Final = RateLimits(rise=0.05, always=0.5, steady=0.2)
_NO_VERSION: Final = "No trajectory has `policy_version_min`, the version of the weights that made it."
_ALLOWED: Final = 2
"""Versions of lag, beyond twice the usual lag of the run, from which a trajectory is stale."""
_STUCK: Final = 3
"""Steps in a row without a new version that are a finding, if the run's versions rise with most steps."""
_NEVER: Final = 5
"""Steps of a run without which a version that never rises is no finding."""


def lag(scope: Scope) -> Finding:
    """Find trajectories of stale weights, and steps in which no new weights arrive."""
    rows = scope.rows(
        "SELECT step, policy_version_min AS oldest, "  # noqa: S608
        "max(coalesce(policy_version_max, policy_version_min)) AS newest, "
        f"count(*) AS number, min(trace_id) AS first, max(trace_id) AS last FROM {scope.trajectories} "
        "WHERE policy_version_min IS NOT NULL AND step IS NOT NULL "
        "GROUP BY step, policy_version_min ORDER BY step"
    )
    if not any(row["step"] in scope.steps for row in rows):
        return unobserved(_NO_VERSION)
    newest: dict[int, int] = {}
    for row in rows:
        newest[row["step"]] = max(newest.get(row["step"], row["newest"]), row["newest"])
    stuck = _stuck(newest, scope.steps)
    if stuck:
        first = {row["step"]: row["first"] for row in rows}
        counts = [Count(step, 1, 1, (first[step],)) for step in stuck]
        message = f"No new weights arrive: the version stays {newest[stuck[0]]} in {steps_in_words(stuck)}."
        return fault_in(counts, message)
    return _stale(rows, newest, scope)


def _stuck(newest: dict[int, int], chosen: Container[int | None]) -> list[int]:
    """Return the chosen steps of the longest row without a new version, if it is too long."""
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


def _stale(rows: list[dict[str, Any]], newest: dict[int, int], scope: Scope) -> Finding:
    highest, so_far = {}, min(newest.values())
    for step in sorted(newest):
        so_far = highest[step] = max(so_far, newest[step])
    lags: Counter[int] = Counter()
    for row in rows:
        lags[highest[row["step"]] - row["oldest"]] += row["number"]
    usual = statistics.median_low(lags.elements())
    limit = 2 * usual + _ALLOWED
    chosen = [row for row in rows if row["step"] in scope.steps]
    most = max(highest[row["step"]] - row["oldest"] for row in chosen)
    fault = Fault(
        _STALE,
        "trajectories with a known version of the weights",
        f"weights more than {limit} versions behind the newest of their step",
        _NO_VERSION,
    )
    note = f" Usual is a lag of {usual}; the greatest is {most}.{_by_step(chosen, scope)}"
    counts = counted(rows, lambda row: highest[row["step"]] - row["oldest"] > limit)
    return judged(counts, fault, scope.steps, note)


def _by_step(rows: list[dict[str, Any]], scope: Scope) -> str:
    """Return the lag as ``report`` counts it, after a message; nothing of validation."""
    if scope.validate:
        return ""
    lags = [(row["step"] - row["oldest"], row["number"]) for row in rows]
    mean = sum(lag * number for lag, number in lags) / sum(number for _, number in lags)
    return (
        f" Counted from the step's number, as `report` does, the lag is {mean:.3g} on average, at most "
        f"{max(lag for lag, _ in lags)}."
    )
