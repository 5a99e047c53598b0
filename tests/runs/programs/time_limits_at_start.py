"""Interrupt the first span twice; print whether one writer is left."""

import os
import signal
import threading
import time
from pathlib import Path
from unittest.mock import patch

import otel_rollout
from otel_rollout import settings
from otel_rollout.record import runtime
from otel_rollout.record.runs.founding import create_node_directory


class TimeLimit(Exception):
    """Raised by the handler of SIGALRM."""


def create_slowly(configured: settings.Settings) -> Path:
    """Create the node directory as a slow disk does."""
    time.sleep(0.6)
    return create_node_directory(configured)


def strike(*_: object) -> None:
    raise TimeLimit


@otel_rollout.rollout_trace_op
def operation() -> None:
    """Do nothing."""


def interrupt() -> bool:
    """Call the operation with a time limit of 0.2 s; return whether that struck."""
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        operation()
    except TimeLimit:
        return True
    return False


def main() -> None:
    """Record after two time limits."""
    signal.signal(signal.SIGALRM, strike)
    with patch.object(runtime, "create_node_directory", create_slowly):
        struck = [interrupt() for _ in range(2)]
        signal.setitimer(signal.ITIMER_REAL, 0)
        operation()
    journals = list(Path(os.environ["OTEL_ROLLOUT_SPOOL_DIR"]).glob("*/*/*.journal"))
    flushing = [thread for thread in threading.enumerate() if thread.name == "otel-rollout-flush"]
    otel_rollout.shutdown(0)
    print(all(struck) and len(journals) == 1 and len(flushing) == 1)


if __name__ == "__main__":
    main()
