"""Load the checks that users have installed, as entry points of one group.

An entry point is a function ``(table: RolloutTable, run: Run) -> Finding | Iterable[Finding]``, or the text
of a SELECT whose rows are findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.analysis.health.findings import MAX_EVIDENCE, Finding
from otel_rollout.table.row_set import dicts_of

if TYPE_CHECKING:
    from otel_rollout.analysis.health.scope import Scope

GROUP: Final = "otel_rollout_health_check"
PLACE: Final = "{run}"
"""Part of a check in SQL that stands for the condition on run, steps, and training or validation."""
_MAX_ROWS: Final = 10_000
"""Rows of a check in SQL that are read."""

Answer = Callable[["Scope"], Finding | Iterable[Finding]]


def installed(table: str) -> list[tuple[str, Answer]]:
    """Return name and check of each entry point, by name.

    A check is loaded when it runs, so that one that cannot be imported harms no other.

    Args:
        table: address of the table, for checks in Python.
    """
    points = {point.name: point for point in entry_points(group=GROUP)}
    return [(name, _Own(points[name], table)) for name in sorted(points)]


class _Own:
    """A user's check.

    Args:
        point: the entry point.
        table: address of the table.
    """

    def __init__(self, point: EntryPoint, table: str) -> None:
        self._point = point
        self._table = table

    def __call__(self, scope: Scope) -> Finding | Iterable[Finding]:
        """Run the check.

        Raises:
            Exception: whatever a user's function raises.
        """
        check = self._point.load()
        if isinstance(check, str):
            return _of_rows(_rows(scope, check))
        if not callable(check):
            raise TypeError(f"{self._point.value} is neither a function nor the text of a SELECT")
        from otel_rollout.rollout_table import open_table

        found: Any = check(open_table(self._table), scope.run)
        if not isinstance(found, Finding) and not isinstance(found, Iterable):
            raise TypeError(f"{self._point.value} has returned {type(found).__name__} and no Finding")
        return found


def _rows(scope: Scope, sql: str) -> list[dict[str, Any]]:
    if PLACE not in sql:
        raise ValueError(f"the SELECT has no {PLACE}, which stands for the condition on the run")
    return dicts_of(scope.select(sql.replace(PLACE, f"({scope.chosen})"), _MAX_ROWS))


def _of_rows(rows: list[dict[str, Any]]) -> Finding:
    """Return the finding of the rows of a SELECT: no row is healthy."""
    if not rows:
        return Finding("healthy", "The SELECT has no row.")
    number = f"{len(rows):,}{' or more' if len(rows) == _MAX_ROWS else ''} row{'s' if len(rows) > 1 else ''}"
    steps = {row["step"] for row in rows if isinstance(row.get("step"), int)}
    named = (row.get("trace_id") or row.get("path") for row in rows)
    evidence = tuple(dict.fromkeys(str(name) for name in named if name))[:MAX_EVIDENCE]
    said = dict.fromkeys(str(row["message"]) for row in rows if row.get("message"))
    message = "; ".join(list(said)[:3]) or "The SELECT has rows"
    return Finding("unhealthy", f"{message} ({number}).", tuple(sorted(steps)), evidence)
