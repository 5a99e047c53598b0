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
from pathlib import Path
from typing import Final

from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.setting_parsers import hours
from otel_rollout.base.waits import wait_until, waits
from otel_rollout.spool import layout
from otel_rollout.spool.detached import start_detached
from otel_rollout.table import compaction, pruning
from otel_rollout.table.data_files import DIRECTORY, files_of
from otel_rollout.table.errors import TableError
from otel_rollout.table.lease import LeaseHeldError, LeaseLostError
from otel_rollout.table.location import location_of
from otel_rollout.table.store import Store

_MANY_FILES: Final = 16
"""Files that no compaction has written, from which on a table is compacted."""


def start(node_dir: Path, table: str, keep: str) -> None:
    """Start the process if many files have come and two cores are there.

    Args:
        node_dir: has the log.
        table: the table's address.
        keep: how long the table keeps a step; empty for good.
    """
    with suppress(TableError, OSError):  # delivery says what is wrong with the table or the directory
        store = Store(location_of(table))
        new = [file for file in files_of(store, store.open()) if not file.path.startswith(DIRECTORY)]
        if len(new) >= _MANY_FILES and len(os.sched_getaffinity(0)) > 1:
            start_detached(["-m", __name__, table, keep], os.environ, node_dir / layout.FORWARDER_LOG)


def tend(uri: str, keep: str) -> None:
    """Remove steps that are too old, and compact the table, unless another process does; log a failure."""
    try:
        store = Store(location_of(uri))
        with suppress(LeaseHeldError, LeaseLostError):
            if keep:
                old = pruning.older_than(time.time_ns() - round(hours(keep) * 3600e9))
                if pruning.preview(store, old)[0]:
                    pruning.prune(store, old, compaction.RETENTION_HOURS)
            compaction.compact(store, say=logger.debug)
    except Exception as error:  # noqa: BLE001 - the next process tries again
        logger.warning("the table at %s is not compacted: %s", uri, error)


def main() -> None:
    """Compact the table given as the first argument, as soon as a core is free."""
    os.nice(19)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if wait_until(lambda: os.getloadavg()[0] <= (os.cpu_count() or 1) - 1, waits().free_core):
        tend(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
