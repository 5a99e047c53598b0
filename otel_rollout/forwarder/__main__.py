"""``python -m otel_rollout.forwarder NODE_DIRECTORY``: become its forwarder, or exit if it has one.

Elected before anything heavy is imported: of eight started at once, seven are gone in milliseconds.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Final

_SUCCESSION_TIMEOUT: Final = 120.0
"""Seconds a forwarder waits for another to hand its lock over: longer than a request may take."""


def main() -> None:
    """Run the forwarder of the directory given as the only argument.

    Raises:
        SystemExit: when this user has no business there.
    """
    node_dir = Path(sys.argv[1])
    os.umask(0o077)  # whatever is written here is for this user alone
    from otel_rollout.base.environment import access_in
    from otel_rollout.forwarder.lock import SUCCESSOR, Election

    try:
        election = Election(node_dir)
    except OSError as error:
        raise SystemExit(f"cannot forward {node_dir}: {error}") from None
    access = access_in(os.environ)
    if SUCCESSOR in sys.argv and (election.lacks(access) or election.differs(access)):
        is_elected = election.succeed(_SUCCESSION_TIMEOUT)
    else:
        is_elected = election.win()
    if not is_elected:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from otel_rollout import configuration
    from otel_rollout.forwarder.forwarder import forward

    configured, problems = configuration.from_environment(os.environ)
    logger = logging.getLogger("otel_rollout.forwarder")
    for problem in problems:
        logger.error("%s", problem)
    if os.path.isdir(configured.working_dir):
        os.chdir(configured.working_dir)  # what relative paths in exporter settings are relative to
    logger.info("forwarding %s to %s", node_dir, ", ".join(configured.exporters))
    forward(node_dir, configured, election)
    logger.info("done with %s", node_dir)


if __name__ == "__main__":
    main()
