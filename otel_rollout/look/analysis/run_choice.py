"""Choose the run that a command explains, and keep its rows."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from otel_rollout.base.suggest import did_you_mean
from otel_rollout.exporting.batching import grouped
from otel_rollout.look.conversation.formatting import steps_in_words
from otel_rollout.look.sources.table_source import ordered_runs
from otel_rollout.table import filters
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError

LATEST: Final = "latest"
"""Reference of the run that began last."""
_NAMED: Final = 10
"""Maximum runs that an error names."""
_MAX_TOOLS: Final = 100
"""Maximum tools that a person may choose from."""


StepKey = tuple[bool, filters.Step]
"""Whether a step is of validation, and the step."""


class Run(NamedTuple):
    """A run, in one project and experiment.

    Attributes:
        run_id: the run's id; None where none was recorded.
        project: its project.
        experiment: its experiment.
    """

    run_id: str | None
    project: str | None
    experiment: str | None

    @property
    def name(self) -> str:
        """Experiment and id, for a person."""
        names = dict.fromkeys((self.experiment, self.run_id))  # a run without experiment is named by its id
        return " · ".join(name for name in names if name) or "run without a name"

    @property
    def condition(self) -> str:
        """The SQL condition that a row of a view belongs to this run."""
        return " AND ".join(filters.equals(column, value) for column, value in self._asdict().items())


def operations_outside(run: Run) -> str:
    """Return a query for the starts of a run's operations that began outside of any trajectory, in ns.

    Such operations have neither project nor experiment.
    """
    return (
        f"SELECT start_ns FROM spans WHERE {filters.equals('run_id', run.run_id)} "  # noqa: S608
        "AND validate IS NULL AND is_root"
    )


def run_of(engine: Engine, reference: str | None = None, besides: Run | None = None) -> Run:
    """Return a run that has trajectories.

    Args:
        engine: queries the table.
        reference: a run's id, or an experiment if no run has this id; by default, and for ``latest``, the run
            that began last.
        besides: the run that another one of the same experiment is compared with.

    Raises:
        QueryError: no run has this id or experiment, or the table has no trajectory.
    """
    found = runs_in(engine)
    if not found:
        raise QueryError("There is no trajectory yet, so there is no run to explain.")
    if reference in (None, LATEST):
        return found[0]
    if chosen := _named(str(reference), found):
        return next((run for run in chosen if run != besides), chosen[0])
    names = [name for run in found for name in (run.experiment, run.run_id) if name]
    known = ", ".join(run.name for run in found[:_NAMED])
    raise QueryError(f"There is no run {reference!r}.{did_you_mean(str(reference), names)} Runs: {known}.")


def _named(reference: str, known: Sequence[Run]) -> list[Run]:
    """Return the runs with this id; without any, those with this experiment."""
    of_id = [run for run in known if run.run_id == reference]
    return of_id or [run for run in known if run.experiment == reference]


def reference_of(run: Run, known: Sequence[Run]) -> str | None:
    """Return the id or experiment, for ``--run``, that selects no other run; None if both select others."""
    return next(
        (name for name in (run.run_id, run.experiment) if name and _named(name, known) == [run]), None
    )


def source_said(engine: Engine, reference: str | None, location: str) -> str:
    """Return the name of a source for a person, with its other runs if the person has chosen none.

    Args:
        engine: queries the table.
        reference: the run that a person named, if any.
        location: name of the source.
    """
    known = runs_in(engine)
    if reference is not None or len(known) == 1:
        return location
    listed = ", ".join([name for each in known[1:] if (name := reference_of(each, known))][:_NAMED])
    return f"{location} · one of {len(known)} runs; others: --run {listed}"


def runs_in(engine: Engine) -> list[Run]:
    """Return the runs that have trajectories, the newest first: the one that began last."""
    return [Run(**row) for row in ordered_runs(engine)]


def no_step(engine: Engine, run: Run, wanted: str) -> QueryError:
    """Return the error for a step that a run does not have; it names the steps that the run has.

    Args:
        engine: queries the table.
        run: the run.
        wanted: what the run does not have, such as ``step 9``.
    """
    rows = engine.dicts(f"SELECT DISTINCT step, step_text FROM roots WHERE {run.condition}")  # noqa: S608
    known = steps_in_words(map(filters.step_in, rows))
    return QueryError(f"{run.name} has no {wanted}. It has {known}.")


def paths_of(engine: Engine, run: Run, trace_ids: Iterable[str]) -> dict[str, str]:
    """Return trace id → path of a run's trajectories that ``show`` finds by their path.

    A path must be unique in the run. Without ``--run``, ``show`` looks in the newest run first. So in an
    older run that ``--run`` cannot name, a path must be unique in the whole table.

    Args:
        engine: queries the table.
        run: the run.
        trace_ids: ids of their traces.
    """
    known = runs_in(engine)
    condition = run.condition if run == known[0] or reference_of(run, known) else "true"
    wanted = filters.equals("trace_id", sorted(set(trace_ids)))
    rows = engine.dicts(
        "SELECT min(trace_id) AS trace_id, path FROM roots "  # noqa: S608
        f"WHERE {condition} AND path IN (SELECT path FROM roots WHERE {wanted}) "
        "GROUP BY path HAVING count(*) = 1"
    )
    return {row["trace_id"]: row["path"] for row in rows}


def tools_of(engine: Engine, condition: str) -> list[str]:
    """Return the names of the tools that trajectories call; the table is searched only once.

    Args:
        engine: queries the table.
        condition: SQL condition on the identity's columns.
    """
    named = f"{condition} AND tool_name IS NOT NULL ORDER BY tool_name LIMIT {_MAX_TOOLS}"
    tools = kept(engine, "tools", condition, f"SELECT DISTINCT tool_name FROM called_tools WHERE {named}")  # noqa: S608
    return [row["tool_name"] for row in engine.dicts(f"SELECT * FROM {tools}")]  # noqa: S608


def rows_of(engine: Engine, run: Run) -> str:
    """Return the name of the table with a run's rows of the view ``report_rows``; make the table once.

    A path that several of the trajectories have names none of them: a trace id is in its place.
    """
    path = "CASE WHEN count(*) OVER (PARTITION BY path) > 1 THEN trace_id ELSE path END AS path"
    rows = f"SELECT * REPLACE ({path}) FROM report_rows WHERE {run.condition}"  # noqa: S608
    return kept(engine, "rows", run.condition, rows)


def kept(engine: Engine, what: str, condition: str, sql: str) -> str:
    """Return the name of the table that keeps a query's rows; make it once for each condition."""
    name = f"{what}_of_run_{zlib.crc32(condition.encode()):08x}"
    engine.keep(name, sql)
    return name


def by_step(rows: Iterable[dict[str, Any]]) -> dict[StepKey, list[dict[str, Any]]]:
    """Return the rows of each step, in their order; a step without rows has an empty list."""
    return defaultdict(list, grouped(rows, lambda row: (row["validate"], filters.step_in(row))))
