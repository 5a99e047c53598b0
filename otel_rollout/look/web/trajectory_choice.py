"""Find the trajectory that a page's address names, in its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.conversation.trajectories import summary_of
from otel_rollout.look.sources import reference
from otel_rollout.look.web.snapshot import Snapshot
from otel_rollout.table import filters
from otel_rollout.table.select import QueryError, literal

_COLUMNS: Final = (
    "trace_id, run_id, project, experiment, step, sample_index, rollout_n, validate, path, group_path, name, "
    "state, start_time, seconds, reward, reward_label"
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
        hex_digits = literal(wanted.trace + "%")  # no wildcard among them
        found = _rows(snapshot, f"trace_id LIKE {hex_digits}")
    else:
        found = _rows(snapshot, f"{run.condition} AND {filters.equals('path', wanted.path)}")
    if not found:
        raise QueryError(f"There is no trajectory {name} in {run.name}.")
    if len(found) > 1:
        raise SeveralError(name, run, found)
    return found[0], wanted.span


def siblings_of(snapshot: Snapshot, run: Run, row: Row) -> list[Summary]:
    """Return the trajectories of a trajectory's group in their order, with it."""
    of_group = filters.equals("group_path", row["group_path"])
    return [summary_of(each) for each in _rows(snapshot, f"{run.condition} AND {of_group}")]


def _rows(snapshot: Snapshot, condition: str) -> list[dict[str, Any]]:
    return snapshot.rows(f"SELECT {_COLUMNS} FROM trajectories WHERE {condition}{_ORDER} LIMIT {_MAX_FOUND}")  # noqa: S608
