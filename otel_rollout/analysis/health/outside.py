"""Check that operations belong to trajectories: one that lost its caller has a trace of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout.analysis.health.findings import Finding
from otel_rollout.analysis.operations_outside import operations_outside

if TYPE_CHECKING:
    from otel_rollout.analysis.health.scope import Scope


def operations(scope: Scope) -> Finding:
    """Find steps most of whose trajectories are empty, while operations happened outside of trajectories.

    Where trajectories have operations, those outside are no fault: of a warm-up, or of a judge.
    """
    outside = operations_outside(scope.run)
    number = scope.rows(f"SELECT count(*) AS n FROM ({outside}) AS operations")[0]["n"]  # noqa: S608
    if not number:
        return Finding("healthy", "No operation lies outside of trajectories.")
    found = scope.rows(
        "SELECT step, bare, number, count(*) AS operations "  # noqa: S608
        f"FROM ({_steps(scope)}) AS steps JOIN ({outside}) AS outside "
        "ON outside.start_ns BETWEEN began_ns AND ended_ns "
        "WHERE 2 * bare > number GROUP BY step, bare, number ORDER BY step"
    )
    rows = [row for row in found if row["step"] in scope.steps]
    if not rows:
        return Finding(
            "healthy", f"{number:,} operations lie outside of trajectories that have operations, too."
        )
    bare, of = (sum(row[name] for row in rows) for name in ("bare", "number"))
    return Finding(
        "unhealthy",
        f"{bare:,} of {of:,} trajectories are empty, and {number:,} operations belong to no trajectory: the "
        "caller's context is lost on the way. docs/ray.md says why; `otel-rollout doctor --ray` tests it.",
        tuple(row["step"] for row in rows if row["step"] is not None),
    )


def _steps(scope: Scope) -> str:
    """Return the time of each step, its trajectories, and those of them with nothing but root and scores."""
    return f"""
SELECT
  root.step, count(*) AS number, count(*) FILTER (WHERE own.trace_id IS NULL) AS bare,
  min(root.start_ns) AS began_ns, max(root.start_ns + coalesce(root.duration_ns, 0)) AS ended_ns
FROM roots AS root LEFT JOIN (
  SELECT DISTINCT trace_id FROM spans WHERE {scope.condition} AND NOT is_root AND score_name IS NULL
) AS own ON root.trace_id = own.trace_id
WHERE {scope.condition}
GROUP BY root.step"""  # noqa: S608
