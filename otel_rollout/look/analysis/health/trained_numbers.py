"""Check the trainer's numbers for NaN, against recorded rewards, and against the sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from otel_rollout.base.training_scores import LOGPROB_DIFF_LIMIT, NUMBERS
from otel_rollout.look.analysis.health.findings import UNHEALTHY, Finding, unobserved
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
from otel_rollout.look.conversation.formatting import first_of, percent
from otel_rollout.otlp.evaluations import ODD
from otel_rollout.table import filters
from otel_rollout.table.training import DIFFERS

_NOT_FINITE: Final = f"coalesce(NOT abs(coalesce(value, TRY_CAST(label AS DOUBLE))) < {ODD}, false)"
"""SQL condition that a score is not finite; the table stores such a number as a label."""
_IS_TEXT: Final = f"(value IS NULL AND NOT {_NOT_FINITE})"
_SAID: Final = "coalesce(label, CAST(value AS VARCHAR))"
_WHAT: Final = "a number of the trainer is NaN, infinite or huge"
_NAMED: Final = 3
"""Maximum values of a score that a message names."""
_MAX_SAID: Final = 40
"""Characters of a value that a message shows."""
_MEAN: Final = 0.05
"""Mean difference of a trajectory, in nats, above which sampler and trainer disagree."""
_SHARE: Final = 0.1
"""Share of tokens above ``LOGPROB_DIFF_LIMIT``, above which sampler and trainer disagree."""
_FACTOR: Final = 4.0
"""Multiple of the run's usual mean difference, above which sampler and trainer disagree."""
_NOISE: Final = 0.01
"""Mean difference, in nats, that is no disagreement even if the run's usual one is smaller."""
_LIMITS: Final = RateLimits(rise=0.05, always=0.2, steady=0.05, surprise=12.0)
_MISSING: Final = (
    "No score `logprob_diff_mean` or `logprob_diff_share` compares the sampler's log probabilities with the "
    "trainer's."
)


def reward_differs(scope: Scope) -> Finding:
    """Find trajectories whose recorded reward is not the one that was trained on."""
    compared = f"{scope.training} WHERE reward_difference IS NOT NULL"
    counts = of_steps(
        scope.counts(f"SELECT trace_id, step, {DIFFERS} AS is_bad FROM {compared}"),  # noqa: S608
        scope.steps,
    )
    if not counts:
        return unobserved("No trajectory has both a recorded reward and a score `trained_reward`.")
    differing = [count for count in counts if count.bad]
    if not differing:
        number = sum(count.of for count in counts)
        return Finding(
            "healthy", f"The trainer learned from the recorded reward in all {number:,} trajectories."
        )
    first = differing[0].evidence[0]
    example = scope.rows(
        "SELECT trained_reward, kl_penalty, "  # noqa: S608
        "trained_reward + coalesce(kl_penalty, 0) - reward_difference AS reward, "
        f"(SELECT max(abs(reward_difference)) FROM {compared} AND {scope.is_judged} AND {DIFFERS}) AS most "
        f"FROM {scope.training} WHERE {filters.equals('trace_id', first)}"
    )[0]
    penalty = f" after a KL penalty of {example['kl_penalty']:.4g}" if example["kl_penalty"] else ""
    message = (
        f"In {_parts(differing)}, the reward that was trained on is not the recorded one, by up "
        f"to {example['most']:.4g}. The first was trained on {example['trained_reward']:.4g}{penalty}, and "
        f"{example['reward']:.4g} was recorded."
    )
    return fault_in(differing, message)


def not_finite(scope: Scope) -> Finding:
    """Find advantages and other trained numbers that are NaN, infinite or huge, and texts in their place."""
    known = f"{scope.training} WHERE has_outcome AND {scope.is_judged}"
    number = scope.engine.count(known)
    if not number:
        return unobserved("No score says what training made of a trajectory.")
    found = [part for is_text in (False, True) if (part := _odd(scope, known, is_text))]
    if not found:
        return Finding("healthy", f"All numbers of the trainer are finite, in {number:,} trajectories.")
    return of_several(*found)


def _odd(scope: Scope, known: str, is_text: bool) -> Finding | None:
    """Find scores that are texts if ``is_text``, else NaN, infinite or huge ones; None without any."""
    odd = (
        f"SELECT trace_id, name, left({_SAID}, {_MAX_SAID}) AS said FROM newest_scores "  # noqa: S608
        f"WHERE {filters.equals('name', NUMBERS)} AND {_IS_TEXT if is_text else _NOT_FINITE} "
        f"AND trace_id IN (SELECT trace_id FROM {known})"
    )
    counts = scope.counts(
        "SELECT known.trace_id, step, odd.trace_id IS NOT NULL AS is_bad "  # noqa: S608
        f"FROM (SELECT trace_id, step FROM {known}) AS known "
        f"LEFT JOIN (SELECT DISTINCT trace_id FROM ({odd}) AS scores) AS odd ON known.trace_id = odd.trace_id"
    )
    counts = [count for count in counts if count.bad]
    if not counts:
        return None
    rows = scope.rows(
        "SELECT name, count(DISTINCT trace_id) AS number, count(DISTINCT said) AS different, "  # noqa: S608
        f"array_slice(array_agg(DISTINCT said ORDER BY said), 1, {_NAMED}) AS said "
        f"FROM ({odd}) AS odd GROUP BY name ORDER BY name"
    )
    quote = '"' if is_text else ""
    values = ", ".join(
        f"`{row['name']}` is "
        + first_of([f"{quote}{each}{quote}" for each in row["said"]], _NAMED, row["different"], " or ")
        + f" in {row['number']:,}"
        for row in rows
    )
    what = "a score of the trainer is a text, not a number" if is_text else _WHAT
    return fault_in(counts, f"In {_parts(counts)}, {what}: {values}.")


def _parts(counts: list[Count]) -> str:
    """Return in words how many of the steps' trajectories have the fault."""
    bad, whole = sum(count.bad for count in counts), sum(count.of for count in counts)
    return f"{bad:,} of {whole:,} trajectories ({percent(bad / whole)}) in {steps_said(counts)}"


# --- sampler and trainer -----------------------------------------------------------------------------------


def sampler_differs(scope: Scope) -> Finding:
    """Find trajectories whose tokens have other log probabilities in the trainer than in the sampler."""
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
    """Return the mean and the greatest difference; for a fault, also the turn in which it lies most often."""
    known = f"{scope.training} WHERE {scope.is_said_by(found)}"
    sizes = scope.rows(f"SELECT avg(mismatch_mean) AS mean, max(mismatch) AS most FROM {known}")[0]  # noqa: S608
    mean, most = sizes["mean"], sizes["most"]
    said = "" if most is None else f" The largest difference of a token is {most:.3g}."
    if mean is not None:
        greatest = "" if most is None else f", the largest of a token {most:.3g}"
        said = f" The mean difference is {mean:.2g} nats{greatest}."
    turns = scope.rows(
        f"SELECT mismatch_turn, count(*) AS number FROM {known} AND mismatch_turn IS NOT NULL AND ({bad}) "  # noqa: S608
        "GROUP BY mismatch_turn ORDER BY number DESC, mismatch_turn"
    )
    if found.status != UNHEALTHY or not turns:
        return said
    number, of = turns[0]["number"], sum(row["number"] for row in turns)
    return (
        f"{said} The token with the largest difference is in turn {turns[0]['mismatch_turn']} "
        f"in {number:,} of the {of:,} whose turn is known."
    )
