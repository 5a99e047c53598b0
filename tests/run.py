"""Run pytest for a part of the tests, and say how long it took and how much it computed.

    python -m tests.run PART [arguments of pytest]

environments.toml lists the parts. A part without an environment of its own runs in that of this process.
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
import tomllib
from pathlib import Path
from typing import Any, Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_FILE: Final = Path(__file__).with_name("environments.toml")


def main(name: str, *more: str) -> int:
    """Run a part, and return pytest's exit status."""
    parts = tomllib.loads(_FILE.read_text())
    part = parts[name]
    python = f".venv-{part['environment']}/bin/python" if "environment" in part else sys.executable
    command = [python, "-m", "pytest", *arguments_of(parts, name), *more]
    status, report = _run(command, {**os.environ, **part.get("variables", {})})
    print(f"== {part['title']}: {report}", flush=True)
    return status


def arguments_of(parts: dict[str, Any], name: str) -> list[str]:
    """Return pytest's arguments for a part."""
    part = parts[name]
    arguments = arguments_of(parts, part["arguments_of"]) if "arguments_of" in part else []
    if workers := part.get("workers"):  # each module stays with one of them
        arguments += [f"--numprocesses={workers}", "--dist=loadscope", "--no-loadscope-reorder"]
    return [*arguments, *part["arguments"]]


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a command; return its exit status, and what it and all that it started took."""
    began = time.monotonic()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to pytest, too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        status = _finished(subprocess.Popen(command, env=environment).pid)
    finally:
        left = _end_children()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (time.monotonic() - began) / 60
    report = f"{minutes:.1f} minutes, {(used.ru_utime + used.ru_stime) / 60:.1f} CPU-minutes"
    return status, report + (f", processes left: {left}" if left else "")


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
