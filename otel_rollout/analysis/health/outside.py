"""Check that model and tool calls belong to trajectories: a call that lost its caller has its own trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout.analysis.calls_outside import calls_outside
from otel_rollout.analysis.health.findings import Finding

if TYPE_CHECKING:
    from otel_rollout.analysis.health.scope import Scope


def calls(scope: Scope) -> Finding:
    """Find steps most of whose trajectories have no call, while calls happened outside of trajectories.

    Calls beside whole trajectories are no fault: warm-up, and judges that score later.
    """
    outside = calls_outside(scope.run)
    number = scope.rows(f"SELECT count(*) AS n FROM ({outside}) AS calls")[0]["n"]  # noqa: S608
    if not number:
        return Finding("healthy", "No model or tool call lies outside of trajectories.")
    found = scope.rows(
        "SELECT step, bare, number, count(*) AS calls "  # noqa: S608
        f"FROM ({_steps(scope)}) AS steps JOIN ({outside}) AS calls "
        "ON calls.start_ns BETWEEN began_ns AND ended_ns "
        "WHERE 2 * bare > number GROUP BY step, bare, number ORDER BY step"
    )
    rows = [row for row in found if row["step"] in scope.steps]
    if not rows:
        return Finding("healthy", f"{number:,} calls outside of trajectories lie beside whole trajectories.")
    bare, of = (sum(row[name] for row in rows) for name in ("bare", "number"))
    return Finding(
        "unhealthy",
        f"{bare:,} of {of:,} trajectories have neither a model nor a tool call, and {number:,} such calls "
        "belong to no trajectory: the caller's context is lost on the way. docs/ray.md says why, and "
        "`otel-rollout doctor --ray` tests it.",
        tuple(row["step"] for row in rows if row["step"] is not None),
    )


def _steps(scope: Scope) -> str:
    """Return the time of each step, its trajectories, and those of them without a call."""
    return f"""
SELECT
  run.step, count(*) AS number, count(*) FILTER (WHERE run.turns + run.tool_calls = 0) AS bare,
  min(root.start_ns) AS began_ns, max(root.start_ns + coalesce(root.duration_ns, 0)) AS ended_ns
FROM {scope.trajectories} AS run JOIN roots AS root ON run.trace_id = root.trace_id
GROUP BY run.step"""  # noqa: S608
