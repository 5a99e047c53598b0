"""Prepare one version of the table for many pages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rollout.look.analysis.run_choice import Run, rows_of, run_of
from otel_rollout.look.sources.private_table import table_of
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.look.web.links import run_parameters
from otel_rollout.table.query import SharedEngine
from otel_rollout.table.select import QueryError
from otel_rollout.table.store import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable

LIVE_SECONDS: Final = 900.0
"""Seconds for which a run is live after its newest span began. A long model call records nothing."""


@dataclass(frozen=True)
class RunRow:
    """A run with its figures in the view ``runs``.

    Attributes:
        run: the run.
        figures: the other columns of the view.
        newest: when its newest span began, in seconds of Unix time; 0 if it was not live when read.
    """

    run: Run
    figures: Mapping[str, Any]
    newest: float

    def is_live(self, now: float) -> bool:
        """Return whether the run may have more spans soon.

        The start of the run's newest span tells. A running trajectory does not: its process may have been
        killed. A new version of the table does not: other runs may have written it.
        """
        return now - self.newest < LIVE_SECONDS


class Snapshot:
    """The rows of one version of the table. Several threads may query it.

    Args:
        origin: where the spans are.
        version: identifies the version; from ``origin.version``.
        now: time of reading, in seconds of Unix time.

    Attributes:
        address: address of the table.
        engine: queries this version.
        runs: the runs that have trajectories, the newest first: the one that began last.
        users: number of those who use it: requests, and :class:`~otel_rollout.look.web.live.Live` while it is
            the newest one.

    Raises:
        TableError: the table cannot be read.
        ViewerError: the files cannot be read.
    """

    def __init__(self, origin: Origin, version: Hashable, now: float) -> None:
        self.version = version
        self.read_at = now
        self.users = 1
        self._resources = ExitStack()
        try:
            table = self._resources.enter_context(origin.table())
            self.address = table.table_uri
            self.engine = SharedEngine(table)
            self.runs = self._read_runs()
            self._prepare_newest()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove what was made for this version."""
        self._resources.close()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query of this package, which is not checked."""
        return self.engine.dicts(sql)

    def row_of(self, given: Mapping[str, str]) -> RunRow:
        """Return the newest run that has the given parts of its name.

        Args:
            given: any of ``run`` (its id), ``project`` and ``experiment``. A run that has these parts and no
                others is preferred.

        Raises:
            QueryError: there is no such run.
        """
        named = [(row, run_parameters(row.run)) for row in self.runs]
        matching = [row for row, parts in named if parts == given]
        matching += [row for row, parts in named if given.items() <= parts.items()]
        if not matching:
            asked = ", ".join(f"{'id' if name == 'run' else name} {value!r}" for name, value in given.items())
            raise QueryError(f"There is no run with the {asked}.")
        return matching[0]

    def row_named(self, reference: str | None) -> RunRow:
        """Return the run that a person names.

        Args:
            reference: a run's id or experiment; by default, and for ``latest``, the run that began last.

        Raises:
            QueryError: no run has this id or experiment, or the table has no trajectory.
        """
        chosen = run_of(self.engine, reference)
        return next(row for row in self.runs if row.run == chosen)

    def _prepare_newest(self) -> None:
        """Keep the rows of the newest run, which most people open; ignore problems, which its pages tell."""
        with suppress(QueryError):
            for row in self.runs[:1]:
                rows_of(self.engine, row.run)

    def _read_runs(self) -> list[RunRow]:
        names = ", ".join(Run._fields)
        since = int((self.read_at - LIVE_SECONDS) * 1e9)
        recent = self.rows(
            f"SELECT {names}, max(start_ns) / 1e9 AS newest FROM recorded_spans "  # noqa: S608
            f"WHERE start_ns > {since} AND score_name IS NULL GROUP BY {names}"
        )
        newest = {Run(*map(row.get, Run._fields)): row["newest"] for row in recent}
        rows = self.rows(f"SELECT * FROM runs ORDER BY start_time DESC, {names}")  # noqa: S608
        runs = (Run(*map(row.pop, Run._fields)) for row in rows)
        return [RunRow(run, row, newest.get(run, 0.0)) for run, row in zip(runs, rows, strict=True)]


# --- where the spans are -----------------------------------------------------------------------------------


class Origin(NamedTuple):
    """A table, or files that become one.

    Attributes:
        location: the directory, file or address, for messages.
        version: returns a value that changes whenever the origin's spans change; raises TableError or
            ViewerError if the table or the files cannot be read.
        table: returns the context of a table of the spans that the origin holds now.
    """

    location: str
    version: Callable[[], Hashable]
    table: Callable[[], AbstractContextManager[DeltaTable]]


def table_origin(store: Store) -> Origin:
    """Return the origin for a rollout table, whose newest version is read."""

    def version() -> Hashable:
        table = store.open()
        with store.describing():
            return str(table.metadata().id), table.version()

    return Origin(store.location.uri, version, lambda: nullcontext(store.open()))


def spool_origin(open_source: Callable[[], SpoolSource]) -> Origin:
    """Return the origin for segments, or for a file of OTLP JSON Lines.

    Args:
        open_source: opens the files that exist now.
    """

    def version() -> Hashable:
        """Return names, sizes and times of the files, and which trajectories run."""
        found = []
        source = open_source()
        for path in source.files():
            try:
                status = path.stat()
            except OSError:  # delivered and removed just now
                continue
            found.append((str(path), status.st_size, status.st_mtime))
        return tuple(found), source.running()

    @contextmanager
    def table() -> Iterator[DeltaTable]:
        with table_of(open_source()) as store:
            yield store.open()

    return Origin(open_source().location, version, table)
