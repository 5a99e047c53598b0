"""Find example trajectories of a finding, by the names that ``otel-rollout show`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.run_choice import Run, StepKey, paths_of, rows_of
from otel_rollout.table import filters
from otel_rollout.table.query import Engine
from otel_rollout.table.select import literal

_EXAMPLES: Final = 3
"""Maximum example trajectories of a finding."""


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look for trajectories that show a finding.

    Attributes:
        run: the run.
        steps: the steps.
        order: SQL expression on a trajectory's row, or with a tool, on the tool's calls.
        is_descending: whether the greatest come first.
        is_counted: whether only trajectories whose expression is above zero are found.
        tool: the tool whose calls the expression is about.
    """

    run: Run
    steps: tuple[StepKey, ...]
    order: str
    is_descending: bool
    is_counted: bool
    tool: str | None = None


def examples_of(engine: Engine, searches: Sequence[Search]) -> list[tuple[str, ...]]:
    """Return for each search the names of the first few trajectories."""
    found = [(search.run, _found(engine, search)) for search in searches]
    paths = {
        run: paths_of(engine, run, [trace_id for _, ids in of_run for trace_id in ids])
        for run, of_run in grouped(found, lambda each: each[0]).items()
    }
    return [tuple(paths[run].get(trace_id, trace_id) for trace_id in ids) for run, ids in found]


def in_steps(steps: Sequence[StepKey]) -> str:
    """Return the SQL condition that a row belongs to one of ``steps``."""
    return filters.any_of(
        f"({filters.equals('validate', validate)} AND {filters.of_steps(of_kind)})"
        for validate in (False, True)
        if (of_kind := [step for of_validation, step in steps if of_validation == validate])
    )


def _found(engine: Engine, search: Search) -> list[str]:
    """Return the trace ids of the first few trajectories."""
    direction = "DESC" if search.is_descending else "ASC"
    of_run, of_steps = _with_groups(rows_of(engine, search.run)), in_steps(search.steps)
    rows = f"(SELECT * FROM {of_run} WHERE {of_steps}) AS row"  # noqa: S608
    source, grouping = rows, ""
    if search.tool is not None:
        called = f"call.kind = 'TOOL' AND call.tool_name = {literal(search.tool)}"
        source = f"{rows} LEFT JOIN spans AS call ON call.trace_id = row.trace_id AND {called}"
        grouping = " GROUP BY row.trace_id, row.path"
    sql = f"SELECT row.trace_id, row.path, {search.order} AS shown FROM {source}{grouping}"  # noqa: S608
    wanted = "shown > 0" if search.is_counted else "shown IS NOT NULL"
    found = engine.dicts(
        f"SELECT trace_id FROM ({sql}) AS ordered WHERE {wanted} "  # noqa: S608
        f"ORDER BY shown {direction}, path LIMIT {_EXAMPLES}"
    )
    return [row["trace_id"] for row in found]


def _with_groups(rows: str) -> str:
    """Return SQL that adds a column to rows: whether the rewards of the trajectory's group are all equal."""
    return f"""(
      SELECT *, sample_index IS NOT NULL AND count(reward) OVER of_group > 1
        AND max(reward) OVER of_group = min(reward) OVER of_group AS has_group_without_spread
      FROM {rows} WINDOW of_group AS (PARTITION BY group_path, sample_index)
    ) AS with_groups"""  # noqa: S608
