"""Put the spans of a spool into a table for a moment, so that the table's views can be asked."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from otel_rollout.exporting.batching import chunks
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store
from otel_rollout.viewer.errors import ViewerError
from otel_rollout.viewer.spool_source import SpoolSource

_ROWS: Final = 20_000
"""Maximum rows of a commit."""


@contextmanager
def table_of(source: SpoolSource) -> Iterator[Store]:
    """Yield a table of a spool's spans, in a private temporary directory that is removed afterwards.

    Raises:
        ViewerError: the spool holds no span.
    """
    with tempfile.TemporaryDirectory(prefix="otel-rollout-") as directory:
        store = Store(location_of(str(Path(directory) / "table")))
        if not fill(store, source):
            raise ViewerError(f"There is no trajectory in {source.location}.")
        yield store


def fill(store: Store, source: SpoolSource) -> int:
    """Append the spans of a spool to a table; return the number of commits."""
    number = 0
    for number, spans in enumerate(chunks(source.every_span(), _ROWS), start=1):
        store.append([batch_of(rows_of(spans))], "spool", number)
    return number
