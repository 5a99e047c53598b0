"""Check the trainer's numbers: against the recorded reward, against the sampler's, and for NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from otel_rollout.base.training_scores import LOGPROB_DIFF_LIMIT, NUMBERS
from otel_rollout.look.analysis.health.findings import UNHEALTHY, Finding, unobserved
from otel_rollout.look.analysis.health.rates import (
    Count,
    Fault,
    RateLimits,
    fault_in,
    judged,
    of_several,
    percent,
    steps_of_message,
    steps_said,
)
from otel_rollout.look.analysis.health.scope import Scope, counts_of
from otel_rollout.table import filters
from otel_rollout.table.training import DIFFERS, ODD

_NAMES_OF_ODD: Final = "lower(label) IN ('nan', 'inf', '-inf')"
_NOT_FINITE: Final = f"(isnan(value) OR abs(value) >= {ODD} OR (value IS NULL AND {_NAMES_OF_ODD}))"
"""Condition on a score; the table keeps what is no finite number as a label."""
_IS_TEXT: Final = f"(value IS NULL AND NOT {_NAMES_OF_ODD})"
_SAID: Final = "coalesce(label, CAST(value AS VARCHAR))"
_WHAT: Final = "a number of the trainer is NaN or infinite"
_NAMED: Final = 3
"""Values of a score that a message names at most."""
_MAX_SAID: Final = 40
"""Characters of a value that a message shows."""
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


def reward_differs(scope: Scope) -> Finding:
    """Find trajectories whose recorded reward is not the one that was trained on."""
    rows = scope.rows_of_steps(
        f"SELECT step, count(reward_difference) AS number, count(*) FILTER (WHERE {DIFFERS}) AS bad, "  # noqa: S608
        f"max(abs(reward_difference)) AS most, min(trace_id) FILTER (WHERE {DIFFERS}) AS first, "
        f"max(trace_id) FILTER (WHERE {DIFFERS}) AS last "
        f"FROM {scope.training} GROUP BY step ORDER BY step"
    )
    compared, bad = (sum(row[name] for row in rows) for name in ("number", "bad"))
    if not compared:
        return unobserved("No trajectory has both a recorded reward and a score `trained_reward`.")
    if not bad:
        return Finding(
            "healthy", f"The trainer learned from the recorded reward in all {compared:,} trajectories."
        )
    counts = counts_of(row for row in rows if row["bad"])
    example = scope.rows(
        f"SELECT trained_reward, kl_penalty, reward FROM {scope.training} "  # noqa: S608
        f"WHERE trace_id = '{counts[0].evidence[0]}'"
    )[0]
    penalty = f" after a KL penalty of {example['kl_penalty']:.4g}" if example["kl_penalty"] else ""
    most = max(row["most"] for row in rows if row["bad"])
    message = (
        f"In {_parts(counts)}, the reward that was trained on is not the recorded one, by up "
        f"to {most:.4g}. The first was trained on {example['trained_reward']:.4g}{penalty}, and "
        f"{example['reward']:.4g} was recorded."
    )
    return fault_in(counts, message)


def not_finite(scope: Scope) -> Finding:
    """Find advantages and other numbers of the trainer that are NaN or infinite, and texts in their place."""
    rows = scope.rows_of_steps(
        "SELECT step, count(*) FILTER (WHERE has_outcome) AS number "  # noqa: S608
        f"FROM {scope.training} GROUP BY step ORDER BY step"
    )
    known = {row["step"]: row["number"] for row in rows if row["number"]}
    if not known:
        return unobserved("No score says what training made of a trajectory.")
    parts = [_odd(scope, known, is_text) for is_text in (False, True)]
    found = [part for part in parts if part]
    if not found:
        number = sum(known.values())
        return Finding("healthy", f"All numbers of the trainer are finite, in {number:,} trajectories.")
    return of_several(*found)


def _odd(scope: Scope, known: Mapping[int | None, int], is_text: bool) -> Finding | None:
    """Find scores that are no finite numbers: texts, or NaN and infinities."""
    odd = (
        f"SELECT known.step, score.trace_id, name, left({_SAID}, {_MAX_SAID}) AS said "  # noqa: S608
        f"FROM newest_scores AS score JOIN {scope.training} AS known ON score.trace_id = known.trace_id "
        f"WHERE {filters.equals('name', NUMBERS)} AND {_IS_TEXT if is_text else _NOT_FINITE}"
    )
    rows = scope.rows_of_steps(
        "SELECT step, count(DISTINCT trace_id) AS bad, min(trace_id) AS first, max(trace_id) AS last "  # noqa: S608
        f"FROM ({odd}) AS odd GROUP BY step ORDER BY step"
    )
    if not rows:
        return None
    counts = counts_of({**row, "number": known[row["step"]]} for row in rows)
    of_names = scope.rows_of_steps(
        "SELECT step, name, count(DISTINCT trace_id) AS number, min(said) AS least, max(said) AS most "  # noqa: S608
        f"FROM ({odd}) AS odd GROUP BY step, name ORDER BY step, name"
    )
    what = "a score of the trainer is a text, not a number" if is_text else _WHAT
    message = f"In {_parts(counts)}, {what}: {_values(of_names, is_text)}."
    return fault_in(counts, message)


def _values(rows: list[dict[str, Any]], is_text: bool) -> str:
    """Return each score with some of its values, and in how many trajectories it has them."""
    numbers: Counter[str] = Counter()
    values: dict[str, set[str]] = {}
    for row in rows:
        numbers[row["name"]] += row["number"]
        values.setdefault(row["name"], set()).update((row["least"], row["most"]))
    quote = '"' if is_text else ""
    said = {name: [f"{quote}{each}{quote}" for each in sorted(found)] for name, found in values.items()}
    return ", ".join(
        f"`{name}` is {' or '.join(said[name][:_NAMED])} in {number:,}"
        for name, number in sorted(numbers.items())
    )


def _parts(counts: list[Count]) -> str:
    """Return how many of these steps' trajectories have something."""
    bad, whole = sum(count.bad for count in counts), sum(count.of for count in counts)
    return f"{bad:,} of {whole:,} trajectories ({percent(bad / whole)}) in {steps_said(counts)}"


# --- sampler and trainer -----------------------------------------------------------------------------------


def sampler_differs(scope: Scope) -> Finding:
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
