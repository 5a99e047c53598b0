"""Find the spans that the pages show: in a rollout table, or in a spool that becomes one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from otel_rollout.look.sources.spool_source import SpoolSource
    from otel_rollout.table.store import Store


class TableState(NamedTuple):
    """What an origin holds at a moment.

    Attributes:
        version: differs whenever the origin holds other spans.
        written: time of the newest spans, in seconds of Unix time.
    """

    version: Hashable
    written: float


class Origin(Protocol):
    """A table, or files that become one.

    Attributes:
        location: the directory, file or address, for messages.
    """

    location: str

    def state(self) -> TableState:
        """Return what the origin holds now.

        Raises:
            TableError: the table cannot be read.
            ViewerError: the files cannot be read.
        """

    def table(self) -> AbstractContextManager[DeltaTable]:
        """Yield a table of the spans that the origin holds now."""


class TableOrigin:
    """A rollout table; see :class:`Origin`.

    Args:
        store: the table.
        location: what a person named; by default the table's address.
    """

    def __init__(self, store: Store, location: str = "") -> None:
        self.location = location or store.location.uri
        self._store = store

    def state(self) -> TableState:
        """Return id and version of the table, and the time of its newest commit."""
        table = self._store.open()
        with self._store.describing():
            newest = next(iter(table.history(1)), {})
            return TableState((str(table.metadata().id), table.version()), newest.get("timestamp", 0) / 1000)

    @contextmanager
    def table(self) -> Iterator[DeltaTable]:
        """Yield the newest version of the table."""
        yield self._store.open()


class SpoolOrigin:
    """Segments or a file of OTLP JSON Lines; see :class:`Origin`.

    Args:
        location: the directory or file.
        source: returns the files that are there now.
    """

    def __init__(self, location: str, source: Callable[[], SpoolSource]) -> None:
        self.location = location
        self._source = source

    def state(self) -> TableState:
        """Return names, sizes and times of the files, and which trajectories run."""
        found = []
        source = self._source()
        for path in source.files():
            try:
                status = path.stat()
            except OSError:  # delivered and removed just now
                continue
            found.append((str(path), status.st_size, status.st_mtime))
        written = max((time for _, _, time in found), default=0.0)
        return TableState((tuple(found), source.running()), written)

    @contextmanager
    def table(self) -> Iterator[DeltaTable]:
        """Yield a table of the spans; its files are removed afterwards."""
        from otel_rollout.look.sources.private_table import table_of

        with table_of(self._source()) as store:
            yield store.open()
