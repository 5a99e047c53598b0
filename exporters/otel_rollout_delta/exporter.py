"""Export spans as rows of a Delta table."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.base.waits import waits
from otel_rollout.exporting.api import BatchLimits, ExportFailure, FailureKind, UndeliveredError
from otel_rollout.exporting.arguments import given
from otel_rollout.exporting.base import GuardedExporter, decoded, rejecting
from otel_rollout.exporting.batching import chunks
from otel_rollout.otlp.span import Span
from otel_rollout.table import rows
from otel_rollout.table.errors import NoTableError, TableError
from otel_rollout.table.location import DEFAULT_URI, location_of
from otel_rollout.table.store import Store

if TYPE_CHECKING:
    from arro3.core import RecordBatch

_ROWS_AT_ONCE: Final = 500
"""Maximum spans whose rows are Python objects in memory. The other rows of a commit are Arrow batches."""


class DeltaSpanExporter(GuardedExporter):
    """Appends spans to a Delta table, a row per span.

    A commit adds the rows of a batch and the batch's number, or nothing. The first commit begins the table. A
    directory that the exporter makes is readable for this user only.

    Every argument wins over its environment variable. The constructor opens nothing.

    Args:
        uri: a directory, or ``s3://bucket/path`` and its like (``OTEL_ROLLOUT_DELTA_URI``; ``./rollouts``).
            Credentials come from the variables of the store's own tools, such as ``AWS_ACCESS_KEY_ID``.

    Raises:
        ValueError: the address is malformed.
    """

    takes_decoded = True

    def __init__(self, *, uri: str | None = None) -> None:
        super().__init__("Delta")
        self.batch = BatchLimits(spans=20_000, bytes=32 << 20, seconds=waits().table_commit)
        found, source = given("uri", uri, "OTEL_ROLLOUT_DELTA_URI")
        self._location = location_of(found.strip() if found is not None else DEFAULT_URI, source)
        self._store = Store(self._location)
        self._writer = secrets.token_hex(16)
        self._number = 0

    @property
    def target_is_local(self) -> bool:
        """Whether the table is a directory of this machine."""
        return self._location.path is not None

    @property
    def table_uri(self) -> str:
        """Address of the table."""
        return self._location.uri

    def write(self, spans: Sequence[Span]) -> None:
        """Append spans as a batch of this exporter's own; the forwarder calls :meth:`commit`."""
        self._number += 1
        self._append(spans, self._writer, self._number)

    def commit(self, spans: Iterable[Span], writer: str, number: int) -> SpanExportResult:
        """Append the rows of spans, with the batch's number. Never raises."""
        return self.export_by(lambda: self._append(spans, writer, number))

    def committed(self, writer: str) -> int | None:
        """Return the number of the writer's newest batch in the table; None without any.

        Raises:
            UndeliveredError: the table cannot be read.
        """
        with _failures():
            return self._store.committed(writer)

    def check(self) -> ExportFailure | None:
        """Open the table, and write nothing; a table that does not exist yet is no failure."""
        return self.guarded(self._check)

    def prepare(self) -> None:
        """Import deltalake, and open the table; a failure shows at the first commit."""
        self._logger.info("spans go to the table at %s", self._location.uri)
        self.guarded(self._check)

    def destination(self, project: str) -> str:
        """Return the table's address."""
        return f"the table at {self._location.uri}"

    def _append(self, spans: Iterable[Span], writer: str, number: int) -> None:
        batches = list(_batches(spans))
        if batches:
            with _failures():
                self._store.append(batches, writer, number)

    def _check(self) -> None:
        with _failures(), suppress(NoTableError):  # the first spans begin it
            self._store.open()
        self._check_place()

    def _check_place(self) -> None:
        """Check that a table could be begun or extended."""
        path = self._location.path
        if path is None:
            return
        above = next(parent for parent in (path, *path.parents) if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            message = f"The table at {path} cannot be written: no permission to write to {above}."
            raise UndeliveredError(FailureKind.REFUSED, message)


def _batches(spans: Iterable[Span]) -> Iterator[RecordBatch]:
    """Yield the rows of spans as Arrow batches."""
    for group in chunks(spans, _ROWS_AT_ONCE):
        with rejecting():
            batch = rows.batch_of(rows.rows_of(decoded(group)))
        yield batch


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except TableError as error:
        kind = FailureKind.UNAVAILABLE if error.is_temporary else FailureKind.REFUSED
        raise UndeliveredError(kind, str(error)) from error
