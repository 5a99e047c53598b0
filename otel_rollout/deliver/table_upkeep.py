"""Keep a rollout table small beside training: prune and compact it in a process of the lowest priority.

    python -m otel_rollout.deliver.table_upkeep TABLE AGE

The forwarder of the run's home machine starts the process from time to time, and when all is delivered.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.setting_parsers import hours
from otel_rollout.base.waits import wait_until, waits
from otel_rollout.spool import layout
from otel_rollout.spool.detached import start_detached
from otel_rollout.table import compaction, pruning
from otel_rollout.table.data_files import bins, files_of
from otel_rollout.table.errors import TableError
from otel_rollout.table.lease import LeaseHeldError, LeaseLostError
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store
from otel_rollout.table.trajectory_store import stored_rows

_MANY_FILES: Final = 16
"""Minimum files to merge, or with trajectories to store, for a compaction to be due."""


def start(node_dir: Path, table: str, keep: str) -> None:
    """Start the process if there is something to do, and this process may use two cores.

    Args:
        node_dir: has the log.
        table: the table's address.
        keep: how long the table keeps a step; empty: forever.
    """
    with suppress(TableError, OSError):  # delivery says what is wrong with the table or the directory
        store = Store(location_of(table))
        starts = (file.least.get("start_ns") or 0 for file in files_of(store, store.open()))
        is_old = keep and any(start_ns < _kept_since(keep) for start_ns in starts)
        if (is_old or _is_due(store)) and len(os.sched_getaffinity(0)) > 1:
            start_detached(["-m", __name__, table, keep], os.environ, node_dir / layout.FORWARDER_LOG)


def tend(uri: str, keep: str) -> None:
    """Remove steps that are too old, and compact the table, unless another process does; log a failure."""
    try:
        store = Store(location_of(uri))
        old = pruning.older_than(_kept_since(keep)) if keep else lambda _: set()
        with suppress(LeaseHeldError, LeaseLostError):
            if (keep and pruning.preview(store, old)[0]) or _is_due(store):
                compaction.compact(store, say=logger.debug, before=partial(pruning.remove, store, old))
    except Exception as error:  # noqa: BLE001 - the next process tries again
        logger.warning("the table at %s is not compacted: %s", uri, error)


def _kept_since(keep: str) -> int:
    """Return the time from which on the table keeps rows, Unix time in nanoseconds."""
    return time.time_ns() - round(hours(keep) * 3600e9)


def _is_due(store: Store) -> bool:
    """Return whether a compaction would change many files."""
    table = store.open()
    files, stored = files_of(store, table), stored_rows(table)
    changed = {file.path for each in bins(files) if len(each) > 1 for file in each}
    changed |= {file.path for file in files}.difference(stored.covered if stored else ())
    return len(changed) >= _MANY_FILES


def _is_core_free() -> bool:
    """Return whether the usable CPUs together are idle for a while as much as one free CPU."""
    before = _idle_seconds()
    time.sleep(waits().core_look)
    return _idle_seconds() - before >= waits().core_look


def _idle_seconds() -> float:
    """Return how long the CPUs that this process may use have been idle."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    of_cpus = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    return sum(int(cpu[4]) for cpu in of_cpus if cpu[0] in usable) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prune and compact the table given as the first argument, as soon as a core is free."""
    os.nice(19)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if wait_until(_is_core_free, waits().free_core):
        tend(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
