"""Run the forwarder of a node directory, or exit if the directory has one.

    python -m otel_rollout.forwarder NODE_DIRECTORY

The process takes the lock before it imports anything heavy: of eight forwarders started at once, seven exit
within milliseconds.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the forwarder of the directory given as the first argument.

    Raises:
        SystemExit: the directory may belong to another user, or its lock file cannot be opened.
    """
    node_dir = Path(sys.argv[1])
    os.umask(0o077)  # only this user may read the files written here
    from otel_rollout.base.environment import access_in
    from otel_rollout.base.waits import waits
    from otel_rollout.spool.locks import SUCCESSOR, ForwarderLock

    try:
        lock = ForwarderLock(node_dir)
    except OSError as error:
        raise SystemExit(f"cannot forward {node_dir}: {error}") from None
    access = access_in(os.environ)
    if SUCCESSOR in sys.argv and (lock.lacks_access(access) or lock.has_other_access(access)):
        is_leader = lock.take_over(waits().take_over)
    else:
        is_leader = lock.acquire()
    if not is_leader:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from otel_rollout import settings_reader
    from otel_rollout.base.errors import forwarder_logger as logger
    from otel_rollout.deliver.forwarder import Forwarder, collect_garbage_rarely

    configured, problems = settings_reader.from_environment(os.environ)
    for problem in problems:
        logger.error("%s", problem)
    if os.path.isdir(configured.working_dir):
        os.chdir(configured.working_dir)  # relative paths in exporter settings are relative to it
    logger.info("forwarding %s to %s", node_dir, ", ".join(configured.exporters))
    collect_garbage_rarely()
    Forwarder(node_dir, configured, lock).run()
    logger.info("done with %s", node_dir)


if __name__ == "__main__":
    main()
