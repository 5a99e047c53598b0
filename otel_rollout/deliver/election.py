"""Who forwards a node directory: whoever holds its lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_FILE = "forwarder.lock"


class Election:
    """The forwarder's lock: at most one process forwards a directory."""

    def __init__(self, node_dir: Path) -> None:
        self._descriptor = os.open(node_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def win(self) -> bool:
        """Try to become the forwarder."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def resign(self) -> None:
        """Let another process become the forwarder."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the lock file, and with it of the lock."""
        os.close(self._descriptor)
