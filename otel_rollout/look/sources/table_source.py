"""Read trajectories from a rollout table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from otel_rollout.exporting.batching import chunks
from otel_rollout.look.conversation import trajectories
from otel_rollout.look.conversation.conversation import Conversation, conversation_of
from otel_rollout.look.conversation.summary import Summary, readings_of
from otel_rollout.look.conversation.trajectories import summaries_of, summary_of
from otel_rollout.look.sources.reference import Reference
from otel_rollout.table import views
from otel_rollout.table.filters import OF_TRAJECTORY, all_of, any_of, equals, of_path
from otel_rollout.table.query import Engine
from otel_rollout.table.select import literal

MAX_LISTED: Final = 100
"""Maximum trajectories of a list."""
_TRACE_DIGITS: Final = 32
_RUN: Final = "run_id, project, experiment"
_ROOT_COLUMNS: Final = f"trace_id, {_RUN}, path, name, start_time, duration_ns / 1e9 AS seconds"
_STATE: Final = "CASE WHEN status = 'error' THEN 'error' ELSE 'ok' END AS state"
LISTER: Final = "`otel-rollout list` filters and sorts"
"""What shows the rest of a list that is cut."""


class TableSource:
    """Reads trajectories from a table.

    A reference is first looked up among the ended root spans, without a view: a view reads more of the table.

    Args:
        engine: queries the table.
        location: name of the table, for messages.
        run: SQL condition of the run to read; by default, the newest run with a match is read.
        place: name of what is read, for messages; by default the table's name.
        lister: what shows the rest of a list that is cut.

    Attributes:
        notes: remarks about the last :meth:`find`, such as that a list is cut.
    """

    def __init__(
        self, engine: Engine, location: str, run: str = "true", place: str = "", lister: str = LISTER
    ) -> None:
        self.engine = engine
        self.location = location
        self.run = run
        self.place = place or location
        self.lister = lister
        self.notes: tuple[str, ...] = ()

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any; of a step or group, the first 100.

        Without a reference, return the first trajectories of the newest run.

        Raises:
            TableError: the table cannot be read.
        """
        self.notes = ()
        if reference is None:
            return self._newest_run()
        conditions = [self.run, *_conditions(reference)]
        for run in runs_with(self.engine, conditions, reference.matches):
            of_run = [*_of_run(run), *conditions]
            found = self._matching(reference, of_run, True) or self._matching(reference, of_run, False)
            if found and (reference.trace or any(reference.is_name_of(summary) for summary in found)):
                return found
            if found:
                return self._listed(of_run, reference, len(found))
        return self._nameless(conditions) if reference.trace else []

    def tables(self, reference: Reference) -> Iterator[tuple[TableSource, None]]:
        """Yield the table itself; see :meth:`PrivateTableSource.tables`."""
        yield self, None

    def notes_on(self, reference: Reference, found: Sequence[Summary]) -> tuple[str, ...]:
        """Return no remark about trajectories that were found."""
        return ()

    def conversation(self, trace_id: str, part: int | None = None) -> Conversation:
        """Return a trajectory that was found, turn by turn.

        Args:
            trace_id: id of its trace.
            part: id of a sub-trajectory's first span, to return only the sub-trajectory.

        Raises:
            TableError: none of its spans is in the table, or the table cannot be read.
        """
        recorded = trajectories.trajectory_in(self.engine, trace_id, part)
        return conversation_of(recorded, trajectories.is_passed_over(self.engine, recorded))

    def _newest_run(self) -> list[Summary]:
        newest = ordered_runs(self.engine, self.run)[:1]
        return self._listed(_of_run(newest[0])) if newest else []

    def _matching(self, reference: Reference, conditions: list[str], is_ended: bool) -> list[Summary]:
        """Return the matching trajectories without scores and tokens; only ended ones if ``is_ended``."""
        if is_ended:
            ended = ["is_root", "validate IS NOT NULL", *conditions]
            rows = self._rows(views.RECORDED, f"{_ROOT_COLUMNS}, {_STATE}", ended)
        else:
            rows = self._rows("roots", f"{_ROOT_COLUMNS}, state", conditions)
        found = {row["trace_id"]: summary_of(row) for row in rows}
        return [summary for summary in found.values() if reference.matches(summary)]

    def _listed(
        self, conditions: list[str], reference: Reference | None = None, count: int | None = None
    ) -> list[Summary]:
        """Return the first 100 trajectories, with reward and tokens; note how many there are."""
        if count is None:
            count = self.engine.count(f"trajectories{all_of(conditions)}")
        found = summaries_of(self.engine, conditions, None if reference else MAX_LISTED)
        found = [summary for summary in found if reference is None or reference.matches(summary)][:MAX_LISTED]
        if count and count > len(found):
            self.notes = (f"The first {len(found)} of {count}; {self.lister}.",)
        return found

    def _nameless(self, conditions: list[str]) -> list[Summary]:
        """Return traces without identity: a person may look at any trace by its id."""
        conditions = [*conditions, OF_TRAJECTORY]
        columns = "trace_id, min(start_ns) AS start_ns"
        rows = self._rows(views.RECORDED, columns, conditions, " GROUP BY trace_id")
        return [Summary(row["trace_id"], start_ns=row["start_ns"]) for row in rows]

    def _rows(self, source: str, columns: str, conditions: list[str], end: str = "") -> list[dict[str, Any]]:
        return self.engine.dicts(f"SELECT {columns} FROM {source}{all_of(conditions)}{end}")  # noqa: S608


def conversations_in(engine: Engine, trace_ids: Iterable[str], at_once: int) -> Iterator[Conversation]:
    """Yield the conversations of trajectories in the order of the ids; traces without spans are left out.

    Args:
        engine: queries the table.
        trace_ids: ids of their traces.
        at_once: trajectories that are read with one query, and are in memory together.

    Raises:
        TableError: the table cannot be read.
    """
    for some in chunks(trace_ids, at_once):
        found = trajectories.trajectories_in(engine, some)
        yield from (conversation_of(found[trace_id]) for trace_id in some if trace_id in found)


def runs_with(
    engine: Engine, conditions: Sequence[str], has: Callable[[Summary], bool] = lambda summary: True
) -> list[dict[str, str | None]]:
    """Return the runs that have wanted trajectories, the newest first: the one that began last.

    A run is a dict of run id, project and experiment. Running trajectories count, too.

    Args:
        engine: queries the table.
        conditions: SQL conditions that spans of the trajectories meet.
        has: returns whether a trajectory is wanted, by its path and trace id; by default, each is.

    Raises:
        TableError: the table cannot be read.
    """
    wanted = all_of([*conditions, "validate IS NOT NULL", "score_name IS NULL"])
    rows = engine.dicts(f"SELECT DISTINCT {_RUN}, trace_id, path FROM {views.RECORDED}{wanted}")  # noqa: S608
    found = (row for row in rows if has(Summary(row["trace_id"], path=row["path"])))
    named = ({name: row[name] for name in _RUN.split(", ")} for row in found)
    runs = list({tuple(run.values()): run for run in named}.values())
    if len(runs) > 1:
        known = ordered_runs(engine)
        runs.sort(key=lambda run: known.index(run) if run in known else len(known))
    return runs


def ordered_runs(engine: Engine, condition: str = "true") -> list[dict[str, str | None]]:
    """Return the runs that have trajectories, the newest first: the one that began last.

    Args:
        engine: queries the table.
        condition: SQL condition of the runs.

    Raises:
        TableError: the table cannot be read.
    """
    return engine.dicts(
        f"SELECT {_RUN} FROM roots WHERE {condition} GROUP BY {_RUN} ORDER BY min(start_ns) DESC"  # noqa: S608
    )


def _of_run(run: dict[str, str | None]) -> list[str]:
    return [equals(column, value) for column, value in run.items()]


def _conditions(reference: Reference) -> list[str]:
    """Return SQL conditions that all trajectories matching a reference meet."""
    if len(reference.trace) == _TRACE_DIGITS:
        return [equals("trace_id", reference.trace)]
    if reference.trace:
        return [f"trace_id LIKE {literal(reference.trace + '%')}"]
    readings = readings_of(reference.path)
    return [any_of(" AND ".join(of_path(is_validation, step)) for is_validation, (step, *_) in readings)]
