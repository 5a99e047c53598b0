"""Find the trajectory that a page's address names, in its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.analysis.run_choice import Run
from otel_rollout.table import filters
from otel_rollout.table.select import QueryError, literal
from otel_rollout.viewer import reference
from otel_rollout.viewer.summary import VALIDATION, Score, Summary
from otel_rollout.web.links import NO_STEP

if TYPE_CHECKING:
    from otel_rollout.web.snapshot import Snapshot

_COLUMNS: Final = (
    "trace_id, run_id, project, experiment, step, sample_index, rollout_n, validate, path, name, state, "
    "start_time, seconds, reward"
)
_ORDER: Final = " ORDER BY rollout_n, start_time, trace_id"
_MAX_FOUND: Final = 256
"""Maximum trajectories that are read for one name or group."""

Row = Mapping[str, Any]
"""A row of the view ``trajectories``."""


class SeveralError(QueryError):
    """A name is that of several trajectories.

    Attributes:
        run: their run.
        found: their rows.
    """

    def __init__(self, name: str, run: Run, found: Sequence[Row]) -> None:
        super().__init__(f"{name} names {len(found)} trajectories of {run.name}; choose one.")
        self.run = run
        self.found = found


def row_of(snapshot: Snapshot, run: Run, name: str) -> tuple[Row, int | None]:
    """Return the row of the trajectory that a name is for, and the id of its first span.

    The id is None unless the name is that of a trajectory inside another one.

    Raises:
        SeveralError: several trajectories have this name.
        QueryError: there is no such trajectory.
        ViewerError: the text is no name.
    """
    wanted = reference.parse(name)
    if wanted.trace:
        found = _rows(
            snapshot, f"trace_id LIKE {literal(wanted.trace + '%')}"
        )  # hex digits, without a wildcard
    else:
        found = _named(snapshot, run, wanted.path) or _named(snapshot, run, _without_step(wanted.path))
    if not found:
        raise QueryError(f"There is no trajectory {name} in {run.name}.")
    if len(found) > 1:
        raise SeveralError(name, run, found)
    return found[0], wanted.span


def siblings_of(snapshot: Snapshot, run: Run, row: Row) -> list[Summary]:
    """Return the trajectories of a trajectory's group in their order, with it."""
    group = [filters.equals(name, row[name]) for name in ("step", "sample_index", "validate")]
    return [_summary(each) for each in _rows(snapshot, " AND ".join([run.condition, *group]))]


def _named(snapshot: Snapshot, run: Run, path: str) -> list[dict[str, Any]]:
    return _rows(snapshot, f"{run.condition} AND {filters.equals('path', path)}")


def _without_step(path: str) -> str:
    """Return a path as the views have it for a step that is text: they have no column for it."""
    *validation, _, sample_and_rollout = path.split("/", 2 if path.startswith(f"{VALIDATION}/") else 1)
    return "/".join([*validation, NO_STEP, sample_and_rollout])


def _rows(snapshot: Snapshot, condition: str) -> list[dict[str, Any]]:
    return snapshot.rows(f"SELECT {_COLUMNS} FROM trajectories WHERE {condition}{_ORDER} LIMIT {_MAX_FOUND}")  # noqa: S608


def _summary(row: Row) -> Summary:
    return Summary(
        trace_id=row["trace_id"],
        run=row["run_id"] or "",
        project=row["project"] or "",
        experiment=row["experiment"] or "",
        path=row["path"],
        name=row["name"] or "",
        state=row["state"],
        start_ns=int(row["start_time"].timestamp() * 1e6) * 1000,
        seconds=row["seconds"],
        scores=() if row["reward"] is None else (Score("reward", row["reward"]),),
    )
