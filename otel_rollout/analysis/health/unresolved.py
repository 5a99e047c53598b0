"""Check that scores by identity belong to a trajectory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_rollout.analysis.health.findings import Finding, unobserved
from otel_rollout.analysis.health.rates import in_words

if TYPE_CHECKING:
    from otel_rollout.analysis.health.scope import Scope

_NAMED: Final = 3
"""Scores that a message names at most, for each reason."""
_WHY: Final = {"unknown": "no trajectory has it", "ambiguous": "several trajectories have it"}
"""Reason → its words."""


def scores(scope: Scope) -> Finding:
    """Find scores by identity that belong to no trajectory, by reason."""
    given = _rows(
        scope,
        f"SELECT step, count(*) AS number FROM given_by_identity WHERE {scope.condition} GROUP BY step",  # noqa: S608
    )  # fmt: skip
    if not given:
        return unobserved("No score names its trajectory by identity.")
    rows = _rows(
        scope,
        "SELECT step, sample_index, rollout_n, reason, count(*) AS scores, min(name) AS name "  # noqa: S608
        f"FROM unresolved_scores WHERE {scope.condition} AND step IS DISTINCT FROM ({scope.unfinished}) "
        "GROUP BY step, sample_index, rollout_n, reason ORDER BY step, sample_index, rollout_n",
    )
    number = sum(row["number"] for row in given)
    if not rows:
        return Finding("healthy", f"All {number:,} scores by identity belong to a trajectory.")
    said = [_said(reason, rows, scope.validate) for reason in _WHY]
    steps = tuple(sorted({row["step"] for row in rows if row["step"] is not None}))
    message = (
        f"{sum(row['scores'] for row in rows):,} of {number:,} scores by identity, in {in_words(steps)}, "
        f"belong to no trajectory. {' '.join(filter(None, said))}"
    )
    return Finding("unhealthy", message, steps, _candidates(scope, rows))


def _said(reason: str, rows: list[dict[str, Any]], validate: bool) -> str:
    """Return how many identities could not be resolved for a reason, with names of some; nothing for none."""
    having = [row for row in rows if row["reason"] == reason]
    if not having:
        return ""
    names = ", ".join(f"`{row['name']}` of {_path(row, validate)}" for row in having[:_NAMED])
    more = " and so on" if len(having) > _NAMED else ""
    plural = "identity is" if len(having) == 1 else "identities are"
    return f"{len(having):,} {plural} {reason}, because {_WHY[reason]}: {names}{more}."


def _candidates(scope: Scope, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return trajectories that have the identity of ambiguous scores."""
    if all(row["reason"] != "ambiguous" for row in rows):
        return ()
    found = scope.rows(
        f"SELECT run.trace_id FROM {scope.trajectories} AS run JOIN unresolved_scores AS given "  # noqa: S608
        "ON run.step = given.step AND run.sample_index = given.sample_index "
        f"AND (given.rollout_n IS NULL OR run.rollout_n = given.rollout_n) WHERE given.reason = 'ambiguous' "
        "GROUP BY 1 ORDER BY 1 LIMIT 10"
    )
    return tuple(row["trace_id"] for row in found)


def _rows(scope: Scope, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query that are of the chosen steps."""
    return [row for row in scope.rows(sql) if row["step"] in scope.steps]


def _path(row: dict[str, Any], validate: bool) -> str:
    parts = (row["step"], row["sample_index"], row["rollout_n"])
    path = "/".join("-" if part is None else str(part) for part in parts)
    return f"validation/{path}" if validate else path
