"""Check that the sampler's log probabilities are those of the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_rollout.base.training_scores import LOGPROB_DIFF_LIMIT
from otel_rollout.look.analysis.health.findings import UNHEALTHY, Finding, unobserved
from otel_rollout.look.analysis.health.judging import Fault, judged, steps_of_message
from otel_rollout.look.analysis.health.rates import RateLimits, percent

if TYPE_CHECKING:
    from otel_rollout.look.analysis.health.scope import Scope

_MEAN: Final = 0.05
"""Mean difference of a trajectory, in nats, above which sampler and trainer disagree."""
_SHARE: Final = 0.1
"""Share of tokens above ``LOGPROB_DIFF_LIMIT`` from which on they disagree."""
_FACTOR: Final = 4.0
"""Times the usual mean difference of the run, above which they disagree."""
_NOISE: Final = 0.01
"""Mean difference, in nats, that is no disagreement even if the run's usual one is smaller."""
_LIMITS: Final = RateLimits(rise=0.05, always=0.2, steady=0.05, surprise=12.0)
_MISSING: Final = (
    "No score `logprob_diff_mean` or `logprob_diff_share` compares the sampler's log probabilities with the "
    "trainer's."
)


def disagrees(scope: Scope) -> Finding:
    """Find trajectories whose tokens have other log probabilities in the trainer, and the turn of these."""
    compared = f"{scope.training} WHERE mismatch_mean IS NOT NULL OR mismatch_share IS NOT NULL"
    usual = scope.rows(
        f"SELECT count(*) AS number, percentile_cont(0.25) WITHIN GROUP (ORDER BY mismatch_mean) AS usual "  # noqa: S608
        f"FROM {compared}"
    )[0]
    if not usual["number"]:
        return unobserved(_MISSING)
    limit = min(_MEAN, max(_FACTOR * (usual["usual"] or 0.0), _NOISE))
    bad = f"coalesce(mismatch_mean > {limit!r}, false) OR coalesce(mismatch_share > {_SHARE!r}, false)"
    counts = scope.counts(f"SELECT trace_id, step, {bad} AS is_bad FROM {compared}")  # noqa: S608
    fault = Fault(
        _LIMITS,
        "trajectories that sampler and trainer were compared on",
        f"a mean difference above {limit:.2g} nats, or more than {percent(_SHARE)} of the tokens above "
        f"{LOGPROB_DIFF_LIMIT:g}",
        _MISSING,
    )
    found = judged(counts, fault, scope.steps)
    return replace(found, message=f"{found.message}{_where(scope, found, bad)}")


def _where(scope: Scope, found: Finding, bad: str) -> str:
    """Return the usual and the greatest difference; for a fault, also the turn in which it lies."""
    found_rows = scope.rows(
        "SELECT step, mismatch_turn, count(*) AS number, sum(mismatch_mean) AS total, max(mismatch) AS most, "  # noqa: S608
        f"count(*) FILTER (WHERE {bad}) AS bad FROM {scope.training} WHERE mismatch_mean IS NOT NULL "
        "GROUP BY step, mismatch_turn"
    )
    steps = steps_of_message(found, scope.steps)
    rows = [row for row in found_rows if row["step"] in steps]
    if not rows:
        return ""
    mean = sum(row["total"] for row in rows) / sum(row["number"] for row in rows)
    most = max((row["most"] for row in rows if row["most"] is not None), default=None)
    greatest = "" if most is None else f", the largest of a token {most:.3g}"
    said = f" The mean difference is {mean:.2g} nats{greatest}."
    turns: dict[int, int] = {}
    for row in rows:
        if row["mismatch_turn"] is not None:
            turns[row["mismatch_turn"]] = turns.get(row["mismatch_turn"], 0) + row["bad"]
    if found.status != UNHEALTHY or not any(turns.values()):
        return said
    turn = max(turns, key=lambda each: (turns[each], -each))
    share = turns[turn] / sum(turns.values())
    return f"{said} The token with the largest difference is in turn {turn} in {percent(share)} of them."
