"""Interrupt the first span at each function: ``interrupted_start.py SPOOL``.

Prints, as JSON, the number of interruptions, journals, the names of the threads, and the files left open.
"""

import contextlib
import json
import signal
import sys
import threading
from pathlib import Path

import otel_rollout
from otel_rollout.record.recording.state import state
from tests.capture.test_signals import Strikes, TimeLimit, one_trajectory


def ring(*_: object) -> None:
    """Raise, as the handler of a time limit."""
    raise TimeLimit("now")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def interrupt_until_started() -> int:
    """Interrupt spans until one starts the runtime; return their number."""
    interrupted = 0
    while state.runtime is None:
        interrupted += 1
        strikes = Strikes(interrupted)
        sys.setprofile(strikes)
        with contextlib.suppress(TimeLimit):
            one_trajectory()
        sys.setprofile(None)
        if state.off:
            sys.exit("tracing was switched off")
    return interrupted


def main(spool_dir: str) -> None:
    """Start under time limits, and record one trajectory without."""
    signal.signal(signal.SIGALRM, ring)
    otel_rollout.configure("spool", spool_dir=spool_dir, run_id="run")
    files = open_files()
    interrupted = interrupt_until_started()
    one_trajectory()
    names = [thread.name for thread in threading.enumerate()]
    journals = len(list(Path(spool_dir).rglob("*.journal")))
    print(json.dumps([interrupted, journals, sorted(names), open_files() - files]))


if __name__ == "__main__":
    main(*sys.argv[1:])
