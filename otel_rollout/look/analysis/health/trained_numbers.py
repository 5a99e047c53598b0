"""Check the trainer's numbers: the reward that it learned from, and NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.base.training_scores import NUMBERS
from otel_rollout.look.analysis.health.findings import Finding, unobserved
from otel_rollout.look.analysis.health.judging import of_several
from otel_rollout.look.analysis.health.rates import Count, evidence_of, percent, steps_of
from otel_rollout.look.conversation.formatting import steps_in_words
from otel_rollout.table import filters
from otel_rollout.table.training import DIFFERS, ODD

if TYPE_CHECKING:
    from otel_rollout.look.analysis.health.scope import Scope

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


def reward_differs(scope: Scope) -> Finding:
    """Find trajectories whose recorded reward is not the one that was trained on."""
    rows = _chosen(
        scope,
        "SELECT step, count(reward_difference) AS number, count(*) FILTER (WHERE {differs}) AS bad, "
        "max(abs(reward_difference)) AS most, min(trace_id) FILTER (WHERE {differs}) AS first, "
        "max(trace_id) FILTER (WHERE {differs}) AS last "
        "FROM {training} GROUP BY step ORDER BY step",
    )
    compared, bad = (sum(row[name] for row in rows) for name in ("number", "bad"))
    if not compared:
        return unobserved("No trajectory has both a recorded reward and a score `trained_reward`.")
    if not bad:
        return Finding(
            "healthy", f"The trainer learned from the recorded reward in all {compared:,} trajectories."
        )
    counts = _bad(rows)
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
    return Finding("unhealthy", message, steps_of(counts), evidence_of(counts))


def not_finite(scope: Scope) -> Finding:
    """Find advantages and other numbers of the trainer that are NaN or infinite, and texts in their place."""
    rows = _chosen(
        scope,
        "SELECT step, count(*) FILTER (WHERE has_outcome) AS number "
        "FROM {training} GROUP BY step ORDER BY step",
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
    rows = _chosen(
        scope,
        "SELECT step, count(DISTINCT trace_id) AS bad, min(trace_id) AS first, max(trace_id) AS last "  # noqa: S608
        f"FROM ({odd}) AS odd GROUP BY step ORDER BY step",
    )
    if not rows:
        return None
    counts = _bad([{**row, "number": known[row["step"]]} for row in rows])
    of_names = _chosen(
        scope,
        "SELECT step, name, count(DISTINCT trace_id) AS number, min(said) AS least, max(said) AS most "  # noqa: S608
        f"FROM ({odd}) AS odd GROUP BY step, name ORDER BY step, name",
    )
    what = "a score of the trainer is a text, not a number" if is_text else _WHAT
    message = f"In {_parts(counts)}, {what}: {_values(of_names, is_text)}."
    return Finding("unhealthy", message, steps_of(counts), evidence_of(counts))


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


def _chosen(scope: Scope, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query that are of the chosen steps."""
    filled = sql.format(training=scope.training, differs=DIFFERS)
    return [row for row in scope.rows(filled) if row["step"] in scope.steps]


def _parts(counts: list[Count]) -> str:
    """Return how many of these steps' trajectories have something."""
    bad, whole = sum(count.bad for count in counts), sum(count.of for count in counts)
    return f"{bad:,} of {whole:,} trajectories ({percent(bad / whole)}) in {steps_in_words(steps_of(counts))}"


def _bad(rows: list[dict[str, Any]]) -> list[Count]:
    """Return a count for each step that has something, of rows of the queries."""
    return [
        Count(row["step"], row["bad"], row["number"], tuple(filter(None, (row["first"], row["last"]))))
        for row in rows
        if row["bad"]
    ]
