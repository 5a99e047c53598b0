"""Find a run's operations that began outside of any trajectory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout.table import filters

if TYPE_CHECKING:
    from otel_rollout.look.analysis.run_choice import Run


def operations_outside(run: Run) -> str:
    """Return a query for the starts of these operations, in ns; they have neither project nor experiment."""
    return (
        f"SELECT start_ns FROM spans WHERE {filters.equals('run_id', run.run_id)} "  # noqa: S608
        "AND validate IS NULL AND is_root"
    )
