"""Checks of your own for ``otel-rollout health``: one in Python, one in SQL.

Put such a file into a package of yours, and name the checks in its pyproject.toml. Their names are those that
the command prints, and that ``--only`` and ``--skip`` take:

    [project.entry-points.otel_rollout_health_check]
    answers_without_number = "health_checks:answers_without_number"
    very_long_trajectories = "health_checks:VERY_LONG_TRAJECTORIES"
"""

from __future__ import annotations

from otel_rollout.look.analysis.health import Finding, Run
from otel_rollout.rollout_table import RolloutTable

MAX_SHARE = 0.5
"""Part of a step's trajectories that may end without a line ``#### <number>``."""

VERY_LONG_TRAJECTORIES = """
SELECT step, path, 'A trajectory took more than ten minutes' AS message
FROM trajectories WHERE {run} AND seconds > 600 ORDER BY seconds DESC
"""
"""Each row is a finding. ``{run}`` stands for the condition on the run, and on ``--step``."""


def answers_without_number(table: RolloutTable, run: Run) -> Finding:
    """Find steps in which most trajectories end without an answer."""
    rows = table.sql(
        f"""
        SELECT step, count(*) AS trajectories, count(*) FILTER (WHERE reply NOT LIKE '%####%') AS without,
          min(trace_id) FILTER (WHERE reply NOT LIKE '%####%') AS example
        FROM (
          SELECT trace_id, step, reply,
            row_number() OVER (PARTITION BY trace_id ORDER BY start_ns DESC) AS place
          FROM turns WHERE {run.condition} AND NOT validate AND reply IS NOT NULL
        ) AS turn
        WHERE place = 1 GROUP BY step ORDER BY step
        """  # noqa: S608
    ).dicts()
    if not rows:
        return Finding("unobserved", "No reply was recorded.")
    bad = [row for row in rows if row["without"] > MAX_SHARE * row["trajectories"]]
    if not bad:
        return Finding("healthy", f"In each of {len(rows)} steps, most trajectories end with a number.")
    return Finding(
        "unhealthy",
        f"In {len(bad)} of {len(rows)} steps, most trajectories end without a number.",
        steps=tuple(row["step"] for row in bad if row["step"] is not None),
        evidence=tuple(row["example"] for row in bad),
    )
