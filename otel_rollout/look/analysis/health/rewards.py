"""Check the rewards: missing, constant, without spread in their group, or contrary to the verifier."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.rates import (
    Count,
    Fault,
    RateLimits,
    fault_in,
    judged,
    of_several,
    of_steps,
    steps_said,
)
from otel_rollout.look.analysis.health.scope import Scope
from otel_rollout.look.conversation.formatting import counted, first_of, steps_in_words

_MISSING: Final = Fault(
    RateLimits(rise=0.01, always=0.02, steady=0.002),
    "trajectories that ended without an error",
    "no reward",
    "In no step that is over has a trajectory ended without an error.",
    "In steps that are over, all {of} trajectories that ended without an error have a reward.",
)
_NO_SPREAD: Final = Fault(
    RateLimits(rise=0.6, always=0.95, steady=0.8, factor=1.5, surprise=12.0),
    "groups with two rewards or more",
    "one reward for all siblings, which teaches nothing",
    "No group has two rewards: there are no siblings, or no rewards.",
    "In all {of} groups with two rewards or more, siblings have different rewards.",
)
_DISAGREEING: Final = RateLimits(rise=0.03, always=0.1, steady=0.02)
_NO_REWARD: Final = "No trajectory has a score named `reward`."
_MIN_REWARDS: Final = 8
"""Minimum rewards to judge whether they are constant."""
_NAMED: Final = 3
"""Maximum rewards that a message names."""
_SURPRISE: Final = 12.0
"""Minimum surprise, in nats, of equal rewards: groups may agree on a common value by chance."""
_MAX_VALUES: Final = 1000
"""Number of most frequent rewards that are counted; other rewards count as rare."""
_MIN_VERDICTS: Final = 4
"""Minimum right answers, and minimum wrong ones, to know the usual reward of each."""
_VERDICT_NAMES: Final = (
    "correct", "is_correct", "answer_correct", "acc", "accuracy", "passed", "pass", "success", "solved",
    "verified",
)  # fmt: skip
"""Names of scores that say whether an answer is right; view ``span_signs`` has them, too."""


def missing(scope: Scope) -> Finding:
    """Find steps whose trajectories ended without an error and without a reward."""
    if not scope.engine.count(f"{scope.trajectories} WHERE NOT has_no_reward"):
        return unobserved(_NO_REWARD)
    counts = scope.counts(
        "SELECT trace_id, step, has_no_reward AS is_bad "  # noqa: S608
        f"FROM {scope.trajectories} WHERE state = 'ok' AND {scope.is_over}"
    )
    return replace(judged(counts, _MISSING, scope.steps), is_little=True)


# --- constant ----------------------------------------------------------------------------------------------


def constant(scope: Scope) -> Finding:
    """Find steps in which all rewards are equal, where chance does not explain that."""
    steps = scope.rows(
        "SELECT step, count(*) AS rewards, count(DISTINCT group_path) AS groups, min(reward) AS least, "  # noqa: S608
        f"max(reward) AS greatest, min(trace_id) AS first FROM {scope.trajectories} "
        "WHERE reward IS NOT NULL GROUP BY step ORDER BY step"
    )
    chosen = [step for step in steps if step["step"] in scope.steps]
    if not chosen:
        return unobserved(_NO_REWARD)
    rewards = sum(step["rewards"] for step in steps)
    if rewards < _MIN_REWARDS:
        few = f"Only {counted(rewards, 'reward')}: with fewer than {_MIN_REWARDS} nobody knows."
        return unobserved(few, is_little=True)
    found = [step for step in _constant_steps(scope, steps) if step["step"] in scope.steps]
    if not found:
        least, greatest = min(step["least"] for step in chosen), max(step["greatest"] for step in chosen)
        if least == greatest:
            number = sum(step["rewards"] for step in chosen)
            return Finding("healthy", f"All {number:,} rewards are {least:g}, which may be chance.")
        equal = [step["step"] for step in chosen if step["least"] == step["greatest"]]
        few = f"within {steps_in_words(equal)} all are equal, which may be chance"
        rest = few if equal else "no step has only one"
        return Finding("healthy", f"Rewards are between {least:g} and {greatest:g}; {rest}.")
    values = sorted({step["least"] for step in found})
    shown = first_of([f"{value:g}" for value in values], _NAMED)
    counts = [Count(step["step"], step["rewards"], step["rewards"], (step["first"],)) for step in found]
    message = (
        f"All {sum(count.of for count in counts):,} rewards of {steps_said(counts)} are {shown}: "
        "the policy gradient has nothing to learn from them."
    )
    return fault_in(counts, message)


def _constant_steps(scope: Scope, steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps of each series with only one reward that is too long for chance."""
    common = {
        row["reward"]: row["n"]
        for row in scope.rows(
            f"SELECT reward, count(*) AS n FROM {scope.trajectories} WHERE reward IS NOT NULL "  # noqa: S608
            f"GROUP BY reward ORDER BY n DESC LIMIT {_MAX_VALUES}"
        )
    }
    total = sum(step["rewards"] for step in steps)
    found = []
    for value, together in itertools.groupby(
        steps, lambda step: step["least"] if step["least"] == step["greatest"] else None
    ):
        row = list(together)
        rewards = sum(step["rewards"] for step in row)
        if value is None or rewards < _MIN_REWARDS:
            continue
        chance = (common.get(value, rewards) - rewards + 1) / (total - rewards + 2)
        groups = sum(step["groups"] for step in row)
        if rewards == total or -math.log(chance) * groups >= _SURPRISE:
            found += row
    return found


# --- groups ------------------------------------------------------------------------------------------------


def groups_without_spread(scope: Scope) -> Finding:
    """Find steps in which too many groups have the same reward for all siblings."""
    counts = scope.counts(f"SELECT trace_id, step, has_one_reward AS is_bad FROM {scope.groups}")  # noqa: S608
    return judged(counts, _NO_SPREAD, scope.steps)


# --- the verifier ------------------------------------------------------------------------------------------


def disagrees(scope: Scope) -> Finding:
    """Find rewards that contradict a verifier: low ones of right answers, and high ones of wrong answers."""
    rows = scope.rows(
        f"SELECT step, verdict, reward, count(*) AS number FROM ({_verdicts(scope)}) AS judged "  # noqa: S608
        "GROUP BY step, verdict, reward "
        "ORDER BY step, verdict, reward"
    )
    if not any(row["step"] in scope.steps for row in rows):
        return unobserved("No verdict of a verifier is recorded beside a reward.")
    right, wrong = (_median([row for row in rows if row["verdict"] is each]) for each in (True, False))
    if right is None or wrong is None:
        of_right, of_wrong = (
            sum(row["number"] for row in rows if row["verdict"] is each) for each in (True, False)
        )
        return unobserved(
            f"Of the verdicts beside a reward, {of_right} say that the answer is right, and {of_wrong} that "
            f"it is wrong: to compare, each must be at least {_MIN_VERDICTS}."
        )
    if right <= wrong:
        message = (
            f"The usual reward is {right:g} if the verifier says that the answer is right, and {wrong:g} if "
            "it says that the answer is wrong."
        )
        return fault_in(of_steps(_counts(scope, "true", "true"), scope.steps), message)
    low = _counts(scope, f"reward <= {wrong!r}", "verdict")
    high = _counts(scope, f"reward >= {right!r}", "NOT verdict")
    return of_several(
        judged(low, _against("correct", f"at most {wrong:g}, the usual one of incorrect"), scope.steps),
        judged(high, _against("incorrect", f"at least {right:g}, the usual one of correct"), scope.steps),
    )


def _counts(scope: Scope, is_bad: str, condition: str) -> list[Count]:
    """Return a count for each step of the trajectories with a verdict for which a SQL condition holds."""
    verdicts = f"SELECT *, {is_bad} AS is_bad FROM ({_verdicts(scope)}) AS judged WHERE {condition}"  # noqa: S608
    return scope.counts(verdicts)


def _against(verdict: str, reward: str) -> Fault:
    """Return the fault that trajectories with one verdict have the usual reward of the other verdict."""
    return Fault(
        _DISAGREEING,
        f"trajectories that the verifier calls {verdict}",
        f"a reward of {reward} answers",
        f"No answer is {verdict}.",
    )


def _verdicts(scope: Scope) -> str:
    """Return a SELECT of trajectories with a reward and one verdict, from outputs, scores and comments."""
    listed = ", ".join(f"'{name}'" for name in _VERDICT_NAMES)
    return f"""
SELECT run.trace_id, run.step, run.reward, bool_or(given.verdict) AS verdict
FROM (
  SELECT trace_id, true AS verdict FROM {scope.signs} WHERE is_right
  UNION ALL
  SELECT trace_id, false AS verdict FROM {scope.signs} WHERE is_wrong
  UNION ALL
  SELECT trace_id, value > 0.5 AS verdict FROM newest_scores
  WHERE lower(name) IN ({listed}) AND value IN (0, 1)
) AS given JOIN {scope.trajectories} AS run ON given.trace_id = run.trace_id
WHERE run.reward IS NOT NULL
GROUP BY run.trace_id, run.step, run.reward HAVING bool_or(given.verdict) = bool_and(given.verdict)"""  # noqa: S608


def _median(rows: list[dict[str, Any]]) -> float | None:
    """Return the median reward of rows that stand for several trajectories; None for too few."""
    rewards = [row["reward"] for row in rows for _ in range(row["number"])]
    return float(statistics.median_low(rewards)) if len(rewards) >= _MIN_VERDICTS else None
