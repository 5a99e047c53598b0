"""Append commits to a table as a forwarder does: ``append_rows URI WRITER COMMITS ROWS [START_NS]``."""

from __future__ import annotations

import sys

from otel_rollout.table.errors import TableError
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.table.tables import appended_rows

_ATTEMPTS = 50


def append(store: Store, writer: str, commit: int, rows: int, *start_ns: int) -> None:
    """Append one commit; after a failure ask whether it is in the table."""
    for attempt in range(_ATTEMPTS):
        try:
            if attempt and (store.committed(writer) or -1) >= commit:
                return
            store.append([batch_of(appended_rows(writer, commit, rows, *start_ns))], writer, commit)
            return
        except TableError as error:
            if not error.is_temporary:
                raise
            print(error, file=sys.stderr)
    raise AssertionError(f"commit {commit} of {writer} failed {_ATTEMPTS} times")


if __name__ == "__main__":
    _, uri, writer, commits, rows, *start_ns = sys.argv
    for commit in range(int(commits)):
        append(Store(location_of(uri)), writer, commit, int(rows), *map(int, start_ns))
