"""Find and end the forwarders that run for a spool."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from otel_rollout.record.launch import launcher
from tests.waiting import wait_for


def forwarders(place: Path | str) -> list[int]:
    """Return the process ids of the forwarders of a spool, a run or a node, also of those that begin."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            command = (process / "cmdline").read_bytes().decode().split("\0")
            if "otel_rollout.forwarder" in command and any(part.startswith(str(place)) for part in command):
                found.append(int(process.name))
    return found


def wait_for_end(place: Path | str) -> None:
    """Wait for the end of a node directory's forwarders, also of one that just begins on a busy machine."""
    wait_for(
        lambda: not forwarders(place) and not launcher.forwarder_runs(Path(place)),
        what="the end of the forwarders",
    )


def end_forwarders(place: Path | str) -> None:
    """Kill the forwarders of a spool, a run or a node."""
    for pid in forwarders(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
