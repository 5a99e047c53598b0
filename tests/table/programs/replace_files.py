"""Compact or prune a table, and die or stop at a point.

    replace_files URI DIRECTORY SECONDS POINT [RUN …]

With runs, the program prunes them. It waits for another holder of the lease. Its own commits renew the lease
for ``SECONDS``. ``DIRECTORY`` is where the store keeps the table's files. ``POINT`` is empty, a point of
``POINTS``, ``stop before the commit``, or ``until FILE``: compact again and again until the file exists.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from otel_rollout.base.waits import WAITS_VARIABLE
from otel_rollout.table import compaction, pruning, trajectory_store
from otel_rollout.table.data_files import FileReader
from otel_rollout.table.errors import TableError
from otel_rollout.table.lease import Lease, LeaseHeldError
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store

POINTS = (
    "after the lease is taken",
    "writing the rows",
    "after the rows are written",
    "in the log",
    "after the commit",
    "before trajectories are stored",
    "after files are removed",
    "after the checkpoint",
    "before the release",
)
"""Points at which the program can die."""
_WATCHED = {"writing the rows": "compacted/*/*", "in the log": "_delta_log/*.json"}
_DEADLINE = 400.0


def die() -> None:
    """End as by a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(
    owner: Any, name: str, before: Callable[..., None] | None, after: Callable[..., None] | None
) -> None:
    """Call something before or after each call of a function."""
    function = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = function(*arguments, **options)
        if after is not None:
            after(*arguments)
        return result

    setattr(owner, name, wrapped)


def replaces(_: Lease, removed: Any = (), added: Any = ()) -> bool:
    """Whether a commit of the lease replaces files."""
    return bool(removed)


def is_of_rows(table: DeltaTable) -> bool:
    """Whether a table has the rows of spans, not those of trajectories."""
    return trajectory_store.DIRECTORY not in table.table_uri


def watch(directory: Path, pattern: str) -> None:
    """Die as soon as a new file appears."""
    known = set(directory.glob(pattern))

    def look() -> None:
        while not set(directory.glob(pattern)) - known:
            pass
        die()

    threading.Thread(target=look, daemon=True).start()


def arrange(point: str, directory: Path) -> None:
    """Make the process die or stop at the point."""
    if point == "after the lease is taken":
        wrap(Lease, "acquire", None, lambda *_: die())
    elif point == "writing the rows":
        wrap(FileReader, "rewritten", lambda *_: watch(directory, _WATCHED[point]), None)
    elif point == "after the rows are written":
        wrap(FileReader, "rewritten", None, lambda *_: die())
    elif point == "in the log":
        start = lambda *given: watch(directory, _WATCHED[point]) if replaces(*given) else None  # noqa: E731
        wrap(Lease, "commit", start, None)
    elif point == "after the commit":
        wrap(Lease, "commit", None, lambda *given: die() if replaces(*given) else None)
    elif point == "before trajectories are stored":
        wrap(compaction, "store_rows", lambda *_: die(), None)
    elif point == "after files are removed":
        wrap(DeltaTable, "vacuum", None, lambda table, *_: die() if is_of_rows(table) else None)
    elif point == "after the checkpoint":
        wrap(DeltaTable, "create_checkpoint", None, lambda *_: die())
    elif point == "before the release":
        wrap(Lease, "close", lambda *_: die(), None)
    elif point == "stop before the commit":
        stop = lambda *given: os.kill(os.getpid(), signal.SIGSTOP) if replaces(*given) else None  # noqa: E731
        wrap(Lease, "commit", stop, None)


def replace(store: Store, runs: tuple[str, ...]) -> None:
    """Compact the table, or prune runs, when the lease is free."""
    deadline = time.monotonic() + _DEADLINE
    while True:
        try:
            if runs:
                pruning.prune(store, pruning.of_runs(runs), 0)
            else:
                compaction.compact(store, 0)
            return
        except LeaseHeldError as error:
            if time.monotonic() > deadline:
                raise
            print(error)
            time.sleep(0.1)


def main(uri: str, directory: str, seconds: str, point: str, *runs: str) -> None:
    """Do what the arguments say."""
    os.environ[WAITS_VARIABLE] = json.dumps({"lease": float(seconds)})
    store = Store(location_of(uri))
    if point.startswith("until "):
        end = Path(point.removeprefix("until "))
        while not end.exists():
            replace(store, runs)
        return
    arrange(point, Path(directory))
    replace(store, runs)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except TableError as error:
        sys.exit(str(error))
