"""Tell the forwarder of a node directory that a program waits for delivery."""

from __future__ import annotations

import os
import time
from pathlib import Path

from otel_rollout.base.waits import waits
from otel_rollout.spool import layout
from otel_rollout.spool.private_files import touch


class WaitingProgram:
    """Announces that this program waits for the delivery of a node directory.

    Args:
        node_dir: the node directory.
    """

    def __init__(self, node_dir: Path) -> None:
        self._path = node_dir / layout.WAITING
        self._next = time.monotonic()

    def announce(self) -> None:
        """Announce the wait, unless that was done just now. Call this repeatedly during the wait."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + waits().announce
            touch(self._path)


class WaitingPrograms:
    """Tells the forwarder whether a program waits.

    Args:
        node_dir: the node directory.
    """

    def __init__(self, node_dir: Path) -> None:
        self._path = node_dir / layout.WAITING
        self._touched = 0
        self._until = 0.0

    def is_any(self) -> bool:
        """Return whether a program has announced that it waits, within the last seconds."""
        try:
            touched = os.stat(self._path).st_mtime_ns
        except OSError:
            return False
        if touched != self._touched:  # no comparison with a clock, which the file system may not share
            self._touched = touched
            self._until = time.monotonic() + waits().announced
        return time.monotonic() < self._until
