"""Put spans into a temporary table, so that the table's views can be queried."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from otel_rollout.exporting.batching import chunks
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources.reference import Reference
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.otlp.span import Span
from otel_rollout.spool import segments
from otel_rollout.spool.private_files import open_private
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store

_ROWS: Final = 20_000
"""Maximum rows of a commit."""
_PREFIX: Final = "otel-rollout-query-"
_LOCK: Final = "lock"
"""File that the process locks while it uses the directory."""
_MINIMUM_AGE: Final = 5.0
"""Seconds after which an unlocked directory counts as abandoned: its process was killed."""


class SpanSource(Protocol):
    """Spans that are in no table: a spool, a file or MLflow.

    Attributes:
        location: the directory, file or server, for messages.
        lister: what shows the rest of a list that is cut.
    """

    location: str
    lister: str

    def matching(self, reference: Reference | None) -> Iterator[tuple[Iterable[Span], int | None]]:
        """Yield for each run, the newest first, the spans to answer a question about the reference.

        These are all spans of the trajectories that may match, and roots and scores of other trajectories.
        The latter decide what training made of a trajectory, and which trajectory a score by identity belongs
        to. The second value is the number of matching trajectories if only some of them are read; else None.
        """

    def every_span(self) -> Iterator[Span]:
        """Yield the spans of all runs."""

    def notes(self, reference: Reference | None, found: Sequence[Summary]) -> tuple[str, ...]:
        """Return remarks about trajectories that were found."""


class PrivateTableSource:
    """Reads trajectories from spans that are in no table.

    The spans that a question needs are put into a temporary table, whose views answer the question.

    Args:
        spans: the spool, file or MLflow.
        directory: private directory for tables.

    Attributes:
        location: the directory, file or server, for messages.
        notes: remarks about the last :meth:`find`, such as that an older run is shown.
    """

    _source: TableSource
    """The table in which :meth:`find` has found trajectories."""

    def __init__(self, spans: SpanSource, directory: Path) -> None:
        self.location = self.place = spans.location
        self.notes: tuple[str, ...] = ()
        self._spans = spans
        self._directory = directory
        self._numbers = itertools.count()

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any; at most a page of them."""
        for source, number in self.tables(reference):
            if found := source.find(reference):
                self._source = source
                cut = f"The first {len(found)} of {number}; name a step to see its trajectories."
                more = source.notes if number is None else (cut,)
                self.notes = (*self.notes_on(reference, found), *more)
                return found
        return []

    def tables(self, reference: Reference | None) -> Iterator[tuple[TableSource, int | None]]:
        """Yield for each run, the newest first, a table to answer a question about a reference.

        The second value is the number of matching trajectories if the table lacks some of them; else None.
        """
        for spans, number in self._spans.matching(reference):
            store = Store(location_of(str(self._directory / f"table-{next(self._numbers)}")))
            if fill(store, spans):
                source = TableSource(Engine(store.open()), self.location, lister=self._spans.lister)
                yield source, number

    def notes_on(self, reference: Reference | None, found: Sequence[Summary]) -> tuple[str, ...]:
        """Return remarks about trajectories that were found; none for a reference by trace id."""
        return () if reference and reference.trace else self._spans.notes(reference, found)

    def conversation(self, trace_id: str, part: int | None = None) -> Conversation:
        """Return a trajectory that was found, turn by turn."""
        return self._source.conversation(trace_id, part)


Source = TableSource | PrivateTableSource
"""Source from which the viewer reads trajectories."""


@contextmanager
def asked_as_table(spans: SpanSource) -> Iterator[PrivateTableSource]:
    """Yield a source that puts spans into temporary tables; remove the tables afterwards."""
    with _private_directory() as directory:
        yield PrivateTableSource(spans, directory)


@contextmanager
def table_of(source: SpanSource) -> Iterator[Store]:
    """Yield a table of all spans of a source; remove the table afterwards.

    Raises:
        ViewerError: the source holds no span.
    """
    with _private_directory() as directory:
        store = Store(location_of(str(directory / "table")))
        if not fill(store, source.every_span()):
            raise ViewerError(f"There is no trajectory in {source.location}.")
        yield store


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Yield a private temporary directory.

    A process that is killed leaves its directory behind; the next call removes it.
    """
    _remove_abandoned()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as directory,
        open(Path(directory) / _LOCK, "wb", opener=open_private) as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(directory)


def _remove_abandoned() -> None:
    """Remove the directories that killed processes of this user have left."""
    for directory in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        try:
            state = directory.lstat()
        except OSError:  # removed just now
            continue
        is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
        is_old = time.time() - state.st_mtime > _MINIMUM_AGE
        if is_ours and is_old and not segments.is_being_written(directory / _LOCK):
            shutil.rmtree(directory, ignore_errors=True)


def fill(store: Store, spans: Iterable[Span]) -> int:
    """Append spans to a table; return the number of commits."""
    number = 0
    for number, some in enumerate(chunks(spans, _ROWS), start=1):
        store.append([batch_of(rows_of(some))], "spool", number)
    return number
