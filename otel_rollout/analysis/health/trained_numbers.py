"""Check the trainer's numbers: the reward that it learned from, and NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_rollout.analysis.health.findings import Finding, unobserved
from otel_rollout.analysis.health.rates import Count, evidence_of, in_words, percent, steps_of
from otel_rollout.table.training import DIFFERS

if TYPE_CHECKING:
    from otel_rollout.analysis.health.scope import Scope


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
    """Find advantages and other numbers of the trainer that are NaN or infinite."""
    rows = _chosen(
        scope,
        "SELECT step, count(*) FILTER (WHERE has_outcome) AS number, count(not_finite) AS bad, "
        "min(not_finite) AS name, min(trace_id) FILTER (WHERE not_finite IS NOT NULL) AS first, "
        "max(trace_id) FILTER (WHERE not_finite IS NOT NULL) AS last "
        "FROM {training} GROUP BY step ORDER BY step",
    )
    known, bad = (sum(row[name] for row in rows) for name in ("number", "bad"))
    if not known:
        return unobserved("No score says what training made of a trajectory.")
    if not bad:
        return Finding("healthy", f"All numbers of the trainer are finite, in {known:,} trajectories.")
    counts = _bad(rows)
    names = ", ".join(sorted({f"`{row['name']}`" for row in rows if row["bad"]}))
    message = f"In {_parts(counts)}, a number of the trainer is NaN or infinite: {names}."
    return Finding("unhealthy", message, steps_of(counts), evidence_of(counts))


def _chosen(scope: Scope, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query that are of the chosen steps."""
    filled = sql.format(training=scope.training, differs=DIFFERS)
    return [row for row in scope.rows(filled) if row["step"] in scope.steps]


def _parts(counts: list[Count]) -> str:
    """Return how many of these steps' trajectories have something."""
    bad, whole = sum(count.bad for count in counts), sum(count.of for count in counts)
    return f"{bad:,} of {whole:,} trajectories ({percent(bad / whole)}) in {in_words(steps_of(counts))}"


def _bad(rows: list[dict[str, Any]]) -> list[Count]:
    """Return a count for each step that has something, of rows of the queries."""
    return [
        Count(row["step"], row["bad"], row["number"], tuple(filter(None, (row["first"], row["last"]))))
        for row in rows
        if row["bad"]
    ]
