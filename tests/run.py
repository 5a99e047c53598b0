"""Run pytest for a part of the tests, and say how long it took and how much it computed.

    python -m tests.run NAME [arguments of pytest]

The CPU time is that of all processes that the part started. This process adopts those whose parents ended,
and kills what is left when the part ends. It needs the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def main(name: str, *arguments: str) -> int:
    """Run a part, and return pytest's exit status."""
    began = time.monotonic()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to pytest, too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        status = _finished(subprocess.Popen([sys.executable, "-m", "pytest", *arguments]).pid)
    finally:
        left = _end_children()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (time.monotonic() - began) / 60
    print(f"== {name}: {minutes:.1f} minutes, {(used.ru_utime + used.ru_stime) / 60:.1f} CPU-minutes", end="")
    print(f", {left} processes were left" if left else "", flush=True)
    return status


def _finished(pid: int) -> int:
    """Wait for a child, and bury every other one that ends before."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_children() -> int:
    """Kill the processes that are left, and return how many there were."""
    killed = 0
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            killed += 1
    return killed


def _children() -> list[int]:
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


if __name__ == "__main__":
    sys.exit(abs(main(*sys.argv[1:])))
