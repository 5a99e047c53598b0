"""Run the receiver of a node directory, or exit if the directory has one.

    python -m otel_rollout.record.receiver NODE_DIRECTORY

The process takes the lock before it imports anything heavy.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the receiver of the directory given as the first argument.

    Raises:
        SystemExit: the directory may belong to another user, or its lock file cannot be opened.
    """
    node_dir = Path(sys.argv[1])
    os.umask(0o077)  # only this user may read the files written here
    from otel_rollout.spool.receiver_files import receiver_lock

    try:
        lock = receiver_lock(node_dir)
    except OSError as error:
        raise SystemExit(f"cannot receive for {node_dir}: {error}") from None
    if not lock.acquire():
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger = logging.getLogger("otel_rollout.receiver")
    from otel_rollout import settings_reader
    from otel_rollout.record.receiver.listening import ListenError, listen
    from otel_rollout.spool.receiver_files import ReceiverCounts, publish_counts, read_counts

    configured, problems = settings_reader.from_environment(os.environ)
    for problem in problems:
        logger.error("%s", problem)
    try:
        listening, address = listen(node_dir, configured)
        from otel_rollout.record.receiver.service import Service

        Service(node_dir, configured, lock, listening, address).run()
    except (ListenError, ImportError, OSError, ValueError) as error:
        found = str(error)
        if isinstance(error, ImportError):
            found = f"OTEL_ROLLOUT_RECEIVE: {error}. Install it with: pip install 'otel-rollout[receive]'"
        logger.error("%s", found)
        counts = read_counts(node_dir) or ReceiverCounts()
        counts.problem = found
        publish_counts(node_dir, counts)
        raise SystemExit(1) from None
    logger.info("done with %s", node_dir)


if __name__ == "__main__":
    main()
